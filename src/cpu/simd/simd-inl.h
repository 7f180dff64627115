// Vectors of floats. This file, like every -inl.h, is compiled once for each SIMD target, and has
// internal linkage, because files have flags of their own.
#if defined(MULTIHEAD_CPU_SIMD_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_SIMD_INL_H_
#undef MULTIHEAD_CPU_SIMD_SIMD_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/simd/file_namespace.h"
#include "hwy/highway.h"
#include "rules/integers.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- Operations that Highway lacks, or implements with more instructions than needed. ----

using DF = hn::ScalableTag<float>;

inline constexpr float kNegInf = -std::numeric_limits<float>::infinity();

using rules::ceil_div;
using rules::round_up;

// Inlines a lambda, so that the variables it captures stay in registers during a loop; a call would
// keep them in memory.
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
#define MULTIHEAD_INLINED __attribute__((always_inline))
#else
#define MULTIHEAD_INLINED
#endif

// a * b + c. Highway up to 1.2 uses separate multiply and add on WebAssembly even with relaxed
// SIMD, and LLVM does not fuse them: one instruction instead of two in the inner loop.
template <class V>
HWY_INLINE V mul_add(V a, V b, V c) {
#if HWY_ARCH_WASM && defined(__wasm_relaxed_simd__)
  return V{wasm_f32x4_relaxed_madd(a.raw, b.raw, c.raw)};
#else
  return hn::MulAdd(a, b, c);
#endif
}

// Larger of `bound` and x; NaN if x is NaN. Highway's Max() depends on the target if one argument
// is NaN: x86 and WebAssembly return the second argument; ARM64 (FMAXNM), RISC-V and EMU128 return
// the number.
template <class V>
HWY_INLINE V at_least(V bound, V x) {
#if HWY_TARGET == HWY_WASM || (HWY_ARCH_X86 && HWY_TARGET <= HWY_SSE2)
  return hn::Max(bound, x);
#else
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
#endif
}
#if HWY_ARCH_ARM && (HWY_TARGET & HWY_ALL_NEON) != 0
// One instruction (FMAX), which Highway does not offer.
HWY_INLINE hn::Vec128<float> at_least(hn::Vec128<float> bound, hn::Vec128<float> x) {
  return hn::Vec128<float>{vmaxq_f32(bound.raw, x.raw)};
}
#endif

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
// x - floor(x), and a * 2^floor(x): single instructions of AVX-512 that Highway does not offer.
// Infinities and NaN are handled as in the formulas.
template <class T>
HWY_INLINE hn::Vec512<T> minus_floor(hn::Vec512<T> x) {
  constexpr int kFloor = 1;
  return hn::Vec512<T>{_mm512_reduce_ps(x.raw, kFloor)};
}
template <class T>
HWY_INLINE hn::Vec512<T> times_exp2_floor(hn::Vec512<T> a, hn::Vec512<T> x) {
  return hn::Vec512<T>{_mm512_scalef_ps(a.raw, x.raw)};
}
#endif

// True if the multiply-add takes one factor from a lane of a vector (FMLA by element), so that
// elements of A need no broadcast.
inline constexpr bool kMultipliesByLane = HWY_ARCH_ARM_A64 && (HWY_TARGET & HWY_ALL_NEON) != 0;

// Multiplies one element of A by a vector of B in the micro-kernel.
struct F32Arithmetic {
  template <class V>
  static HWY_INLINE V multiply_add(V a, V b, V c) {
    return mul_add(a, b, c);
  }
#if HWY_ARCH_ARM_A64 && (HWY_TARGET & HWY_ALL_NEON) != 0
  // The element is lane kLane of a.
  template <size_t kLane, class V>
  static HWY_INLINE V multiply_add_lane(V a, V b, V c) {
    return V{vfmaq_laneq_f32(c.raw, b.raw, a.raw, kLane)};
  }
#endif
};

