#include "cpu/elementwise/elementwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "rules/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/convert_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using DHalf = hn::Rebind<uint16_t, DF>;
using V = hn::Vec<DF>;

constexpr uint32_t kMagnitude = 0x7FFFFFFFU;  // all bits of a float but the sign
constexpr int32_t kInfinity = 0x7F800000;     // the bits of an infinite float

// True if an instruction of the target rounds to f16. EMU128 has none on any machine.
constexpr bool kRoundsToF16 = kConvertsF16 && HWY_TARGET != HWY_EMU128;

// Calls each(first, count) for vectors of up to `count` numbers.
template <class Each>
HWY_INLINE void over_vectors(size_t count, const Each& each) {
  const size_t lanes = hn::Lanes(DF());
  size_t c = 0;
  for (; c + lanes <= count; c += lanes) each(c, lanes);
  if (c < count) each(c, count - c);
}

template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* from, size_t count) {
  return count >= hn::Lanes(d) ? hn::LoadU(d, from) : hn::LoadN(d, from, count);
}

template <class D, class T>
HWY_INLINE void store(D d, hn::Vec<D> values, T* to, size_t count) {
  if (count >= hn::Lanes(d)) {
    hn::StoreU(values, d, to);
  } else {
    hn::StoreN(values, d, to, count);
  }
}

void widen_f16(const uint16_t* HWY_RESTRICT from, size_t count, float* HWY_RESTRICT to) {
  const DF d;
  const DU du;
  const FloatReader<hwy::float16_t, DF> read(d);
  over_vectors(count, [&](size_t c, size_t n) HWY_ATTR {
    const auto* const halves = reinterpret_cast<const hwy::float16_t*>(from + c);
    V wide = n >= hn::Lanes(d) ? read(halves) : read(halves, n);
    if constexpr (kConvertsF16) {
      // The instruction sets the highest bit of a NaN's fraction; rules::to_float() keeps the bit.
      const auto bits = hn::PromoteTo(du, load(DHalf(), from + c, n));
      const auto given = hn::Or(hn::ShiftLeft<13>(bits), hn::Set(du, 0xFFBFFFFFU));
      wide = hn::IfThenElse(hn::IsNaN(wide), hn::And(wide, hn::BitCast(d, given)), wide);
    }
    store(d, wide, to + c, n);
  });
}

void widen_bf16(const uint16_t* HWY_RESTRICT from, size_t count, float* HWY_RESTRICT to) {
  const DU du;
  over_vectors(count, [&](size_t c, size_t n) HWY_ATTR {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, load(DHalf(), from + c, n)));
    store(DF(), hn::BitCast(DF(), bits), to + c, n);
  });
}

// rules::to_float16().
HWY_INLINE hn::Vec<DHalf> rounded_to_f16(V x) {
  if constexpr (kRoundsToF16) {
    return hn::BitCast(DHalf(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), x));
  } else {
    const DF d;
    const DU du;
    const auto bits = hn::BitCast(du, x);
    const auto magnitude = hn::And(bits, hn::Set(du, kMagnitude));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
    const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0xFFFU - (112U << 23U))), odd);
    auto half = hn::ShiftRight<13>(rounded);
    const auto tiny = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F))),
                              hn::Set(du, 0x3F000000U));
    half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000U)), tiny, half);
    half = hn::IfThenElse(hn::Ge(magnitude, hn::Set(du, 0x47800000U)), hn::Set(du, 0x7C00U), half);
    const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FFU));
    half = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Or(payload, hn::Set(du, 0x7E00U)),
                          half);
    return hn::TruncateTo(DHalf(), hn::Or(sign, half));
  }
}

// rules::to_bfloat16(). Instructions for that flush subnormal numbers to zero.
HWY_INLINE hn::Vec<DHalf> rounded_to_bf16(V x) {
  const DU du;
  const auto bits = hn::BitCast(du, x);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFU)), odd));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x40U));
  return hn::TruncateTo(DHalf(), hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded));
}

void narrow_to_f16(const float* HWY_RESTRICT from, size_t count, uint16_t* HWY_RESTRICT to) {
  over_vectors(count, [&](size_t c, size_t n) HWY_ATTR {
    store(DHalf(), rounded_to_f16(load(DF(), from + c, n)), to + c, n);
  });
}

void narrow_to_bf16(const float* HWY_RESTRICT from, size_t count, uint16_t* HWY_RESTRICT to) {
  over_vectors(count, [&](size_t c, size_t n) HWY_ATTR {
    store(DHalf(), rounded_to_bf16(load(DF(), from + c, n)), to + c, n);
  });
}

// Returns the bits of the largest magnitude; more than kInfinity if there is a NaN.
int32_t largest_magnitude(const float* from, size_t count) {
  const DI di;
  auto largest = hn::Zero(di);
  over_vectors(count, [&](size_t c, size_t n) HWY_ATTR {
    const auto bits = hn::BitCast(di, load(DF(), from + c, n));
    largest = hn::Max(largest, hn::And(bits, hn::Set(di, static_cast<int32_t>(kMagnitude))));
  });
  return hn::ReduceMax(di, largest);
}

