/// \file
/// Rotary position embedding (RoPE, arXiv:2104.09864).
#pragma once

#include <cstdint>
#include <span>

#include "multihead/export.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

class Context;

/// Rotary position embedding of queries and keys. Pair c of the rotary_dim / 2 pairs of elements is
/// rotated by the angle position * base^(-2 c / rotary_dim): (x, y) becomes (x cos - y sin, x sin +
/// y cos).
struct Rope {
  /// Which elements form a pair.
  enum class Style : uint8_t {
    kNone,         ///< no rotation
    kInterleaved,  ///< pair c is elements (2c, 2c + 1): the paper, GPT-J
    kHalf,         ///< pair c is elements (c, c + rotary_dim / 2): GPT-NeoX, Llama in Hugging Face
  };
  Style style = Style::kNone;  ///< which elements form a pair
  double base = 10000.0;       ///< base of the angles; finite, more than 0
  int64_t rotary_dim = 0;      ///< even; later elements are not rotated; 0 is the whole width
  /// Positions of queries and keys: (N) shared by the batch, or (B * N) row-major. Empty: keys at
  /// 0, 1, 2, ..., queries at i + offset of the call's alignment (offset 0 without an alignment).
  std::span<const int32_t> q_positions = {};
  std::span<const int32_t> k_positions = {};  ///< as q_positions

  /// True if queries and keys are rotated.
  constexpr bool given() const { return style != Style::kNone; }
};

/// Rotates x (B, H, N, d) into y of the same shape, for example before keys are appended to a
/// cache. positions (N) or (B * N); rope.q_positions and k_positions are not read. y may be x, with
/// the same strides, but may not overlap it otherwise. Errors: kShape, kOption, kMemory. Nothing is
/// written then.
[[nodiscard]] Status rotate(const ConstTensor& x, std::span<const int32_t> positions,
                            const Rope& rope, const Tensor& y, Context& context);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