// Pairs of bf16, summed in f32. Each lane of a float vector holds the bits of two numbers.
#undef MULTIHEAD_HAS_BF16_PAIRS
#if HWY_TARGET <= HWY_AVX3_ZEN4 && HWY_ARCH_X86
#define MULTIHEAD_HAS_BF16_PAIRS 1
struct Bf16PairArithmetic {
  template <class V>
  static HWY_INLINE V multiply_add(V a, V b, V c) {
    return V{_mm512_dpbf16_ps(c.raw, reinterpret_cast<__m512bh>(a.raw),
                              reinterpret_cast<__m512bh>(b.raw))};
  }
};
#elif HWY_TARGET == HWY_NEON_BF16
#define MULTIHEAD_HAS_BF16_PAIRS 1
struct Bf16PairArithmetic {
  template <class V>
  static HWY_INLINE V multiply_add(V a, V b, V c) {
    return V{vbfdotq_f32(c.raw, vreinterpretq_bf16_f32(a.raw), vreinterpretq_bf16_f32(b.raw))};
  }
  // The pair is lane kLane of a. From a copied float clang 19 makes one BFDOT by element, from
  // vbfdotq_laneq_f32() a copy and a BFDOT.
  template <size_t kLane, class V>
  static HWY_INLINE V multiply_add_lane(V a, V b, V c) {
    const float32x4_t pairs = vdupq_laneq_f32(a.raw, kLane);
    return V{vbfdotq_f32(c.raw, vreinterpretq_bf16_f32(b.raw), vreinterpretq_bf16_f32(pairs))};
  }
};
#else
#define MULTIHEAD_HAS_BF16_PAIRS 0
#endif
inline constexpr bool kHasBf16Pairs = MULTIHEAD_HAS_BF16_PAIRS != 0;

// ---- Rows of floats of any width, a vector at a time. ----

// Loads or stores up to `count` elements; missing lanes load as 0. The branch avoids masked stores,
// which are microcode on AVX2: with them, 512x64x768 fell from 101 to 77 GFLOP/s.
template <class D>
HWY_INLINE hn::Vec<D> load_up_to(D d, const float* from, size_t count) {
  return HWY_LIKELY(count >= hn::Lanes(d)) ? hn::LoadU(d, from) : hn::LoadN(d, from, count);
}

template <class D>
HWY_INLINE void store_up_to(D d, hn::Vec<D> values, float* to, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) {
    hn::StoreU(values, d, to);
  } else {
    hn::StoreN(values, d, to, count);
  }
}

// All lanes of a vector, or only the first few at the end of a row.
struct AllLanes {
  hn::Vec<DF> load(const float* from) const { return hn::LoadU(DF(), from); }
  void store(hn::Vec<DF> value, float* to) const { hn::StoreU(value, DF(), to); }
  hn::Vec<DF> or_zero(hn::Vec<DF> value) const { return value; }
};
struct FirstLanes {
  size_t lanes;
  hn::Vec<DF> load(const float* from) const { return hn::LoadN(DF(), from, lanes); }
  void store(hn::Vec<DF> value, float* to) const { hn::StoreN(value, DF(), to, lanes); }
  hn::Vec<DF> or_zero(hn::Vec<DF> value) const {
    return hn::IfThenElseZero(hn::FirstN(DF(), lanes), value);
  }
};

// Calls each(column, lanes) for every vector of a row.
template <class Each>
HWY_INLINE void over_columns(int64_t width, Each&& each) {
  const auto columns = static_cast<size_t>(width);
  const size_t lanes = hn::Lanes(DF());
  size_t column = 0;
  for (; column + lanes <= columns; column += lanes) each(column, AllLanes());
  if (column < columns) each(column, FirstLanes{columns - column});
}

// AllLanes or FirstLanes, decided at run time.
struct UpToLanes {
  size_t rest;  // remaining elements of the row
  hn::Vec<DF> load(const float* from) const { return load_up_to(DF(), from, rest); }
  void store(hn::Vec<DF> value, float* to) const { store_up_to(DF(), value, to, rest); }
  hn::Vec<DF> or_else(hn::Vec<DF> value, float other) const {
    if (HWY_LIKELY(rest >= hn::Lanes(DF()))) return value;
    return hn::IfThenElse(hn::FirstN(DF(), rest), value, hn::Set(DF(), other));
  }
};