// `enlarge` is a power of two, see quantize_row().
void narrow_to_int8(const float* HWY_RESTRICT from, size_t count, float enlarge, float inverse,
                    int8_t* HWY_RESTRICT to) {
  const DF d;
  over_vectors(count, [&](size_t c, size_t n) HWY_ATTR {
    const V scaled =
        hn::Mul(hn::Mul(load(d, from + c, n), hn::Set(d, enlarge)), hn::Set(d, inverse));
    const V bounded = hn::Min(hn::Max(scaled, hn::Set(d, -127.0F)), hn::Set(d, 127.0F));
    const hn::Rebind<int8_t, DF> d8;
    store(d8, hn::DemoteTo(d8, hn::NearestInt(bounded)), to + c, n);
  });
}

// Numbers between the two conversions; as floats they stay in the first-level cache.
constexpr size_t kBlock = 256;

// Returns numbers at .. at + count - 1 of the source as floats: in place, or in `block`.
const float* floats_of(const ConvertRows& p, int64_t at, size_t count, float* block) {
  if (p.from_type == DType::kF32) return static_cast<const float*>(p.from) + at;
  const auto widen = p.from_type == DType::kF16 ? widen_f16 : widen_bf16;
  widen(static_cast<const uint16_t*>(p.from) + at, count, block);
  return block;
}

// Calls visit(floats, first, count) for every block of a row.
template <class Visit>
HWY_INLINE void over_blocks(const ConvertRows& p, int64_t row, const Visit& visit) {
  HWY_ALIGN float block[kBlock];
  const auto width = static_cast<size_t>(p.width);
  for (size_t c = 0; c < width; c += kBlock) {
    const size_t count = HWY_MIN(kBlock, width - c);
    visit(floats_of(p, row * p.from_stride + static_cast<int64_t>(c), count, block), c, count);
  }
}

float first_nan(const ConvertRows& p, int64_t row) {
  float value = 0.0F;
  for (int64_t c = 0; c < p.width && !std::isnan(value); ++c) {
    rules::read_floats(p.from, p.from_type, row * p.from_stride + c, 1, &value);
  }
  return std::abs(value);
}

void quantize_row(const ConvertRows& p, int64_t row) {
  int32_t bits = 0;
  over_blocks(p, row, [&](const float* floats, size_t, size_t count) {
    bits = std::max(bits, largest_magnitude(floats, count));
  });
  // The scale of a row with NaNs is its first one.
  const float largest = bits > kInfinity ? first_nan(p, row) : std::bit_cast<float>(bits);
  p.scales[row * p.scale_stride] = largest / 127.0F;
  int8_t* const to = static_cast<int8_t*>(p.to) + row * p.to_stride;
  // Integers cannot represent NaN and infinity: the scale becomes NaN or infinite, and with it the
  // whole row.
  if (bits >= kInfinity) {
    std::fill_n(to, p.width, int8_t{1});
    return;
  }
  // Tiny numbers are enlarged first: 127 / 3.7e-37 would be infinite. Multiplying by a power of two
  // is exact, so the other rows keep their bits.
  const float enlarge = largest < 0x1p-64F ? 0x1p64F : 1.0F;
  const float inverse = largest > 0.0F ? 127.0F / (largest * enlarge) : 0.0F;
  over_blocks(p, row, [&](const float* floats, size_t first, size_t count) {
    narrow_to_int8(floats, count, enlarge, inverse, to + first);
  });
}

void narrow_row(const ConvertRows& p, int64_t row) {
  const auto narrow = p.to_type == DType::kF16 ? narrow_to_f16 : narrow_to_bf16;
  uint16_t* const to = static_cast<uint16_t*>(p.to) + row * p.to_stride;
  over_blocks(p, row, [&](const float* floats, size_t first, size_t count) {
    narrow(floats, count, to + first);
  });
}

void widen_row(const ConvertRows& p, int64_t row) {
  const int64_t at = row * p.from_stride;
  const auto width = static_cast<size_t>(p.width);
  float* const to = static_cast<float*>(p.to) + row * p.to_stride;
  const float* const floats = floats_of(p, at, width, to);
  if (floats != to) std::memcpy(to, floats, width * sizeof(float));
}

void convert(ConvertRows p) {
  if (p.to_type == DType::kInt8) {
    for (int64_t row = 0; row < p.rows; ++row) quantize_row(p, row);
    return;
  }
  // Rows without gaps are a single long one.
  if (p.from_stride == p.width && p.to_stride == p.width) {
    p.width *= p.rows;
    p.rows = 1;
  }
  const auto convert_row = p.to_type == DType::kF32 ? widen_row : narrow_row;
  for (int64_t row = 0; row < p.rows; ++row) convert_row(p, row);
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(convert);

void convert_rows(const ConvertRows& call) { HWY_DYNAMIC_DISPATCH(convert)(call); }

}  // namespace multihead::cpu
#endif  // HWY_ONCE
