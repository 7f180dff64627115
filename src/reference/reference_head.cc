#include "reference/reference_head.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "rules/attention_params.h"
#include "rules/dropout_mask.h"
#include "rules/element.h"
#include "rules/rope.h"
#include "rules/visibility.h"

namespace multihead::reference {
namespace {

constexpr double kNegInf = -std::numeric_limits<double>::infinity();

double element(const ConstAnyTensor& tensor, int64_t index) {
  return rules::visit_element(tensor.dtype, [&]<class T>(std::type_identity<T>) {
    return static_cast<double>(rules::to_float(static_cast<const T*>(tensor.data)[index]));
  });
}

double gain_at(std::span<const float> gain, int64_t column) {
  return gain.empty() ? 1.0 : static_cast<double>(gain[static_cast<size_t>(column)]);
}

// 1 / sqrt(mean of squares + eps)
double inverse_rms(const Matrix& rows, int64_t row, float eps) {
  const double mean = rows.row(row).squaredNorm() / static_cast<double>(rows.cols());
  return 1.0 / std::sqrt(mean + static_cast<double>(eps));
}

void normalize(Matrix& rows, std::span<const float> gain, float eps) {
  for (int64_t row = 0; row < rows.rows(); ++row) {
    rows.row(row) *= inverse_rms(rows, row, eps);
    for (int64_t column = 0; column < rows.cols(); ++column) {
      rows(row, column) *= gain_at(gain, column);
    }
  }
}

// Rotates the rows by RoPE; with `direction` -1 it rotates back. `positions` is (N), (B * N) or
// empty: if empty, row i has position first + i.
void rotate(Matrix& rows, const Rope& rope, std::span<const int32_t> positions, int64_t batch,
            int64_t first, double direction) {
  const int64_t count = rows.rows();
  const int64_t rotary_dim = rope.rotary_dim == 0 ? rows.cols() : rope.rotary_dim;
  const bool for_each_batch = static_cast<int64_t>(positions.size()) > count;
  std::vector<double> cos(static_cast<size_t>(rotary_dim / 2)), sin(cos.size());
  for (int64_t row = 0; row < count; ++row) {
    const auto index = static_cast<size_t>(for_each_batch ? batch * count + row : row);
    const int64_t position =
        positions.empty() ? rules::saturating_add(first, row) : positions[index];
    rules::fill_angles(position, rope.base, rotary_dim, cos.data(), sin.data());
    for (double& value : sin) value *= direction;
    double* data = rows.row(row).data();
    rules::rotate_vector(data, data, rows.cols(), rotary_dim, rope.style, cos.data(), sin.data());
  }
}

// Returns the offset of query positions: query i has position i + offset.
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

Head::Head(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
           const AttentionOptions& options, int64_t of_batch, int64_t of_head)
    : batch(of_batch),
      head(of_head),
      kv_head(of_head / (q.shape[1] / k.shape[1])),
      queries(q.shape[2]),
      keys(k.shape[2]),
      // The default scale is rounded to float, as a caller could pass it.
      scale(static_cast<double>(options.scale.value_or(
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(q.shape[3])))))),
      cap(static_cast<double>(options.softcap)),
      sink(options.sinks.empty()
               ? kNegInf
               : static_cast<double>(options.sinks[static_cast<size_t>(of_head)])),
      value(head_of(v, of_batch, kv_head)),
      options_(options) {
  const Window& window = options.window;
  const bool causal = options.causal.given();
  const int64_t length =
      options.kv_lengths.empty() ? keys : options.kv_lengths[static_cast<size_t>(batch)];
  const int64_t offset =
      causal ? offset_of(options.causal.alignment, options.causal.offset, length, queries, keys)
             : offset_of(window.alignment, window.offset, length, queries, keys);
  of_queries_ = {head_of(q, batch, head), options.qk_norm.q_gain, options.rope.q_positions, offset};
  of_keys_ = {head_of(k, batch, kv_head), options.qk_norm.k_gain, options.rope.k_positions, 0};
  query = turned(of_queries_);
  key = turned(of_keys_);
  raw = scale * query * key.transpose();
  capped = cap > 0 ? Matrix(cap * (raw / cap).array().tanh()) : raw;
  for (Matrix* scores : {&raw, &capped}) {
    if (scores->size() > 0) scores->rightCols(keys - length).setConstant(kNegInf);
  }

  const auto mask = rules::broadcast_to_scores(options.mask);
  const auto bias = rules::broadcast_to_scores(options.bias);
  const double slope = options.alibi_slopes.empty()
                           ? 0.0
                           : static_cast<double>(options.alibi_slopes[static_cast<size_t>(head)]);
  score = Matrix::Constant(queries, keys, kNegInf);
  visible_.resize(static_cast<size_t>(queries * keys));
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < keys; ++j) {
      const double added = bias.given() ? static_cast<double>(bias.at(batch, head, i, j)) : 0.0;
      // Query i has position i + offset, which may need more than 64 bits. So the offset is
      // compared with the distance from the query to the key. Where a sum with a window's limit
      // saturates, the comparison comes out as with the exact sum.
      const int64_t ahead = j - i;
      if ((causal && ahead > offset) ||
          (window.left >= 0 && rules::saturating_add(window.left, ahead) < offset) ||
          (window.right >= 0 && rules::saturating_add(-window.right, ahead) > offset) ||
          j >= length || (mask.given() && mask.at(batch, head, i, j) == 0) || added == kNegInf) {
        continue;
      }
      visible_[static_cast<size_t>(i * keys + j)] = true;
      score(i, j) =
          capped(i, j) + added - slope * std::abs(static_cast<double>(i + keys - queries - j));
    }
  }
}

