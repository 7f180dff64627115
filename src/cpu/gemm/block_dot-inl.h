// Dot products of blocks of 32 weights in int8 or int4 with activations in int8, see
// multihead/weights.h. A step multiplies as many whole blocks as a vector of bytes holds, at least
// one, and leaves 32-bit sums in the lanes of its blocks. No sum saturates: activations and int8
// weights are -127 to 127, int4 weights 0 to 15 here.
#if defined(MULTIHEAD_CPU_GEMM_BLOCK_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_GEMM_BLOCK_DOT_INL_H_
#undef MULTIHEAD_CPU_GEMM_BLOCK_DOT_INL_H_
#else
#define MULTIHEAD_CPU_GEMM_BLOCK_DOT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/simd/file_namespace.h"
#include "hwy/highway.h"
#include "multihead/weights.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBlock = kWeightBlock;

// Vectors of 16, 32 or 64 bytes.
constexpr size_t kStepBytes = HWY_HAVE_SCALABLE ? 16 : HWY_MIN(HWY_MAX_BYTES, 64);
using DI8 = hn::FixedTag<int8_t, kStepBytes>;
using DU8 = hn::RebindToUnsigned<DI8>;
using DI16 = hn::Repartition<int16_t, DI8>;
using DU16 = hn::Repartition<uint16_t, DI8>;
using DI32 = hn::Repartition<int32_t, DI8>;
using DU32 = hn::Repartition<uint32_t, DI8>;
using DStep = hn::Repartition<float, DI8>;
using VI8 = hn::Vec<DI8>;
using VI32 = hn::Vec<DI32>;

constexpr size_t kStepBlocks = kStepBytes == 64 ? 2 : 1;

// The instructions that multiply bytes.
#define MULTIHEAD_DOT_VNNI (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL)
#define MULTIHEAD_DOT_MADDUBS (HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3 && !MULTIHEAD_DOT_VNNI)
#if HWY_ARCH_WASM && defined(__wasm_relaxed_simd__)
#define MULTIHEAD_DOT_RELAXED 1
#else
#define MULTIHEAD_DOT_RELAXED 0
#endif

// WebAssembly multiplies 16-bit numbers, except for int4 with relaxed SIMD, whose dot products of
// bytes need a factor of 0 to 127: for int8 the signs would have to move to x, which takes 1.9
// times as long. Its instructions that also add to a sum are not used, because the baseline
// compiler of V8 11 gives wrong results for them.
template <WeightType kType>
constexpr bool kWidens = HWY_ARCH_WASM && !(MULTIHEAD_DOT_RELAXED && kType == WeightType::kInt4);
template <WeightType kType>
using Quant = std::conditional_t<kWidens<kType>, int16_t, int8_t>;

// The number that is added to a weight in its products: VNNI multiplies unsigned by signed bytes,
// and the numbers of int4 are stored as 0 to 15.
template <WeightType kType>
constexpr int kOffset = kType == WeightType::kInt4 ? 8
                        : MULTIHEAD_DOT_VNNI       ? 128
                                                   : 0;

// Place of activation `column` of a step, in the order of the products.
template <WeightType kType>
constexpr size_t place_of(size_t column) {
  const size_t block = column / kBlock, at = column % kBlock;
  const size_t half = at / 16, i = at % 16;
  if constexpr (kType == WeightType::kInt4) {
    // The low halves of two blocks, then the high halves.
    if (kStepBlocks == 2) return half * kBlock + block * 16 + i;
    // Even columns of the low half, of the high half; odd columns of both.
    if (kWidens<kType>) return i % 2 * 16 + half * 8 + i / 2;
  }
  return column;
}

// The scales of a vector of blocks. of_step() returns the scales of one step, each in the lanes of
// its block's products. With two blocks a step, the scales stay in a register: if they are written
// to memory and read back at once, decoding in int4 takes 1.17 times as long (SmolLM2-135M's shape,
// Zen 4).
template <WeightType kType>
class StepScales {
 public:
  static constexpr size_t kSteps = kStepBytes / sizeof(float) / kStepBlocks;

  HWY_INLINE void set(hn::Vec<DStep> scales) {
    if constexpr (kStepBlocks == 2) {
      scales_ = scales;
    } else {
      hn::Store(scales, DStep(), memory_);
    }
  }
  HWY_INLINE hn::Vec<DStep> of_step(size_t step) const {
    const DStep d;
    if constexpr (kStepBlocks == 2) {
      const DI32 di;
      const auto block = hn::Load(di, kType == WeightType::kInt8 ? kInt8Blocks : kInt4Blocks);
      const auto first = hn::Set(di, static_cast<int32_t>(step * kStepBlocks));
      return hn::TableLookupLanes(scales_, hn::IndicesFromVec(d, hn::Add(first, block)));
    } else {
      return hn::Set(d, memory_[step]);
    }
  }

