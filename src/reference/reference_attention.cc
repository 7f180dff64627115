#include "reference/reference_attention.h"

#include <Eigen/Dense>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "rules/broadcast.h"
#include "rules/dropout_mask.h"
#include "rules/element.h"
#include "rules/rope.h"
#include "rules/visibility.h"

namespace multihead::reference {
namespace {

// Row-major, so that a row is a vector of doubles in memory.
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double kNegInf = -std::numeric_limits<double>::infinity();

double element(const ConstAnyTensor& tensor, int64_t index) {
  return rules::visit_element(tensor.dtype, [&]<class T>(std::type_identity<T>) {
    return static_cast<double>(rules::to_float(static_cast<const T*>(tensor.data)[index]));
  });
}

// One head, (N, d).
Matrix head_of(const ConstAnyTensor& tensor, int64_t batch, int64_t head) {
  Matrix matrix(tensor.shape[2], tensor.shape[3]);
  const int64_t start = batch * tensor.strides[0] + head * tensor.strides[1];
  for (int64_t row = 0; row < matrix.rows(); ++row) {
    for (int64_t column = 0; column < matrix.cols(); ++column) {
      matrix(row, column) = element(tensor, start + row * tensor.strides[2] + column);
    }
  }
  return matrix;
}

void normalise(Matrix& rows, std::span<const float> gain, float epsilon) {
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const double mean = rows.row(row).squaredNorm() / static_cast<double>(rows.cols());
    rows.row(row) /= std::sqrt(mean + static_cast<double>(epsilon));
    for (size_t column = 0; column < gain.size(); ++column) {
      rows(row, static_cast<int64_t>(column)) *= static_cast<double>(gain[column]);
    }
  }
}

// `positions` is (N) or (B * N); if it is empty, row i is at position first + i.
void rotate(Matrix& rows, const Rope& rope, std::span<const int32_t> positions, int64_t batch,
            int64_t first) {
  const int64_t count = rows.rows();
  const int64_t rotary_dim = rope.rotary_dim == 0 ? rows.cols() : rope.rotary_dim;
  const bool for_each_batch = static_cast<int64_t>(positions.size()) > count;
  std::vector<double> cos(static_cast<size_t>(rotary_dim / 2)), sin(cos.size());
  for (int64_t row = 0; row < count; ++row) {
    const auto index = static_cast<size_t>(for_each_batch ? batch * count + row : row);
    const int64_t position =
        positions.empty() ? rules::saturating_add(first, row) : positions[index];
    rules::fill_angles(position, rope.base, rotary_dim, cos.data(), sin.data());
    double* data = rows.row(row).data();
    rules::rotate_vector(data, data, rows.cols(), rotary_dim, rope.style, cos.data(), sin.data());
  }
}

// Positions are sums of numbers of 64 bits.
__extension__ using Position = __int128;

// What query positions are: p = i + offset.
int64_t offset_of(Alignment alignment, int64_t given, int64_t length, int64_t queries,
                  int64_t keys) {
  switch (alignment) {
    case Alignment::kNone:
    case Alignment::kTopLeft:
      break;
    case Alignment::kBottomRight:
      return keys - queries;
    case Alignment::kBottomRightOfLength:
      return length - queries;
    case Alignment::kOffset:
      return given;
  }
  return 0;
}

}  // namespace

const std::vector<double>& ReferenceOutputs::stage(ScoreStage stage) const {
  switch (stage) {
    case ScoreStage::kRaw:
      return raw;
    case ScoreStage::kCapped:
      return capped;
    case ScoreStage::kMasked:
      return masked;
    case ScoreStage::kWeights:
      break;
  }
  return weights;
}

