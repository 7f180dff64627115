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
  const DF d;
  const hn::RebindToSigned<DF> di;
  const size_t lanes = hn::Lanes(d);
  const auto columns = static_cast<size_t>(rows.columns);
  const auto magnitude = hn::Set(di, std::numeric_limits<int32_t>::max());
  auto most = hn::Zero(di);
  rules::visit_element(rows.type, [&]<class T>(std::type_identity<T>) HWY_ATTR {
    using Stored = typename SimdElement<T>::type;
    const FloatReader<Stored, DF> read(d);
    const auto join = [&](auto numbers) HWY_ATTR {
      most = hn::Max(most, hn::And(hn::BitCast(di, numbers), magnitude));
    };
    for (int64_t row = first; row < end; ++row) {
      const auto* const from = static_cast<const Stored*>(rows.data) + row * rows.stride;
      size_t c = 0;
      for (; c + lanes <= columns; c += lanes) join(read(from + c));
      if (c < columns) join(read(from + c, columns - c));
    }
  });
  return std::bit_cast<float>(hn::ReduceMax(di, most));
}

// store_scale() of a scale with few digits, or zero. If it is rounded down so far that `extreme`
// would not fit, stores the next larger one.
HWY_NOINLINE VB store_small_scale(float extreme, float most, Float16 stored, std::byte* to) {
  float scale = rules::to_float(stored);
  if (std::abs(extreme) > std::abs(scale) * (std::abs(most) + 0.25F)) {
    ++stored.bits;
    scale = rules::to_float(stored);
  }
  std::memcpy(to, &stored, sizeof(stored));
  return hn::Set(DB(), scale == 0.0F ? 0.0F : 1 / scale);
}

// The largest magnitude of a block, in all lanes.
HWY_INLINE VB largest_magnitude(const float* HWY_RESTRICT block) {
  const DB d;
  VB most = hn::Zero(d);
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    most = hn::Max(most, hn::Abs(hn::Load(d, block + i)));
  }
  return hn::MaxOfLanes(d, most);
}

// Stores the scale of a block, in f16, that maps `extreme`, its number of the largest magnitude, to
// `most`. Returns 1 / scale as stored, or 0 for a block of zeros, in all lanes: the rest of the
// block waits for it, and vectors that become scalars and vectors again would take longer.
HWY_INLINE VB store_scale(VB extreme, float most, size_t index, std::byte* row) {
  const DB d;
  const hn::RebindToUnsigned<DB> du;
  const VB exact = hn::Div(extreme, hn::Set(d, most));
  // As rules::to_float16() rounds normal numbers.
  const auto bits = hn::BitCast(du, exact);
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1U));
  const auto rounded =
      hn::AndNot(hn::Set(du, 0x1FFFU), hn::Add(bits, hn::Add(odd, hn::Set(du, 0xFFFU))));
  const Float16 stored = rules::to_float16(hn::GetLane(exact));
  if (HWY_LIKELY(std::abs(hn::GetLane(exact)) >= 0x1p-14F)) {
    std::memcpy(row + index * sizeof(stored), &stored, sizeof(stored));
    return hn::Div(hn::Set(d, 1.0F), hn::BitCast(d, rounded));
  }
  return store_small_scale(hn::GetLane(extreme), most, stored, row + index * sizeof(stored));
}

HWY_INLINE void quantize_int8(const float* HWY_RESTRICT block, size_t index, size_t blocks,
                              std::byte* row) {
  const DB d;
  const hn::Rebind<int8_t, DB> d8;
  const VB inverse = store_scale(largest_magnitude(block), 127.0F, index, row);
  auto* const to = reinterpret_cast<int8_t*>(row + blocks * sizeof(Float16)) + index * kBlock;
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const auto nearest = hn::NearestInt(hn::Mul(hn::Load(d, block + i), inverse));
    hn::StoreU(hn::DemoteTo(d8, nearest), d8, to + i);
  }
}

// The first number of the largest magnitude, in all lanes.
HWY_INLINE VB extreme_of(const float* HWY_RESTRICT block) {
  const DB d;
  const VB most = largest_magnitude(block);
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(hn::Abs(hn::Load(d, block + i)), most));
    if (lane >= 0) return hn::Set(d, block[i + static_cast<size_t>(lane)]);
  }
  return hn::Zero(d);
}

HWY_INLINE void quantize_int4(const float* HWY_RESTRICT block, size_t index, size_t blocks,
                              std::byte* row) {
  const DB d;
  const hn::RebindToSigned<DB> di;
  const hn::Rebind<uint8_t, DB> d8;
  const VB inverse = store_scale(extreme_of(block), -8.0F, index, row);
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
  for (int64_t row = first; row < end; ++row) {
    over_blocks(rows, row, [&](const float* block, size_t index) HWY_ATTR {
      if (type == WeightType::kInt8) return quantize_int8(block, index, blocks, to + row * bytes);
      quantize_int4(block, index, blocks, to + row * bytes);
    });
  }
}

