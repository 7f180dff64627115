#include "nn/attention/sequence.h"

#include <cstdint>

#include "engine/error/error.h"
#include "engine/layers/gradients.h"

namespace multihead::nn {
namespace {

// Selects tokens that form the rows of one matrix in each of several sequences.
struct RowSet {
  int64_t batch, count;
  enum class Along : uint8_t { kTokens, kBatch } along;

  template <class T>
  int64_t stride(const Sequence<T>& s) const {
    return along == Along::kTokens ? s.token_stride : s.batch_stride;
  }
  template <class T>
  TensorView<T> of(const Sequence<T>& s) const {
    if (s.data == nullptr && s.width > 0) return {};
    return {moved(s.data, batch * s.batch_stride), {count, s.width}, {stride(s), 1}};
  }
};

// Calls rows(set) once for all tokens if batch and tokens join into one axis in all sequences,
// otherwise once per batch entry. Ignores sequences without data.
template <class Rows, class... Sequences>
Status for_row_sets(int64_t batch, int64_t tokens, const Rows& rows,
                    const Sequences&... sequences) {
  if (batch * tokens == 0) return {};
  const auto joins = [](const auto& s) {
    return s.data == nullptr || s.batch <= 1 || s.batch_stride == s.tokens * s.token_stride;
  };
  if ((joins(sequences) && ...)) return rows(RowSet{0, batch * tokens, RowSet::Along::kTokens});
  const auto joins_across = [](const auto& s) {
    return s.data == nullptr || s.tokens <= 1 || s.token_stride == s.batch * s.batch_stride;
  };
  if ((joins_across(sequences) && ...)) {
    return rows(RowSet{0, batch * tokens, RowSet::Along::kBatch});
  }
  for (int64_t b = 0; b < batch; ++b) {
    MULTIHEAD_TRY(rows(RowSet{b, tokens, RowSet::Along::kTokens}));
  }
  return {};
}

}  // namespace

Status project(const Sequence<const float>& x, const ConstTensor& weight, const ConstTensor& bias,
               const Sequence<float>& y, Context& context, Precision precision) {
  return for_row_sets(
      x.batch, x.tokens,
      [&](const RowSet& set) {
        return linear(set.of(x), weight, bias, set.of(y), context, precision);
      },
      x, y);
}

Status project_backward(const ProjectBackward& call, Context& context) {
  return for_row_sets(
      call.x.batch, call.x.tokens,
      [&](const RowSet& set) {
        return engine::linear_backward({.x = set.of(call.x),
                                        .weight = call.weight,
                                        .d_y = set.of(call.d_y),
                                        .d_x = set.of(call.d_x),
                                        .adds_to_d_x = call.adds_to_d_x,
                                        .d_weight = call.d_weight,
                                        .d_bias = call.d_bias.data,
                                        .precision = call.precision},
                                       context);
      },
      call.x, call.d_y, call.d_x);
}

}  // namespace multihead::nn
