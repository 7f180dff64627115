// Rows of numbers, written in another type.
#pragma once

#include <cstdint>

#include "multihead/tensor.h"

namespace multihead::cpu {

// Strides from row to row, in elements. The target does not overlap the source.
struct ConvertRows {
  const void* from;
  DType from_type;  // not int8
  int64_t from_stride;
  void* to;
  DType to_type;
  int64_t to_stride;
  float* scales;  // to_type kInt8: one per row
  int64_t scale_stride;
  int64_t rows, width;
};

// Rounds to nearest, ties to even, with the bits of rules::from_float(). An int8 is the number
// divided by the row's scale, which is the row's largest magnitude / 127. If a row contains a NaN
// or an infinity, so does its scale, and its integers are 1.
void convert_rows(const ConvertRows& call);

}  // namespace multihead::cpu
