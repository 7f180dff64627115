/// \file
/// Weight matrices from f32 down to 4 bits, and the products with them.
///
/// Integers are stored in blocks of 32 consecutive columns of a row. Those of int8 and int4 have
/// the form of llama.cpp's Q8_0 and Q4_0: a scale d in f16, and
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
/// The other blocks are those of llama.cpp's files, which quantize() does not make:
///
/// - q5_0: (q - 16) * d; q4_1 and q5_1: q * d + e, with q from 0 to 15 or 31 and e in f16
/// - q4_k, q5_k: q * (d * s) - e * m; q6_k: (q - 32) * (d * s). Eight blocks of a row share d and
/// e;
///   s and m are a signed byte for each block, in q6_k s is one byte for each 16 columns
///
/// A row holds all d, all e, the first bytes of all blocks, the second bytes, the upper bits of q,
/// and its lower four bits as int4 has them. Of all fifth bits, then all sixth, two bytes a block
/// are for columns 0 to 15 of all blocks; columns 16 to 31 follow. Bit i belongs to the i-th of the
/// columns.
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
  kQ5_0,  ///< llama.cpp's Q5_0: 5.5 bits a weight
  kQ4_1,  ///< Q4_1: 5 bits
  kQ5_1,  ///< Q5_1: 6 bits
  kQ4_K,  ///< Q4_K: 4.625 bits
  kQ5_K,  ///< Q5_K: 5.625 bits
  kQ6_K,  ///< Q6_K: 6.5625 bits
};

/// "f32", "f16", "bf16", "int8", "int4", "q5_0", "q4_1", "q5_1", "q4_k", "q5_k" or "q6_k".
constexpr const char* name_of(WeightType type) {
  constexpr const char* kNames[] = {"f32",  "f16",  "bf16", "int8", "int4", "q5_0",
                                    "q4_1", "q5_1", "q4_k", "q5_k", "q6_k"};
  return type <= WeightType::kQ6_K ? kNames[static_cast<size_t>(type)] : "unknown";
}

/// Columns that share a scale.
inline constexpr int64_t kWeightBlock = 32;

/// Bytes of one row of `columns` weights.
constexpr int64_t weight_row_bytes(WeightType type, int64_t columns) {
  // Bytes of a number without blocks, of a block, and of what eight blocks share.
  constexpr int8_t kBytes[][3] = {{4},     {2},     {2},        {0, 34},    {0, 18},   {0, 22},
                                  {0, 20}, {0, 24}, {0, 18, 4}, {0, 22, 4}, {0, 26, 2}};
  if (type > WeightType::kQ6_K) return 0;
  const auto& [number, block, shared] = kBytes[static_cast<size_t>(type)];
  const int64_t blocks = (columns + kWeightBlock - 1) / kWeightBlock;
  return number * columns + block * blocks + shared * ((blocks + 7) / 8);
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
/// Errors: kShape; kOption (another type than f32 to int4, or a number that is not finite or that
/// the type cannot hold: its magnitude must be below 65520 in f16, 8.32e6 in int8 and 5.24e5 in
/// int4); kMemory. On an error, nothing is written.
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
/// With blocks and at most kFewWeightRows rows, x is rounded too: each block of 32 numbers of
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