 private:
  // The block of a step that each lane of products belongs to.
  HWY_ALIGN static constexpr int32_t kInt8Blocks[16] = {0, 0, 0, 0, 0, 0, 0, 0,
                                                        1, 1, 1, 1, 1, 1, 1, 1};
  HWY_ALIGN static constexpr int32_t kInt4Blocks[16] = {0, 0, 0, 0, 1, 1, 1, 1,
                                                        0, 0, 0, 0, 1, 1, 1, 1};

  hn::Vec<DStep> scales_;
  alignas(kStepBytes) float memory_[kStepBlocks == 2 ? 1 : kStepBytes / sizeof(float)];
};

#if MULTIHEAD_DOT_MADDUBS
// Sums of pairs of a 16-bit vector.
HWY_INLINE VI32 sum_of_pairs(hn::Vec<DI16> pairs) {
  return hn::WidenMulPairwiseAdd(DI32(), pairs, hn::Set(DI16(), 1));
}
#endif

// Products of signed by signed bytes, four at a time, added to `sum`.
[[maybe_unused]] HWY_INLINE VI32 add_products_of_bytes(VI8 w, VI8 x, VI32 sum) {
#if MULTIHEAD_DOT_MADDUBS
  const auto magnitude = hn::BitCast(DU8(), hn::Abs(w));
  const auto signed_x = hn::IfNegativeThenNegOrUndefIfZero(w, x);
  return hn::Add(sum, sum_of_pairs(hn::SatWidenMulPairwiseAdd(DI16(), magnitude, signed_x)));
#elif HWY_ARCH_ARM_A64 && !HWY_HAVE_SCALABLE
#if defined(__ARM_FEATURE_DOTPROD)
  return VI32{vdotq_s32(sum.raw, w.raw, x.raw)};
#else
  // Two products of numbers up to 127 fit in 16 bits.
  const int16x8_t low = vmull_s8(vget_low_s8(w.raw), vget_low_s8(x.raw));
  return VI32{vpadalq_s16(sum.raw, vmlal_high_s8(low, w.raw, x.raw))};
#endif
#else
  return hn::SumOfMulQuadAccumulate(DI32(), w, x, sum);
#endif
}

// Products of weights of 0 to 15 by signed bytes, four at a time, added to `sum`.
[[maybe_unused]] HWY_INLINE VI32 add_products_of_nibbles(hn::Vec<DU8> w, VI8 x, VI32 sum) {
#if MULTIHEAD_DOT_VNNI
  return hn::SumOfMulQuadAccumulate(DI32(), w, x, sum);
#elif MULTIHEAD_DOT_MADDUBS
  return hn::Add(sum, sum_of_pairs(hn::SatWidenMulPairwiseAdd(DI16(), w, x)));
#else
  return add_products_of_bytes(hn::BitCast(DI8(), w), x, sum);
#endif
}

// The weights of one step, unpacked once for all rows of activations.
template <WeightType kType>
struct StepWeights;

#if HWY_ARCH_WASM
// Sum of products of 32 pairs of 16-bit numbers.
HWY_INLINE VI32 dot_of_wide(const v128_t (&w)[4], const int16_t* HWY_RESTRICT x) {
  v128_t sum = wasm_i32x4_dot_i16x8(w[0], wasm_v128_load(x));
  for (size_t i = 1; i < 4; ++i) {
    sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(w[i], wasm_v128_load(x + i * 8)));
  }
  return VI32{sum};
}
#endif

template <>
struct StepWeights<WeightType::kInt8> {
#if HWY_ARCH_WASM
  // `count`: number of blocks, at most kStepBlocks.
  HWY_INLINE StepWeights(const uint8_t* HWY_RESTRICT from, size_t) {
    for (size_t i = 0; i < 4; ++i) w[i] = wasm_i16x8_load8x8(from + i * 8);
  }
  HWY_INLINE VI32 dot(const int16_t* HWY_RESTRICT x) const { return dot_of_wide(w, x); }
  v128_t w[4];
#else
  static constexpr size_t kVectors = kStepBytes < kBlock ? kBlock / kStepBytes : 1;