ReferenceOutputs attention(const ConstAnyTensor& q, const ConstAnyTensor& k,
                           const ConstAnyTensor& v, const AttentionOptions& options,
                           bool with_stages) {
  const int64_t batch = q.shape[0], heads = q.shape[1], queries = q.shape[2], width = q.shape[3];
  const int64_t kv_heads = k.shape[1], keys = k.shape[2], value_width = v.shape[3];
  // Rounded to float, like a scale that a caller gives.
  const auto scale = static_cast<double>(
      options.scale.value_or(static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)))));
  const auto cap = static_cast<double>(options.softcap);
  const auto mask = rules::broadcast_to_scores(options.mask);
  const auto bias = rules::broadcast_to_scores(options.bias);
  const bool causal = options.causal.alignment != Alignment::kNone;
  const Window& window = options.window;
  const uint64_t threshold = rules::dropout_threshold(options.dropout.probability);
  const bool drops = options.dropout.probability > 0.0F;
  const double survivor = 1.0 / (1.0 - static_cast<double>(options.dropout.probability));

  ReferenceOutputs result;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length =
        options.kv_lengths.empty() ? keys : options.kv_lengths[static_cast<size_t>(b)];
    const int64_t offset =
        causal ? offset_of(options.causal.alignment, options.causal.offset, length, queries, keys)
               : offset_of(window.alignment, window.offset, length, queries, keys);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv_head = h / (heads / kv_heads);
      Matrix query = head_of(q, b, h);
      Matrix key = head_of(k, b, kv_head);
      const Matrix value = head_of(v, b, kv_head);
      if (options.qk_norm.enabled) {
        normalise(query, options.qk_norm.q_gain, options.qk_norm.epsilon);
        normalise(key, options.qk_norm.k_gain, options.qk_norm.epsilon);
      }
      if (options.rope.style != Rope::Style::kNone) {
        rotate(query, options.rope, options.rope.q_positions, b, offset);
        rotate(key, options.rope, options.rope.k_positions, b, 0);
      }
      Matrix raw = scale * query * key.transpose();
      Matrix capped = cap > 0 ? Matrix(cap * (raw / cap).array().tanh()) : raw;
      for (Matrix* scores : {&raw, &capped}) {
        if (scores->size() > 0) scores->rightCols(keys - length).setConstant(kNegInf);
      }
      const auto head = static_cast<size_t>(h);
      const double slope =
          options.alibi_slopes.empty() ? 0.0 : static_cast<double>(options.alibi_slopes[head]);
      const bool has_sink = !options.sinks.empty();
      const double sink = has_sink ? static_cast<double>(options.sinks[head]) : kNegInf;

      for (int64_t i = 0; i < queries; ++i) {
        const Position p = Position{i} + offset;
        Eigen::VectorXd score = Eigen::VectorXd::Constant(keys, kNegInf);
        std::vector<bool> visible(static_cast<size_t>(keys));
        double maximum = sink;
        for (int64_t j = 0; j < keys; ++j) {
          const double added = bias.given() ? static_cast<double>(bias.at(b, h, i, j)) : 0.0;
          if ((causal && j > p) || (window.left >= 0 && j < p - window.left) ||
              (window.right >= 0 && j > p + window.right) || j >= length ||
              (mask.given() && mask.at(b, h, i, j) == 0) || added == kNegInf) {
            continue;
          }
          visible[static_cast<size_t>(j)] = true;
          score(j) =
              capped(i, j) + added - slope * std::abs(static_cast<double>(i + keys - queries - j));
          if (!(score(j) <= maximum)) maximum = score(j);
        }
        double sum = has_sink ? std::exp(sink - maximum) : 0.0;
        Eigen::VectorXd out = Eigen::VectorXd::Zero(value_width);
        Eigen::VectorXd weight = Eigen::VectorXd::Zero(keys);
        for (int64_t j = 0; j < keys; ++j) {
          // Selected, not multiplied by zero: a hidden value may be NaN.
          if (!visible[static_cast<size_t>(j)]) continue;
          weight(j) = std::exp(score(j) - maximum);
          sum += weight(j);
          if (drops && !rules::dropout_keeps(options.dropout.seed, b, h, i, j, threshold)) continue;
          out += weight(j) * survivor * value.row(j).transpose();
        }
        const bool sees_nothing = sum == 0.0;
        if (!sees_nothing) {
          out /= sum;
          weight /= sum;
        }
        result.out.insert(result.out.end(), out.begin(), out.end());
        result.weights.insert(result.weights.end(), weight.begin(), weight.end());
        result.lse.push_back(sees_nothing ? kNegInf : maximum + std::log(sum));
        if (!with_stages) continue;
        result.raw.insert(result.raw.end(), raw.row(i).begin(), raw.row(i).end());
        result.capped.insert(result.capped.end(), capped.row(i).begin(), capped.row(i).end());
        result.masked.insert(result.masked.end(), score.begin(), score.end());
      }
    }
  }
  return result;
}

}  // namespace multihead::reference
