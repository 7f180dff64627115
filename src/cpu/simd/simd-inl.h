// Operations that Highway lacks, or implements with more instructions than needed. This file, like
// every -inl.h, is compiled once for each SIMD target, and has internal linkage, because files have
// flags of their own.
#if defined(MULTIHEAD_CPU_SIMD_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_SIMD_INL_H_
#undef MULTIHEAD_CPU_SIMD_SIMD_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_SIMD_INL_H_
#endif

#include <cstddef>
#include <limits>

#include "cpu/simd/file_namespace.h"
#include "hwy/highway.h"
#include "rules/integers.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_SIMD_INL_H_