Matrix Head::turned(const Rows& rows) const {
  Matrix result = rows.given;
  const QkNorm& norm = options_.qk_norm;
  if (norm.given()) normalize(result, rows.gain, norm.eps);
  if (options_.rope.given()) {
    rotate(result, options_.rope, rows.positions, batch, rows.first, 1.0);
  }
  return result;
}

Matrix Head::turned_back(const Rows& rows, Matrix gradient, Eigen::VectorXd& gain) const {
  if (options_.rope.given()) {
    rotate(gradient, options_.rope, rows.positions, batch, rows.first, -1.0);
  }
  const QkNorm& norm = options_.qk_norm;
  if (!norm.given()) return gradient;
  for (int64_t row = 0; row < gradient.rows(); ++row) {
    // If the gradient of a row is zero, the row itself may be NaN.
    if ((gradient.row(row).array() == 0.0).all()) continue;
    const auto x = rows.given.row(row);
    const double inverse = inverse_rms(rows.given, row, norm.eps);
    gain += (gradient.row(row).cwiseProduct(x) * inverse).transpose();
    for (int64_t column = 0; column < gradient.cols(); ++column) {
      gradient(row, column) *= gain_at(rows.gain, column);
    }
    const double along = gradient.row(row).dot(x) / static_cast<double>(x.cols());
    gradient.row(row) = gradient.row(row) * inverse - x * (along * inverse * inverse * inverse);
  }
  return gradient;
}

Head::Softmax Head::softmax(int64_t i) const {
  Softmax result{sink, 0.0, 0.0, Eigen::VectorXd::Zero(keys)};
  for (int64_t j = 0; j < keys; ++j) {
    if (sees(i, j) && !(score(i, j) <= result.maximum)) result.maximum = score(i, j);
  }
  result.sink_weight = sink == kNegInf ? 0.0 : std::exp(sink - result.maximum);
  result.sum = result.sink_weight;
  for (int64_t j = 0; j < keys; ++j) {
    // Hidden scores are skipped, because they may be NaN.
    if (!sees(i, j)) continue;
    result.weight(j) = std::exp(score(i, j) - result.maximum);
    result.sum += result.weight(j);
  }
  if (result.sees_nothing()) return result;
  result.weight /= result.sum;
  result.sink_weight /= result.sum;
  return result;
}

double Head::dropout_factor(int64_t i, int64_t j) const {
  const Dropout& dropout = options_.dropout;
  if (dropout.probability == 0.0F) return 1.0;
  const uint64_t threshold = rules::dropout_threshold(dropout.probability);
  if (!rules::dropout_keeps(dropout.seed, batch, head, i, j, threshold)) return 0.0;
  return 1.0 / (1.0 - static_cast<double>(dropout.probability));
}

}  // namespace multihead::reference
