#include "oracle_error.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/reference_attention.h"
#include "reference/reference_backward.h"

namespace multihead::bench {
namespace {

// Rows first .. first + count - 1 of one head.
ConstAnyTensor part(const ConstAnyTensor& t, int64_t head, int64_t first, int64_t count) {
  const int64_t at = (t.shape[0] - 1) * t.strides[0] + head * t.strides[1] + first * t.strides[2];
  const auto* data = static_cast<const std::byte*>(t.data) + at * bytes_of(t.dtype);
  return {data, t.dtype, {1, 1, count, t.shape[3]}, t.strides};
}

// The first `keys` entries of one row of a mask or bias, of rank 2 or 4.
template <class T>
TensorView<T> row_of(const TensorView<T>& t, int64_t row, int64_t keys) {
  if (!t.given()) return {};
  const int rank = t.shape.rank();
  int64_t at = t.shape[rank - 2] == 1 ? 0 : row * t.strides[rank - 2];
  if (rank == 4) at += (t.shape[0] - 1) * t.strides[0] + (t.shape[1] - 1) * t.strides[1];
  return {t.data + at, {1, keys}};
}

// Calls visit(row, its query, the keys and values that it may see, its options) for some rows of
// the last head: the first, the last, and some between.
template <class Visit>
void for_sample_rows(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                     const AttentionOptions& options, const Visit& visit) {
  const int64_t rows = q.shape[2], keys = k.shape[2];
  const int64_t head = q.shape[1] - 1, kv_head = k.shape[1] - 1;
  const bool causal = options.causal.given();
  for (const int64_t row : {int64_t{0}, rows / 3, rows / 2, rows - 1}) {
    // Give the oracle only the keys up to the query's position: with bottom-right alignment these
    // are the visible keys.
    const int64_t seen = causal ? row + 1 + keys - rows : keys;
    AttentionOptions of_row = options;
    of_row.mask = row_of(options.mask, row, seen);
    of_row.bias = row_of(options.bias, row, seen);
    if (!options.alibi_slopes.empty()) of_row.alibi_slopes = options.alibi_slopes.last(1);
    if (!options.kv_lengths.empty()) of_row.kv_lengths = options.kv_lengths.last(1);
    visit(row, part(q, head, row, 1), part(k, kv_head, 0, seen), part(v, kv_head, 0, seen), of_row);
  }
}

// Largest difference between `expected` and row `row` of the last head of `got`.
double difference(const std::vector<double>& expected, const ConstTensor& got, int64_t row) {
  const ConstAnyTensor of_row = part(got, got.shape[1] - 1, row, 1);
  double largest = 0;
  for (size_t c = 0; c < expected.size(); ++c) {
    const double value = static_cast<const float*>(of_row.data)[c];
    largest = std::max(largest, std::abs(expected[c] - value));
  }
  return largest;
}

}  // namespace

double error_on_sample(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                       const AttentionOptions& options, const ConstTensor& out) {
  double largest = 0;
  for_sample_rows(q, k, v, options,
                  [&](int64_t row, const auto& of_q, const auto& of_k, const auto& of_v,
                      const AttentionOptions& of_row) {
                    const auto expected = reference::attention(of_q, of_k, of_v, of_row);
                    largest = std::max(largest, difference(expected.out, out, row));
                  });
  return largest;
}

double gradient_error_on_sample(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                const ConstAnyTensor& v, const AttentionOptions& options,
                                const ConstAnyTensor& d_out, const ConstTensor& d_q) {
  double largest = 0;
  for_sample_rows(q, k, v, options,
                  [&](int64_t row, const auto& of_q, const auto& of_k, const auto& of_v,
                      const AttentionOptions& of_row) {
                    const auto expected = reference::attention_backward(
                        of_q, of_k, of_v, of_row, part(d_out, d_out.shape[1] - 1, row, 1));
                    largest = std::max(largest, difference(expected.d_q, d_q, row));
                  });
  return largest;
}

}  // namespace multihead::bench
