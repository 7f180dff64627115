#include "nn/attention/sequence.h"

#include <cstdint>

namespace multihead::nn {

Status project(const Sequence<const float>& x, const ConstTensor& weight, const ConstTensor& bias,
               const Sequence<float>& y, Context& context) {
  if (x.batch * x.tokens == 0) return {};
  const auto rows = [&](int64_t first, int64_t count, int64_t x_stride, int64_t y_stride,
                        int64_t x_step, int64_t y_step) {
    return linear({moved(x.data, first * x_step), {count, x.width}, {x_stride, 1}}, weight, bias,
                  {moved(y.data, first * y_step), {count, y.width}, {y_stride, 1}}, context);
  };
  const auto joins = [](const auto& s) {
    return s.batch <= 1 || s.batch_stride == s.tokens * s.token_stride;
  };
  if (joins(x) && joins(y)) {
    return rows(0, x.batch * x.tokens, x.token_stride, y.token_stride, 0, 0);
  }
  const auto joins_across = [](const auto& s) {
    return s.tokens <= 1 || s.token_stride == s.batch * s.batch_stride;
  };
  if (joins_across(x) && joins_across(y)) {
    return rows(0, x.batch * x.tokens, x.batch_stride, y.batch_stride, 0, 0);
  }
  for (int64_t b = 0; b < x.batch; ++b) {
    Status status =
        rows(b, x.tokens, x.token_stride, y.token_stride, x.batch_stride, y.batch_stride);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace multihead::nn
