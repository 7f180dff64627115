// Interface of the kernel in few_rows.cc: y = x W^T + bias for a few rows of x and weights in f16,
// bf16, int8 or int4.
#pragma once

#include <cstdint>

#include "multihead/weights.h"

namespace multihead::cpu {

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
