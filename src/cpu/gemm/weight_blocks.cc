#include "cpu/gemm/weight_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "rules/element.h"
#include "rules/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/weight_blocks.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBlock = kWeightBlock;

// Vectors that fill a block exactly, for any length of the target's vectors.
using DB = hn::CappedTag<float, kBlock>;
using VB = hn::Vec<DB>;

// Reads numbers at .. at + count - 1 of the rows, then zeros up to a whole block.
HWY_INLINE void read_block(const NumberRows& rows, int64_t at, size_t count,
                           float* HWY_RESTRICT block) {
  const DB d;
  rules::visit_element(rows.type, [&]<class T>(std::type_identity<T>) HWY_ATTR {
    using Stored = typename SimdElement<T>::type;
    const auto* const from = static_cast<const Stored*>(rows.data) + at;
    const FloatReader<Stored, DB> read(d);
    if (HWY_LIKELY(count == kBlock)) {
      for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) hn::Store(read(from + i), d, block + i);
      return;
    }
    widen(d, from, count, kBlock, 1.0F, block);
  });
}

// Calls visit(block, index) for every block of a row.
template <class Visit>
HWY_INLINE void over_blocks(const NumberRows& rows, int64_t row, const Visit& visit) {
  HWY_ALIGN float block[kBlock];
  const auto columns = static_cast<size_t>(rows.columns);
  for (size_t c = 0; c < columns; c += kBlock) {
    read_block(rows, row * rows.stride + static_cast<int64_t>(c), HWY_MIN(kBlock, columns - c),
               block);
    visit(block, c / kBlock);
  }
}

float largest(const NumberRows& rows, int64_t first, int64_t end) {
  // As integers, magnitudes have the order of their floats, and NaN is the largest of all.
  const hn::RebindToSigned<DB> di;
  auto most = hn::Zero(di);
  const auto magnitude = hn::Set(di, std::numeric_limits<int32_t>::max());
  for (int64_t row = first; row < end; ++row) {
    over_blocks(rows, row, [&](const float* block, size_t) HWY_ATTR {
      for (size_t i = 0; i < kBlock; i += hn::Lanes(di)) {
        const auto bits = hn::BitCast(di, hn::Load(DB(), block + i));
        most = hn::Max(most, hn::And(bits, magnitude));
      }
    });
  }
  return std::bit_cast<float>(hn::ReduceMax(di, most));
}

HWY_INLINE float largest_magnitude(const float* HWY_RESTRICT block) {
  const DB d;
  VB most = hn::Zero(d);
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    most = hn::Max(most, hn::Abs(hn::Load(d, block + i)));
  }
  return hn::ReduceMax(d, most);
}

// Stores the scale of a block, in f16, that maps `extreme`, its number of the largest magnitude, to
// `most`. Returns 1 / scale as stored, or 0 for a block of zeros.
HWY_INLINE float store_scale(float extreme, float most, size_t index, std::byte* row) {
  const float exact = extreme / most;
  Float16 stored = rules::to_float16(exact);
  float scale = 0.0F;
  if (HWY_LIKELY(std::abs(exact) >= 0x1p-14F)) {
    // rules::to_float(stored) in fewer operations: one more conversion took a fifth of the time.
    const auto bits = std::bit_cast<uint32_t>(exact);
    scale = std::bit_cast<float>((bits + 0xFFFU + (bits >> 13U & 1U)) & ~0x1FFFU);
  } else {
    // Few digits are left. If the scale is rounded down so far that `extreme` would not fit, store
    // the next larger one.
    scale = rules::to_float(stored);
    if (std::abs(extreme) > std::abs(scale) * (std::abs(most) + 0.25F)) {
      ++stored.bits;
      scale = rules::to_float(stored);
    }
  }
  std::memcpy(row + index * sizeof(stored), &stored, sizeof(stored));
  return scale == 0.0F ? 0.0F : 1 / scale;
}

HWY_INLINE void quantize_int8(const float* HWY_RESTRICT block, size_t index, size_t blocks,
                              std::byte* row) {
  const DB d;
  const hn::Rebind<int8_t, DB> d8;
  const VB inverse = hn::Set(d, store_scale(largest_magnitude(block), 127.0F, index, row));
  auto* const to = reinterpret_cast<int8_t*>(row + blocks * sizeof(Float16)) + index * kBlock;
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const auto nearest = hn::NearestInt(hn::Mul(hn::Load(d, block + i), inverse));
    hn::StoreU(hn::DemoteTo(d8, nearest), d8, to + i);
  }
}

// The first number of the largest magnitude.
HWY_INLINE float extreme_of(const float* HWY_RESTRICT block) {
  const DB d;
  const VB most = hn::Set(d, largest_magnitude(block));
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(hn::Abs(hn::Load(d, block + i)), most));
    if (lane >= 0) return block[i + static_cast<size_t>(lane)];
  }
  return 0.0F;
}

