// 2^x for vectors of floats.
#if defined(MULTIHEAD_CPU_SIMD_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_EXP2_INL_H_
#undef MULTIHEAD_CPU_SIMD_EXP2_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_EXP2_INL_H_
#endif

#include <cstddef>

#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {

// External linkage: with one address, the same functions of several files are one in a
// WebAssembly module.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
inline constexpr float kExp2Table[] = {1.8775766733621336e-3F, 8.989340094734271e-3F,
                                       5.582631805001183e-2F,  2.4015361704534777e-1F,
                                       6.931530732000738e-1F,  9.999999250635296e-1F};
#else
// Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits; 127 more
// make those bits the biased exponent of 2^n.
inline constexpr float kExp2Table[] = {
    1.327647197932044e-3F, 9.675541334208834e-3F, 5.550713273542788e-2F, 2.4022119723848628e-1F,
    6.931469670647336e-1F, 1.0000000716546822F,   12582912.0F + 127.0F,  -127.0F};
#endif

inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kLog2E = 1.44269504088896340736F;

// Constants of exp2_clamped(), read through a pointer whose value V8 cannot know. V8 would rebuild
// known vector constants at every use, also in a loop; unknown ones are loaded once: gpt2-1k runs 5
// % (relaxed SIMD) to 10 % faster.
using Exp2Table = const float*;

inline Exp2Table exp2_table() {
  Exp2Table table = kExp2Table;
#if HWY_ARCH_WASM
  asm("" : "+r"(table));
#endif
  return table;
}

// Constant `index` of the table as an addend of exp2_polynomial().
template <class D>
HWY_INLINE hn::Vec<D> exp2_addend(D d, Exp2Table HWY_RESTRICT table, size_t index) {
  return hn::Set(d, table[index]);
}
#if HWY_ARCH_ARM_A64 && (HWY_TARGET & HWY_ALL_NEON) != 0 && !HWY_COMPILER_MSVC
// FMLA overwrites its addend, so a constant that stays in a register is copied before each use, and
// the multipliers' units do the copying. Volatile constants are loaded instead, by units that have
// nothing else to do: llvm-mca counts 3.8 cycles instead of 5.0 for the exponentials of a vector on
// Neoverse V2, 7.5 instead of 10.1 on N2.
template <float kValue>
inline const volatile float32x4_t kFourTimes = {kValue, kValue, kValue, kValue};
HWY_INLINE hn::Vec128<float> exp2_addend(DF, Exp2Table, size_t index) {
  switch (index) {
    case 1:
      return hn::Vec128<float>{kFourTimes<kExp2Table[1]>};
    case 2:
      return hn::Vec128<float>{kFourTimes<kExp2Table[2]>};
    case 3:
      return hn::Vec128<float>{kFourTimes<kExp2Table[3]>};
    case 4:
      return hn::Vec128<float>{kFourTimes<kExp2Table[4]>};
    default:
      return hn::Vec128<float>{kFourTimes<kExp2Table[5]>};
  }
}
#endif

// Evaluates the polynomials of kCount vectors step by step. One vector after the other would leave
// half of the units idle, because each polynomial is a chain of dependent operations. See
// kExpsAtOnce.
template <size_t kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp2_polynomial(D d, Exp2Table HWY_RESTRICT table, const V (&fraction)[kCount],
                                V (&poly)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    poly[i] = mul_add(hn::Set(d, table[0]), fraction[i], exp2_addend(d, table, 1));
  }
  for (size_t c = 2; c < 6; ++c) {
    for (size_t i = 0; i < kCount; ++i) {
      poly[i] = mul_add(poly[i], fraction[i], exp2_addend(d, table, c));
    }
  }
}

// True if exp2_clamped() is infinite for every x that is too large for a float. Elsewhere the bits
// of the exponent wrap around to a wrong number, so callers bound x.
inline constexpr bool kExp2Overflows = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;

// 2^x for x < 127, and for any x if kExp2Overflows; 0 for x <= -127 (AVX-512: where 2^x
// underflows); NaN for NaN. Relative error 7.5e-8, from a minimax polynomial of degree 5 on [-1/2,
// 1/2], found by a Remez exchange in exact arithmetic.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_clamped(D d, Exp2Table HWY_RESTRICT table, V x) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  // Polynomial on [0, 1): 2^x = 2^floor(x) * 2^(x - floor(x)), two instructions in addition to the
  // polynomial. 7 cycles for each vector instead of 8.4 (Zen 4); relative error 1.5e-7.
  const V fraction[1] = {minus_floor(x)};
#else
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, table[6]);
  x = at_least(hn::Set(d, table[7]), x);
  const V shifted = hn::Add(x, magic);
  const V fraction[1] = {hn::Sub(x, hn::Sub(shifted, magic))};
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
#endif
  V poly[1];
  exp2_polynomial(d, table, fraction, poly);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return times_exp2_floor(poly[0], x);
#else
  return hn::Mul(poly[0], power);
#endif
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_EXP2_INL_H_