// over_columns() with one copy of the body instead of two, for long bodies.
template <class Each>
HWY_INLINE void over_columns_compact(int64_t width, Each&& each) {
  const auto columns = static_cast<size_t>(width);
  for (size_t column = 0; column < columns; column += hn::Lanes(DF())) {
    each(column, UpToLanes{columns - column});
  }
}

// Sum of value(column, lanes) over a row.
template <class Value>
HWY_INLINE float sum_of(int64_t width, Value&& value) {
  const DF d;
  auto sum = hn::Zero(d);
  over_columns(width, [&](size_t column, auto lanes) {
    sum = hn::Add(sum, lanes.or_zero(value(column, lanes)));
  });
  return hn::ReduceSum(d, sum);
}

// ---- Transposes rows of Q, masks and biases, so that queries are in the lanes as in the scores.
// ----

template <class D>
inline constexpr size_t kSide = HWY_MAX_LANES_D(D);

// A square: as many vectors as a vector has lanes.
template <class D>
struct Square {
  // Written out, because the constructors of Highway's vectors for NEON_BF16 are inlined only into
  // functions of that target, and the implicit one is none.
  HWY_INLINE Square() {}  // NOLINT(modernize-use-equals-default)

  hn::Vec<D> row[kSide<D>];
};

// Transposes by log2(side) perfect shuffles of all elements. Each shuffle moves one bit of an
// element's index from the row to the column.
template <class D>
HWY_INLINE void transpose([[maybe_unused]] D d, [[maybe_unused]] Square<D>& square) {
  if constexpr (kSide < D >> 1) {
    constexpr size_t kHalf = kSide<D> / 2;
    for (size_t round = 1; round < kSide<D>; round *= 2) {
      Square<D> next;
      for (size_t i = 0; i < kHalf; ++i) {
        next.row[2 * i] = hn::InterleaveWholeLower(d, square.row[i], square.row[i + kHalf]);
        next.row[2 * i + 1] = hn::InterleaveWholeUpper(d, square.row[i], square.row[i + kHalf]);
      }
      square = next;
    }
  }
}

// Returns in lane i the sum of the lanes of row i. Each round adds the halves of two rows at once.
template <class D>
HWY_INLINE hn::Vec<D> sum_of_lanes(D d, Square<D>& square) {
  for (size_t half = kSide<D> / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) {
      square.row[i] = hn::Add(hn::InterleaveWholeLower(d, square.row[i], square.row[i + half]),
                              hn::InterleaveWholeUpper(d, square.row[i], square.row[i + half]));
    }
  }
  return square.row[0];
}

// Loads elements first .. first + count - 1, `stride` apart, of `given` rows. Missing rows repeat
// the last row; elements beyond `count` are `fill`.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE Square<D> load_square(D d, const T* const* rows, size_t given, int64_t first,
                                 int64_t stride, size_t count, T fill) {
  constexpr size_t kLast = kSide<D> - 1;
  Square<D> square;
  if (HWY_LIKELY(stride == 1 && count > kLast && given > kLast)) {
    for (size_t i = 0; i <= kLast; ++i) square.row[i] = hn::LoadU(d, rows[i] + first);
    return square;
  }
  HWY_ALIGN T gathered[kSide<D> * kSide<D>];
  for (size_t i = 0; i <= kLast; ++i) {
    const T* row = rows[HWY_MIN(i, given - 1)] + first * stride;
    T* to = gathered + i * kSide<D>;
    for (size_t j = 0; j <= kLast; ++j) {
      to[j] = j < count ? row[static_cast<int64_t>(j) * stride] : fill;
    }
  }
  for (size_t i = 0; i <= kLast; ++i) square.row[i] = hn::Load(d, gathered + i * kSide<D>);
  return square;
}

template <class D>
HWY_INLINE void store_square(D d, const Square<D>& square, hn::TFromD<D>* HWY_RESTRICT to) {
  for (size_t i = 0; i < kSide<D>; ++i) hn::Store(square.row[i], d, to + i * kSide<D>);
}

