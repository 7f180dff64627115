// Interface of the kernels in products.cc and tile_products.cc: matrix products whose second
// operand is read row by row, for the backward of a linear projection.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace multihead::cpu {

// c (rows, columns) = a b, or c += a b. Strides in floats from row to row.
struct ProductParams {
  const float* a;  // (rows, depth); transposed (depth, rows)
  const float* b;  // (depth, columns)
  float* c;
  int64_t a_stride, b_stride, c_stride;
  int64_t rows, columns, depth;
  bool a_transposed;
  bool adds;
};

LinearLayout product_layout(const ProductParams& params, int threads);

// Computes the block of c at this row and column. The result's bits do not depend on the layout.
void product_block(const ProductParams& params, const LinearLayout& layout, int64_t first_row,
                   int64_t first_column, void* scratch);

// Computes products in bf16 tiles. Needs tile_unit() not null and a depth above 0.
LinearLayout tile_product_layout(const ProductParams& params, int threads);
void tile_product_block(const ProductParams& params, const LinearLayout& layout, int64_t first_row,
                        int64_t first_column, void* scratch);

// Adds the sum of column c of x (rows, width) to sums[c].
void add_column_sums(const float* x, int64_t stride, int64_t rows, int64_t width, float* sums);

}  // namespace multihead::cpu
