#include "reference/reference_backward.h"

#include <Eigen/Dense>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/reference_head.h"
#include "rules/attention_params.h"

namespace multihead::reference {
namespace {

// Adds one head's gradient to (B, H, N, width).
void add_to_head(std::vector<double>& all, const Dims& shape, int64_t batch, int64_t head,
                 const Matrix& gradient) {
  const auto start = (batch * shape[1] + head) * shape[2] * shape[3];
  for (int64_t i = 0; i < gradient.size(); ++i) {
    all[static_cast<size_t>(start + i)] += gradient.data()[i];
  }
}

std::vector<double> zeros(const Dims& shape) {
  return std::vector<double>(static_cast<size_t>(shape.elements()));
}

}  // namespace

ReferenceGradients attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                      const ConstAnyTensor& v, const AttentionOptions& options,
                                      const ConstAnyTensor& d_out) {
  const int64_t width = q.shape[3], value_dim = v.shape[3];
  ReferenceGradients result{.d_q = zeros(q.shape),
                            .d_k = zeros(k.shape),
                            .d_v = zeros(v.shape),
                            .d_bias = {},
                            .d_sinks = std::vector<double>(options.sinks.size()),
                            .d_q_gain = {},
                            .d_k_gain = {}};
  // The gradient is contiguous; the bias may have any strides.
  const bool has_bias = options.bias.data != nullptr;
  if (has_bias) result.d_bias = zeros(options.bias.shape);
  const auto bias_index = rules::broadcast_to_scores(
      ConstTensor{options.bias.data, options.bias.shape, contiguous_strides(options.bias.shape)});
  Eigen::VectorXd q_gain = Eigen::VectorXd::Zero(width), k_gain = q_gain;

  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t h = 0; h < q.shape[1]; ++h) {
      const Head head(q, k, v, options, b, h);
      const Matrix out_gradient = head_of(d_out, b, h);
      Matrix d_query = Matrix::Zero(head.queries, width), d_key = Matrix::Zero(head.keys, width);
      Matrix d_value = Matrix::Zero(head.keys, value_dim);
      for (int64_t i = 0; i < head.queries; ++i) {
        const Head::Softmax row = head.softmax(i);
        if (row.sees_nothing()) continue;
        // d_weight = dL/dP of the weights P before dropout. Softmax backward: dL/dS_j = P_j
        // (dL/dP_j - mean), where mean = sum over j of P_j dL/dP_j.
        Eigen::VectorXd d_weight = Eigen::VectorXd::Zero(head.keys);
        double mean = 0;
        for (int64_t j = 0; j < head.keys; ++j) {
          const double factor = head.sees(i, j) ? head.dropout_factor(i, j) : 0.0;
          if (factor == 0.0) continue;
          d_weight(j) = factor * out_gradient.row(i).dot(head.value.row(j));
          mean += row.weight(j) * d_weight(j);
          d_value.row(j) += row.weight(j) * factor * out_gradient.row(i);
        }
        if (!options.sinks.empty()) {
          result.d_sinks[static_cast<size_t>(h)] -= row.sink_weight * mean;
        }
        for (int64_t j = 0; j < head.keys; ++j) {
          if (!head.sees(i, j)) continue;
          double d_score = row.weight(j) * (d_weight(j) - mean);
          if (has_bias) {
            result.d_bias[static_cast<size_t>(&bias_index.at(b, h, i, j) - bias_index.data)] +=
                d_score;
          }
          if (head.cap > 0) d_score *= 1.0 - std::pow(head.capped(i, j) / head.cap, 2);
          d_query.row(i) += head.scale * d_score * head.key.row(j);
          d_key.row(j) += head.scale * d_score * head.query.row(i);
        }
      }
      add_to_head(result.d_q, q.shape, b, h, head.query_gradient(d_query, q_gain));
      add_to_head(result.d_k, k.shape, b, head.kv_head, head.key_gradient(d_key, k_gain));
      add_to_head(result.d_v, v.shape, b, head.kv_head, d_value);
    }
  }
  result.d_q_gain.assign(q_gain.begin(), q_gain.end());
  result.d_k_gain.assign(k_gain.begin(), k_gain.end());
  return result;
}

}  // namespace multihead::reference
