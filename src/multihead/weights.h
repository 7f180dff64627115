/// \file
/// Weight matrices in five types, from f32 down to 4 bits, and the products with them.
///
/// Integers are stored in blocks of 32 consecutive columns of a row. The blocks have the form of
/// llama.cpp's Q8_0 and Q4_0: a scale d in f16, and
///
/// - int8: d = a / 127, where a is the block's largest magnitude; q = w / d, rounded to nearest,
///   -127 to 127; a weight is q * d
/// - int4: d = m / -8, where m is the block's number of the largest magnitude (the first of them),
///   with its sign; q = min(15, floor(w / d + 8.5)); a weight is (q - 8) * d
///
/// d is rounded to f16 before q is computed: to nearest, but away from zero where a or m would not
/// fit otherwise, which only happens below 2^-14. If the columns are not a multiple of 32, the
/// row's last block is filled up with zeros. A row holds the scales of its blocks, then the numbers
/// of its blocks: 32 bytes a block in int8, 16 bytes in int4. Byte i of an int4 block holds columns
/// i (its low four bits) and i + 16 (its high four bits).
///
/// Errors of a weight w against the number that quantize() was given:
///
/// - f32: 0
/// - f16: |w| * 2^-11 + 2^-25
/// - bf16: |w| * 2^-8 + 2^-134
/// - int8: a * 0.00396 + 2^-24, where a is the largest magnitude of the block
/// - int4: a * 0.1255 + 2^-22; half of a / 8 except for numbers that are near -m
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// How the numbers of a weight matrix are stored.
enum class WeightType : uint8_t {
  kF32,   ///< float
  kF16,   ///< Float16
  kBF16,  ///< BFloat16
  kInt8,  ///< 8 bits, and a scale in f16 for 32 numbers: 8.5 bits a weight
  kInt4,  ///< 4 bits, and a scale in f16 for 32 numbers: 4.5 bits a weight
};

/// "f32", "f16", "bf16", "int8" or "int4".
constexpr const char* name_of(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kF16:
      return "f16";
    case WeightType::kBF16:
      return "bf16";
    case WeightType::kInt8:
      return "int8";
    case WeightType::kInt4:
      return "int4";
  }
  return "unknown";
}

/// Columns that share a scale.
inline constexpr int64_t kWeightBlock = 32;

/// Bytes of one row of `columns` weights.
constexpr int64_t weight_row_bytes(WeightType type, int64_t columns) {
  const int64_t blocks = (columns + kWeightBlock - 1) / kWeightBlock;
  switch (type) {
    case WeightType::kF32:
      return 4 * columns;
    case WeightType::kF16:
    case WeightType::kBF16:
      return 2 * columns;
    case WeightType::kInt8:
      return 34 * blocks;
    case WeightType::kInt4:
      return 18 * blocks;
  }
  return 0;
}

/// Bytes of a matrix, which is `rows` rows without gaps.
constexpr int64_t weight_bytes(WeightType type, int64_t rows, int64_t columns) {
  return rows * weight_row_bytes(type, columns);
}

/// A view of a weight matrix (rows, columns) = (outputs, inputs), as torch.nn.Linear has it. `data`
/// may be null if there are no elements. f32 needs addresses that are multiples of 4, the other
/// types multiples of 2.
struct WeightMatrix {
  const void* data = nullptr;          ///< first row
  WeightType type = WeightType::kF32;  ///< how the numbers are stored
  int64_t rows = 0;                    ///< outputs
  int64_t columns = 0;                 ///< inputs

  /// Bytes of all rows.
  constexpr int64_t bytes() const { return weight_bytes(type, rows, columns); }
  /// Rows first to first + count - 1, for example the queries' part of a fused projection.
  constexpr WeightMatrix part(int64_t first, int64_t count) const {
    WeightMatrix some = *this;
    if (data != nullptr) {
      some.data = static_cast<const std::byte*>(data) + first * weight_row_bytes(type, columns);
    }
    some.rows = count;
    return some;
  }
};

/// Stores numbers (rows, columns) as weights of another type. Rows may be strided, the last axis is
/// contiguous.
///
/// - to: weight_bytes(type, rows, columns) bytes, which may not overlap `from`
///
/// A matrix may be stored in pieces: each call writes whole rows, which are independent of one
/// another.
///
/// Errors: kShape; kOption (an unknown type, or a number that is not finite or that the type cannot
/// hold: its magnitude must be below 65520 in f16, 8.32e6 in int8 and 5.24e5 in int4); kMemory. On
/// an error, nothing is written.
[[nodiscard]] Status quantize(const ConstAnyTensor& from, WeightType type, void* to,
                              Context& context);

/// Reads rows of weights as floats: row i of `to` is row rows[i] of the matrix, as the embedding of
/// tokens needs it.
///
/// - to (rows.size(), columns), row stride free, last axis contiguous
///
/// Errors: kShape; kOption (an unknown type, or a row that the matrix does not have). On an error,
/// nothing is written.
[[nodiscard]] Status dequantize(const WeightMatrix& weight, std::span<const int32_t> rows,
                                const Tensor& to);

/// y = x W^T + bias.
///
/// - x (rows, in), row stride free, last axis contiguous
/// - weight (out, in)
/// - bias (out), optional
/// - y (rows, out), like x; may not overlap the inputs
///
/// Sums are f32, and weights are the exact numbers that dequantize() gives. y is bit-identical for
/// any number of threads.
///
/// With int8 or int4 and at most kFewWeightRows rows, x is rounded too: each block of 32 numbers of
/// a row to multiples of its largest magnitude a / 127, an error of at most a / 254 + 2^-120 per
/// number. If x is not finite in one place, its row of y has no finite number.
///
/// Errors: kShape, kOption (an unknown type), kMemory. On an error, nothing is written.
[[nodiscard]] Status linear(const ConstTensor& x, const WeightMatrix& weight,
                            const ConstTensor& bias, const Tensor& y, Context& context);

/// Most rows of x that linear() multiplies with integers.
inline constexpr int64_t kFewWeightRows = 8;

}  // namespace multihead
MULTIHEAD_PUBLIC_END