HWY_INLINE void quantize_int4(const float* HWY_RESTRICT block, size_t index, size_t blocks,
                              std::byte* row) {
  const DB d;
  const hn::RebindToSigned<DB> di;
  const hn::Rebind<uint8_t, DB> d8;
  const VB inverse = hn::Set(d, store_scale(extreme_of(block), -8.0F, index, row));
  HWY_ALIGN uint8_t numbers[kBlock];
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const VB scaled = hn::Add(hn::Mul(hn::Load(d, block + i), inverse), hn::Set(d, 8.5F));
    const auto number = hn::Min(hn::ConvertTo(di, scaled), hn::Set(di, 15));
    hn::Store(hn::DemoteTo(d8, number), d8, numbers + i);
  }
  const hn::CappedTag<uint8_t, kBlock / 2> half;
  auto* const to = reinterpret_cast<uint8_t*>(row + blocks * sizeof(Float16)) + index * kBlock / 2;
  for (size_t i = 0; i < kBlock / 2; i += hn::Lanes(half)) {
    const auto low = hn::Load(half, numbers + i), high = hn::Load(half, numbers + kBlock / 2 + i);
    hn::StoreU(hn::Or(low, hn::ShiftLeft<4>(high)), half, to + i);
  }
}

void quantize(const NumberRows& rows, WeightType type, std::byte* to, int64_t first, int64_t end) {
  const int64_t bytes = weight_row_bytes(type, rows.columns);
  const auto blocks = static_cast<size_t>(weight_blocks(rows.columns));
  const auto quantize_block = type == WeightType::kInt8 ? quantize_int8 : quantize_int4;
  for (int64_t row = first; row < end; ++row) {
    over_blocks(rows, row, [&](const float* block, size_t index) {
      quantize_block(block, index, blocks, to + row * bytes);
    });
  }
}

HWY_INLINE void dequantize_int8(const std::byte* numbers, size_t index, float scale,
                                float* HWY_RESTRICT block) {
  const DB d;
  const hn::Rebind<int8_t, DB> d8;
  const auto* const from = reinterpret_cast<const int8_t*>(numbers) + index * kBlock;
  const VB factor = hn::Set(d, scale);
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const auto wide = hn::PromoteTo(hn::RebindToSigned<DB>(), hn::LoadU(d8, from + i));
    hn::StoreU(hn::Mul(hn::ConvertTo(d, wide), factor), d, block + i);
  }
}

HWY_INLINE void dequantize_int4(const std::byte* numbers, size_t index, float scale,
                                float* HWY_RESTRICT block) {
  const hn::CappedTag<float, kBlock / 2> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const auto* const from = reinterpret_cast<const uint8_t*>(numbers) + index * kBlock / 2;
  const auto factor = hn::Set(d, scale);
  const auto zero = hn::Set(di, 8);
  for (size_t i = 0; i < kBlock / 2; i += hn::Lanes(d)) {
    const auto pair = hn::PromoteTo(di, hn::LoadU(d8, from + i));
    const auto low = hn::Sub(hn::And(pair, hn::Set(di, 15)), zero);
    const auto high = hn::Sub(hn::ShiftRight<4>(pair), zero);
    hn::StoreU(hn::Mul(hn::ConvertTo(d, low), factor), d, block + i);
    hn::StoreU(hn::Mul(hn::ConvertTo(d, high), factor), d, block + kBlock / 2 + i);
  }
}

void dequantize(const WeightMatrix& weight, int64_t first, int64_t end, float* HWY_RESTRICT to,
                int64_t stride) {
  const auto blocks = static_cast<size_t>(weight_blocks(weight.columns));
  const size_t whole = static_cast<size_t>(weight.columns) / kBlock;
  const auto dequantize_block =
      weight.type == WeightType::kInt8 ? dequantize_int8 : dequantize_int4;
  for (int64_t row = first; row < end; ++row, to += stride) {
    const auto* const scales = static_cast<const Float16*>(weight.part(row, 1).data);
    const auto* const numbers = reinterpret_cast<const std::byte*>(scales + blocks);
    for (size_t b = 0; b < whole; ++b) {
      dequantize_block(numbers, b, rules::to_float(scales[b]), to + b * kBlock);
    }
    if (whole == blocks) continue;
    HWY_ALIGN float last[kBlock];
    dequantize_block(numbers, whole, rules::to_float(scales[whole]), last);
    std::copy_n(last, static_cast<size_t>(weight.columns) % kBlock, to + whole * kBlock);
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(largest);
HWY_EXPORT(quantize);
HWY_EXPORT(dequantize);

float largest_number(const NumberRows& rows, int64_t first, int64_t end) {
  return HWY_DYNAMIC_DISPATCH(largest)(rows, first, end);
}

void quantize_rows(const NumberRows& rows, WeightType type, std::byte* to, int64_t first,
                   int64_t end) {
  HWY_DYNAMIC_DISPATCH(quantize)(rows, type, to, first, end);
}

void dequantize_rows(const WeightMatrix& weight, int64_t first, int64_t end, float* to,
                     int64_t stride) {
  HWY_DYNAMIC_DISPATCH(dequantize)(weight, first, end, to, stride);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
