#include "reference/reference_attention.h"

#include <Eigen/Dense>
#include <cmath>
#include <limits>

#include "rules/broadcast.h"
#include "rules/visibility.h"

namespace multihead::reference {
namespace {

constexpr double kNegInf = -std::numeric_limits<double>::infinity();

// One head as a matrix of doubles.
Eigen::MatrixXd head_of(const ConstTensor& tensor, int64_t batch, int64_t head) {
  Eigen::MatrixXd matrix(tensor.shape[2], tensor.shape[3]);
  const float* data = tensor.data + batch * tensor.strides[0] + head * tensor.strides[1];
  for (int64_t row = 0; row < matrix.rows(); ++row) {
    for (int64_t column = 0; column < matrix.cols(); ++column) {
      matrix(row, column) = static_cast<double>(data[row * tensor.strides[2] + column]);
    }
  }
  return matrix;
}

}  // namespace

ReferenceOutputs attention(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                           const AttentionOptions& options) {
  const int64_t batch = q.shape[0], heads = q.shape[1], queries = q.shape[2], width = q.shape[3];
  const int64_t kv_heads = k.shape[1], keys = k.shape[2], value_width = v.shape[3];
  // The default is a float: so it is what a caller can give.
  const auto scale = static_cast<double>(
      options.scale.value_or(static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)))));
  const auto visibility = rules::make_visibility(options.causal, queries, keys);
  const auto mask = rules::broadcast_to_scores(options.mask);
  const auto bias = rules::broadcast_to_scores(options.bias);

  ReferenceOutputs result;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv_head = h / (heads / kv_heads);
      const Eigen::MatrixXd key = head_of(k, b, kv_head);
      const Eigen::MatrixXd value = head_of(v, b, kv_head);
      const Eigen::MatrixXd scores = scale * head_of(q, b, h) * key.transpose();
      for (int64_t i = 0; i < queries; ++i) {
        const rules::KeyRange range = visibility.of_query(i);
        Eigen::VectorXd score = Eigen::VectorXd::Constant(keys, kNegInf);
        std::vector<bool> visible(static_cast<size_t>(keys));
        double maximum = kNegInf;
        for (int64_t j = 0; j < keys; ++j) {
          const double added = bias.given() ? static_cast<double>(bias.at(b, h, i, j)) : 0.0;
          if (!range.contains(j) || (mask.given() && mask.at(b, h, i, j) == 0) ||
              added == kNegInf) {
            continue;
          }
          visible[static_cast<size_t>(j)] = true;
          score(j) = scores(i, j) + added;
          if (!(score(j) <= maximum)) maximum = score(j);
        }
        double sum = 0.0;
        Eigen::VectorXd out = Eigen::VectorXd::Zero(value_width);
        Eigen::VectorXd weight = Eigen::VectorXd::Zero(keys);
        for (int64_t j = 0; j < keys; ++j) {
          // Selected, not multiplied by zero: a hidden value may be NaN.
          if (!visible[static_cast<size_t>(j)]) continue;
          weight(j) = std::exp(score(j) - maximum);
          sum += weight(j);
          out += weight(j) * value.row(j).transpose();
        }
        const bool sees_nothing = sum == 0.0;
        if (!sees_nothing) {
          out /= sum;
          weight /= sum;
        }
        result.out.insert(result.out.end(), out.begin(), out.end());
        result.weights.insert(result.weights.end(), weight.begin(), weight.end());
        result.lse.push_back(sees_nothing ? kNegInf : maximum + std::log(sum));
      }
    }
  }
  return result;
}

}  // namespace multihead::reference