// Writes block b of a row: its integers times the scale of their half, minus `least`.
template <bool kIsInt8>
HWY_INLINE void dequantize_block(WeightType type, const uint8_t* row, const RowParts& parts,
                                 size_t blocks, size_t b, const float (&scale)[2], float least,
                                 float* HWY_RESTRICT to) {
  const hn::CappedTag<float, kIsInt8 ? kBlock : kBlock / 2> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto write = [&](size_t i, size_t half, auto integers) HWY_ATTR {
    // The product is exact, or nothing is subtracted: it does not matter if the two are fused.
    const auto product = hn::Mul(hn::ConvertTo(d, integers), hn::Set(d, scale[half]));
    hn::StoreU(hn::Sub(product, hn::Set(d, least)), d, to + i);
  };
  if constexpr (kIsInt8) {
    const hn::Rebind<int8_t, decltype(d)> d8;
    const auto* const from = reinterpret_cast<const int8_t*>(row + parts.numbers) + b * kBlock;
    for (size_t i = 0; i < kBlock; i += hn::Lanes(d))
      write(i, 0, hn::PromoteTo(di, hn::LoadU(d8, from + i)));
    return;
  }
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const auto middle = hn::Set(di, has_leasts(type) ? 0 : 8 << high_bits(type));
  for (size_t i = 0; i < kBlock / 2; i += hn::Lanes(d)) {
    const auto pair = hn::PromoteTo(di, hn::LoadU(d8, row + parts.numbers + b * kBlock / 2 + i));
    HWY_UNROLL(2)
    for (size_t half = 0; half < 2; ++half) {
      auto number = half == 0 ? hn::And(pair, hn::Set(di, 15)) : hn::ShiftRight<4>(pair);
      for (size_t place = 0; place < high_bits(type); ++place) {
        const uint8_t* const bits = row + parts.bits + 2 * ((2 * place + half) * blocks + b);
        const auto moved = hn::Set(di, (bits[0] | bits[1] << 8) << (4 + place));
        const auto own = hn::Shr(moved, hn::Iota(di, static_cast<int>(i)));
        number = hn::Or(number, hn::And(own, hn::Set(di, 16 << place)));
      }
      write(half * kBlock / 2 + i, half, hn::Sub(number, middle));
    }
  }
}

void dequantize(const WeightMatrix& weight, int64_t first, int64_t end, float* HWY_RESTRICT to,
                int64_t stride) {
  const WeightType type = weight.type;
  const auto blocks = static_cast<size_t>(weight_blocks(weight.columns));
  const size_t whole = static_cast<size_t>(weight.columns) / kBlock;
  const size_t shared = shares_scales(type) ? 8 : 1;
  const RowParts parts = row_parts(type, blocks);
  HWY_ALIGN float scales[kBlock], leasts[kBlock], last[kBlock];
  for (int64_t row = first; row < end; ++row, to += stride) {
    const auto* const from = static_cast<const uint8_t*>(weight.part(row, 1).data);
    for (size_t b = 0; b < blocks; ++b) {
      if (b % (kBlock * shared) == 0) {
        const auto read = [&](size_t at, float* numbers) HWY_ATTR {
          const auto* const halves = reinterpret_cast<const hwy::float16_t*>(from + at);
          const size_t count = HWY_MIN(kBlock, ceil_div(blocks - b, shared));
          widen(DB(), halves + b / shared, count, kBlock, 1.0F, numbers);
        };
        read(0, scales);
        if (has_leasts(type)) read(parts.leasts, leasts);
      }
      const size_t at = b / shared % kBlock;
      float scale[2] = {scales[at], scales[at]}, least = -0.0F;
      const auto* const factors = reinterpret_cast<const int8_t*>(from + parts.factors) + b;
      if (has_leasts(type)) least = leasts[at] * (shared > 1 ? factors[blocks] : -1.0F);
      for (size_t half = 0; half < 2 && shared > 1; ++half)
        scale[half] *= factors[has_leasts(type) ? 0 : half * blocks];
      float* const block = b < whole ? to + b * kBlock : last;
      if (type == WeightType::kInt8) {
        dequantize_block<true>(type, from, parts, blocks, b, scale, least, block);
      } else {
        dequantize_block<false>(type, from, parts, blocks, b, scale, least, block);
      }
    }
    if (whole < blocks) std::copy_n(last, weight.columns % kWeightBlock, to + whole * kBlock);
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