// to[c * stride + r] = factor * rows[r][c] for r < Lanes(d), c < width.
template <class D>
HWY_NOINLINE void transpose_rows(D d, const float* const* rows, size_t width, float factor,
                                 float* HWY_RESTRICT to, size_t stride) {
  size_t c = 0;
  const auto by = hn::Set(d, factor);
  for (; c + kSide<D> <= width; c += kSide<D>) {
    Square<D> square;
    for (size_t r = 0; r < kSide<D>; ++r) square.row[r] = hn::Mul(hn::LoadU(d, rows[r] + c), by);
    transpose(d, square);
    for (size_t r = 0; r < kSide<D>; ++r) hn::StoreU(square.row[r], d, to + (c + r) * stride);
  }
  for (; c < width; ++c) {
    for (size_t r = 0; r < kSide<D>; ++r) to[c * stride + r] = rows[r][c] * factor;
  }
}

// transpose_rows() for bf16: to[c * stride + r] holds the bits of numbers 2c and 2c + 1 of row r.
template <class D>
HWY_NOINLINE void transpose_pairs(D d, const uint16_t* const* rows, size_t pairs,
                                  float* HWY_RESTRICT to, size_t stride) {
  const hn::Repartition<uint16_t, D> halves;
  size_t c = 0;
  for (; c + kSide<D> <= pairs; c += kSide<D>) {
    Square<D> square;
    for (size_t r = 0; r < kSide<D>; ++r) {
      square.row[r] = hn::BitCast(d, hn::LoadU(halves, rows[r] + 2 * c));
    }
    transpose(d, square);
    for (size_t r = 0; r < kSide<D>; ++r) hn::StoreU(square.row[r], d, to + (c + r) * stride);
  }
  for (; c < pairs; ++c) {
    for (size_t r = 0; r < kSide<D>; ++r) {
      std::memcpy(to + c * stride + r, rows[r] + 2 * c, sizeof(float));
    }
  }
}

// Transposes twice as many rows of bf16 as a vector has lanes, in whole vectors of columns: to[c *
// stride + r] = rows[r][c].
template <class D>
HWY_NOINLINE void transpose_halves(D d, const uint16_t* const* rows, size_t columns,
                                   uint16_t* HWY_RESTRICT to, size_t stride) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> half;
  for (size_t c = 0; c < columns; c += kSide<D>) {
    Square<D> square;
    for (size_t i = 0; i < kSide<D>; ++i) {
      const auto low = hn::PromoteTo(du, hn::LoadU(half, rows[2 * i] + c));
      const auto high = hn::PromoteTo(du, hn::LoadU(half, rows[2 * i + 1] + c));
      square.row[i] = hn::BitCast(d, hn::Or(low, hn::ShiftLeft<16>(high)));
    }
    transpose(d, square);
    for (size_t r = 0; r < kSide<D>; ++r) {
      hn::StoreU(square.row[r], d, reinterpret_cast<float*>(to + (c + r) * stride));
    }
  }
}

// to[r][c] = change(from[c * stride + r]) for c < width. Null rows are skipped.
template <class D, class Change>
HWY_INLINE void transpose_back(D d, const float* HWY_RESTRICT from, size_t stride, size_t width,
                               float* const* to, const Change& change) {
  for (size_t c = 0; c < width; c += kSide<D>) {
    const size_t count = HWY_MIN(kSide<D>, width - c);
    Square<D> square;
    for (size_t i = 0; i < kSide<D>; ++i) {
      square.row[i] = change(hn::LoadU(d, from + HWY_MIN(c + i, width - 1) * stride));
    }
    transpose(d, square);
    for (size_t r = 0; r < kSide<D>; ++r) {
      if (to[r] == nullptr) continue;
      if (HWY_LIKELY(count == kSide<D>)) {
        hn::StoreU(square.row[r], d, to[r] + c);
      } else {
        hn::StoreN(square.row[r], d, to[r] + c, count);
      }
    }
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_SIMD_INL_H_
