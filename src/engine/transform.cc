#include "engine/transform.h"

#include <cmath>

#include "engine/scratch.h"
#include "engine/threads.h"
#include "engine/validate.h"
#include "rules/half.h"
#include "rules/rope.h"

namespace multihead::engine {
namespace {

void decode_row(const ConstAnyTensor& x, int64_t offset, int64_t width, float* to) {
  const auto decode = [&]<class T>(const T* from) {
    for (int64_t c = 0; c < width; ++c) to[c] = rules::to_float(from[c]);
  };
  switch (x.dtype) {
    case DType::kF32:
      return decode(static_cast<const float*>(x.data) + offset);
    case DType::kF16:
      return decode(static_cast<const Float16*>(x.data) + offset);
    case DType::kBF16:
      return decode(static_cast<const BFloat16*>(x.data) + offset);
  }
}

void normalise_row(const Transform& transform, int64_t width, float* row) {
  double squares = 0.0;
  for (int64_t c = 0; c < width; ++c) {
    squares += static_cast<double>(row[c]) * static_cast<double>(row[c]);
  }
  const double mean = squares / static_cast<double>(width);
  const auto factor =
      static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(transform.epsilon)));
  for (int64_t c = 0; c < width; ++c) {
    row[c] *= transform.gain.empty() ? factor : factor * transform.gain[static_cast<size_t>(c)];
  }
}

int64_t position_of(const Transform& transform, int64_t batch, int64_t row, int64_t rows) {
  const auto given = static_cast<int64_t>(transform.positions.size());
  if (given == 0) {
    const rules::Visibility* const rule = transform.query_positions;
    return rule == nullptr ? row : rule->position(batch, row);
  }
  return transform.positions[static_cast<size_t>(given == rows ? row : batch * rows + row)];
}

int64_t rotated_width(const Rope& rope, int64_t width) {
  if (rope.style == Rope::Style::kNone) return 0;
  return rope.rotary_dim != 0 ? rope.rotary_dim : width;
}

}  // namespace

Status reserve_for_transform(const Rope& rope, int64_t width, Context& context) {
  // Cosines and sines of one token, for all its heads.
  const auto bytes = static_cast<uint64_t>(rotated_width(rope, width)) * sizeof(float) + 1;
  return context.scratch().reserve(context.threads(), bytes);
}

Status transform_rows(const ConstAnyTensor& x, const Transform& transform, const Tensor& y,
                      Context& context) {
  const int64_t batch = x.shape[0], heads = x.shape[1], rows = x.shape[2], width = x.shape[3];
  const Rope& rope = transform.rope;
  const bool rotates = rope.style != Rope::Style::kNone;
  const int64_t rotary = rotated_width(rope, width);
  if (Status status = reserve_for_transform(rope, width, context); !status.ok()) return status;
  const Scratch& scratch = context.scratch();
  parallel_for(context.threads(), batch * rows, [&](int64_t token, int thread) {
    const int64_t b = token / rows;
    const int64_t row = token % rows;
    if (!transform.lengths.empty() && row >= transform.lengths[static_cast<size_t>(b)]) return;
    auto* const cos = static_cast<float*>(scratch.of_thread(thread));
    float* const sin = cos + rotary / 2;
    if (rotates) {
      rules::fill_angles(position_of(transform, b, row, rows), rope.base, rotary, cos, sin);
    }
    for (int64_t head = 0; head < heads; ++head) {
      float* const to = y.data + b * y.strides[0] + head * y.strides[1] + row * y.strides[2];
      decode_row(x, b * x.strides[0] + head * x.strides[1] + row * x.strides[2], width, to);
      if (transform.normalise) normalise_row(transform, width, to);
      rules::rotate_vector(to, to, width, rotary, rope.style, cos, sin);
    }
  });
  return {};
}

}  // namespace multihead::engine

namespace multihead {

Status rotate(const ConstTensor& x, std::span<const int32_t> positions, const Rope& rope,
              const Tensor& y, Context& context) {
  using namespace engine;  // NOLINT(google-build-using-namespace)
  if (Status status = validate_rank("x", "(B, H, N, d)", x, 4); !status.ok()) return status;
  for (const Status& status :
       {validate_exact("x", "(B, H, N, d)", x, x.shape),
        validate_exact("y", "(B, H, N, d)", y, x.shape), validate_rope(rope, x.shape[3]),
        validate_positions("positions", positions, x.shape[0], x.shape[2])}) {
    if (!status.ok()) return status;
  }
  if (rope.style == Rope::Style::kNone) return option_error("rope.style", "a style", "none");
  if (positions.empty() && x.shape.elements() != 0) {
    return option_error("positions", "one for each row", "none");
  }
  return transform_rows(x, {.rope = rope, .positions = positions}, y, context);
}

}  // namespace multihead
