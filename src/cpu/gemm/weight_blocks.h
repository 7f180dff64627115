// Rows of weights in f16, bf16 and blocks of 32 numbers with a scale, see multihead/weights.h:
// conversions of blocks, and the kernel for few rows of x.
#pragma once

#include <cstddef>
#include <cstdint>

#include "multihead/tensor.h"
#include "multihead/weights.h"

namespace multihead::cpu {

// Rows of numbers, strides in elements; not int8.
struct NumberRows {
  const void* data;
  DType type;
  int64_t stride;
  int64_t columns;
};

// Returns the largest magnitude of rows first to end - 1; NaN if one of the numbers is NaN.
float largest_number(const NumberRows& rows, int64_t first, int64_t end);

// Stores rows first to end - 1 as int8 or int4. Their scales must be finite in f16.
void quantize_rows(const NumberRows& rows, WeightType type, std::byte* to, int64_t first,
                   int64_t end);

// Writes rows first to end - 1 of a matrix of blocks, whose data begin at row 0, to rows that are
// `stride` floats apart.
void dequantize_rows(const WeightMatrix& weight, int64_t first, int64_t end, float* to,
                     int64_t stride);

// True for int8 and fewer bits.
inline bool has_blocks(WeightType type) { return type >= WeightType::kInt8; }
// True if few rows of x have a kernel. In WebAssembly only types without upper bits do: with them,
// Q6_K decodes with half the speed of int8.
constexpr bool multiplies_few_rows(WeightType type) {
  using enum WeightType;
#if defined(__EMSCRIPTEN__)
  return type != kF32 && (type <= kInt4 || type == kQ4_1 || type == kQ4_K);
#else
  return type != kF32;
#endif
}
// Bits of a number besides the four of its nibble.
constexpr size_t high_bits(WeightType type) {
  using enum WeightType;
  return type == kQ6_K ? 2 : type == kQ5_0 || type == kQ5_1 || type == kQ5_K ? 1 : 0;
}
// True if eight blocks share scales, each with two factors.
constexpr bool shares_scales(WeightType type) { return type >= WeightType::kQ4_K; }
// True if blocks have a second scale, for what is added to the products or subtracted.
constexpr bool has_leasts(WeightType type) {
  return type > WeightType::kQ5_0 && type < WeightType::kQ6_K;
}

// Number of blocks of a row.
inline int64_t weight_blocks(int64_t columns) {
  return (columns + kWeightBlock - 1) / kWeightBlock;
}

// Places of the parts of a row of blocks, in bytes; the scales come first.
struct RowParts {
  size_t leasts, factors, bits, numbers;
};
constexpr RowParts row_parts(WeightType type, size_t blocks) {
  const size_t scales = (shares_scales(type) ? (blocks + 7) / 8 : blocks) * sizeof(Float16);
  RowParts at{scales, has_leasts(type) ? 2 * scales : scales, 0, 0};
  at.bits = at.factors + (shares_scales(type) ? 2 * blocks : 0);
  at.numbers = at.bits + 4 * blocks * high_bits(type);
  return at;
}

// ---- few_rows.cc: y = x W^T + bias for a few rows of x and weights that are not f32. ----

struct FewRows {
  const float* x;  // (rows, weight.columns)
  int64_t x_stride;
  int64_t rows;  // 1 to kFewWeightRows
  WeightMatrix weight;
  const float* bias;  // optional
  float* y;           // (rows, weight.rows)
  int64_t y_stride;
};

// Bytes of memory of a call.
uint64_t few_rows_memory(const FewRows& call);

// Writes x to the memory of the call in the type that few_rows_outputs() multiplies.
void prepare_few_rows(const FewRows& call, void* memory);

// Computes outputs first to end - 1 of all rows. `first` is a multiple of kFewRowsOutputs. The bits
// of an output depend on its own row and weights alone.
inline constexpr int64_t kFewRowsOutputs = 16;
void few_rows_outputs(const FewRows& call, const void* memory, int64_t first, int64_t end);

}  // namespace multihead::cpu