  HWY_INLINE StepWeights(const uint8_t* HWY_RESTRICT from, size_t count) {
    const DI8 d;
    const auto* const bytes = reinterpret_cast<const int8_t*>(from);
    for (size_t i = 0; i < kVectors; ++i) {
      w[i] = kStepBlocks == 1 || HWY_LIKELY(count == kStepBlocks)
                 ? hn::LoadU(d, bytes + i * kStepBytes)
                 : hn::LoadN(d, bytes, kBlock);
#if MULTIHEAD_DOT_VNNI
      w[i] = hn::Xor(w[i], hn::Set(d, static_cast<int8_t>(-128)));
#endif
    }
  }
  HWY_INLINE VI32 dot(const int8_t* HWY_RESTRICT x) const {
    const DI8 d;
    VI32 sum = hn::Zero(DI32());
    for (size_t i = 0; i < kVectors; ++i) {
      const VI8 factor = hn::Load(d, x + i * kStepBytes);
#if MULTIHEAD_DOT_VNNI
      sum = hn::SumOfMulQuadAccumulate(DI32(), hn::BitCast(DU8(), w[i]), factor, sum);
#else
      sum = add_products_of_bytes(w[i], factor, sum);
#endif
    }
    return sum;
  }
  VI8 w[kVectors];
#endif
};

template <>
struct StepWeights<WeightType::kInt4> {
#if MULTIHEAD_DOT_RELAXED
  HWY_INLINE StepWeights(const uint8_t* HWY_RESTRICT from, size_t) {
    const v128_t bytes = wasm_v128_load(from), mask = wasm_i8x16_const_splat(15);
    low = wasm_v128_and(bytes, mask);
    high = wasm_v128_and(wasm_u16x8_shr(bytes, 4), mask);
  }
  // Sums of four products fit in 16 bits.
  HWY_INLINE VI32 dot(const int8_t* HWY_RESTRICT x) const {
    const v128_t first = wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_v128_load(x), low);
    const v128_t second = wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_v128_load(x + 16), high);
    return VI32{wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_add(first, second))};
  }
  v128_t low, high;
#elif HWY_ARCH_WASM
  HWY_INLINE StepWeights(const uint8_t* HWY_RESTRICT from, size_t) {
    const v128_t bytes = wasm_v128_load(from), mask = wasm_i16x8_const_splat(15);
    w[0] = wasm_v128_and(bytes, mask);
    w[1] = wasm_v128_and(wasm_u16x8_shr(bytes, 4), mask);
    w[2] = wasm_v128_and(wasm_u16x8_shr(bytes, 8), mask);
    w[3] = wasm_u16x8_shr(bytes, 12);
  }
  HWY_INLINE VI32 dot(const int16_t* HWY_RESTRICT x) const { return dot_of_wide(w, x); }
  v128_t w[4];
#else
  static constexpr size_t kVectors = kStepBytes < kBlock ? 2 : 1;

  HWY_INLINE StepWeights(const uint8_t* HWY_RESTRICT from, [[maybe_unused]] size_t count) {
    const DU8 d;
    const auto mask = hn::Set(d, 15);
    if constexpr (kStepBytes == 16) {
      const auto bytes = hn::LoadU(d, from);
      w[0] = hn::And(bytes, mask);
      w[1] = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(DU16(), bytes))), mask);
    } else {
      // Both halves of the vector hold the same bytes, shifted by 0 and by 4 bits.
      const DU32 d32;
      const auto bytes = hn::BitCast(d32, both_halves(from, count));
      const auto shift = hn::ConcatUpperLower(d32, hn::Set(d32, 4), hn::Zero(d32));
      w[0] = hn::And(hn::BitCast(d, hn::Shr(bytes, shift)), mask);
    }
  }
  HWY_INLINE VI32 dot(const int8_t* HWY_RESTRICT x) const {
    const DI8 d;
#if MULTIHEAD_DOT_MADDUBS
    // All products of a byte pair and of both vectors fit in 16 bits.
    auto pairs = hn::SatWidenMulPairwiseAdd(DI16(), w[0], hn::Load(d, x));
    for (size_t i = 1; i < kVectors; ++i) {
      pairs =
          hn::Add(pairs, hn::SatWidenMulPairwiseAdd(DI16(), w[i], hn::Load(d, x + i * kStepBytes)));
    }
    return sum_of_pairs(pairs);
#else
    VI32 sum = hn::Zero(DI32());
    for (size_t i = 0; i < kVectors; ++i) {
      sum = add_products_of_nibbles(w[i], hn::Load(d, x + i * kStepBytes), sum);
    }
    return sum;
#endif
  }
  hn::Vec<DU8> w[kVectors];

 private:
  static HWY_INLINE hn::Vec<DU8> both_halves(const uint8_t* HWY_RESTRICT from, size_t count) {
    const DU8 d;
    const hn::Half<DU8> half;
    const auto bytes = kStepBlocks == 1 || HWY_LIKELY(count == kStepBlocks)
                           ? hn::LoadU(half, from)
                           : hn::LoadN(half, from, kBlock / 2);
    return hn::Combine(d, bytes, bytes);
  }
#endif
};

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_GEMM_BLOCK_DOT_INL_H_
