// Reads rows of any storage type (dense, ring or paged) as floats.
#if defined(MULTIHEAD_CPU_SIMD_STORED_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_STORED_ROWS_INL_H_
#undef MULTIHEAD_CPU_SIMD_STORED_ROWS_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_STORED_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"
#include "rules/attention_params.h"
#include "rules/element.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {

// f16 where no instruction converts it. The constants are read through a volatile pointer, because
// V8 would rebuild known constants in the inner loop. External linkage, as kExp2Table.
struct F16Constants {
  int32_t kept = static_cast<int32_t>(0x8FFFFFFFU);  // sign, exponent and mantissa
  int32_t exponent = 0x1F << 23;
  int32_t infinite = 0xFF << 23;
  float scale = 0x1p112F;  // from one exponent bias to the other
};
inline const F16Constants kF16Constants{};
inline const F16Constants* const volatile kHiddenF16Constants = &kF16Constants;

inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// True if the target has an instruction for f16. Without it, Highway 1.2 converts infinities and
// NaN to large numbers.
inline constexpr bool kConvertsF16 =
    !HWY_ARCH_WASM && !HWY_ARCH_S390X && !(HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2) &&
    HWY_TARGET != HWY_PPC8 && HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR;

// Highway's name for an element type.
template <class T>
struct SimdElement {
  using type = T;
};
template <>
struct SimdElement<Float16> {
  using type = hwy::float16_t;
};
template <>
struct SimdElement<BFloat16> {
  using type = hwy::bfloat16_t;
};

// Reads stored elements as floats.
template <class T, class D>
class FloatReader {
 public:
  using V = hn::Vec<D>;
  explicit HWY_INLINE FloatReader(D d) : d_(d) {}

  HWY_INLINE V operator()(const T* from) const { return widened(hn::LoadU(narrow_, from)); }
  // Reads `count` elements; the remaining lanes are zero.
  HWY_INLINE V operator()(const T* from, size_t count) const {
    return widened(hn::LoadN(narrow_, from, count));
  }

 private:
  template <class Stored>
  HWY_INLINE V widened(Stored stored) const {
    if constexpr (std::is_same_v<T, float>) {
      return stored;
    } else if constexpr (std::is_same_v<T, int8_t>) {
      return hn::ConvertTo(d_, hn::PromoteTo(hn::RebindToSigned<D>(), stored));
    } else {
      return hn::PromoteTo(d_, stored);
    }
  }

  D d_;
  hn::Rebind<T, D> narrow_;
};

// Multiplies a row's whole vectors by the vectors at q, `step` floats apart, and sums lane by lane.
// Reading one row at a time reads memory in order, which hardware prefetchers follow best.
template <class T, class D, class Read, class V = hn::Vec<D>>
HWY_INLINE V dot(D d, const Read& read, const float* HWY_RESTRICT q, size_t step,
                 const T* HWY_RESTRICT row, size_t width) {
  constexpr size_t kSums = 4;  // hides the latency of the addition
  const size_t lanes = hn::Lanes(d);
  V sum[kSums];
  for (V& s : sum) s = hn::Zero(d);
  size_t c = 0;
  for (; c + kSums * lanes <= width; c += kSums * lanes) {
    for (size_t i = 0; i < kSums; ++i, q += step, row += lanes) {
      sum[i] = mul_add(hn::LoadU(d, q), read(row), sum[i]);
    }
  }
  for (; c + lanes <= width; c += lanes, q += step, row += lanes) {
    sum[0] = mul_add(hn::LoadU(d, q), read(row), sum[0]);
  }
  return hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
}

template <class D>
requires(!kConvertsF16) class FloatReader<hwy::float16_t, D> {
 public:
  using V = hn::Vec<D>;
  explicit HWY_INLINE FloatReader(D d) : FloatReader(d, *kHiddenF16Constants) {}

  HWY_INLINE V operator()(const hwy::float16_t* from) const {
    return widened(hn::LoadU(narrow_, from));
  }
  HWY_INLINE V operator()(const hwy::float16_t* from, size_t count) const {
    return widened(hn::LoadN(narrow_, from, count));
  }

 private:
  HWY_INLINE FloatReader(D d, const F16Constants& constants)
      : d_(d),
        kept_(hn::Set(di_, constants.kept)),
        exponent_(hn::Set(di_, constants.exponent)),
        infinite_(hn::Set(di_, constants.infinite)),
        scale_(hn::Set(d, constants.scale)) {}

  HWY_INLINE V widened(hn::Vec<hn::Rebind<hwy::float16_t, D>> stored) const {
    const auto bits = hn::PromoteTo(di_, hn::BitCast(hn::Rebind<int16_t, D>(), stored));
    const auto moved = hn::And(hn::ShiftLeft<13>(bits), kept_);
    const auto special = hn::Eq(hn::And(moved, exponent_), exponent_);
    const auto value = hn::BitCast(di_, hn::Mul(hn::BitCast(d_, moved), scale_));
    return hn::BitCast(d_, hn::Or(value, hn::IfThenElseZero(special, infinite_)));
  }

  D d_;
  hn::RebindToSigned<D> di_;
  hn::Rebind<hwy::float16_t, D> narrow_;
  hn::Vec<hn::RebindToSigned<D>> kept_, exponent_, infinite_;
  V scale_;
};

// Reads `width` elements of T, times `factor` for integers, then writes zeros up to `padded`.
template <class T, class D>
HWY_INLINE void widen(D d, const T* HWY_RESTRICT from, size_t width, size_t padded, float factor,
                      float* HWY_RESTRICT to) {
  const FloatReader<T, D> read(d);
  const size_t lanes = hn::Lanes(d);
  const auto scaled = [&](auto floats) HWY_ATTR {
    return std::is_same_v<T, int8_t> ? hn::Mul(floats, hn::Set(d, factor)) : floats;
  };
  size_t c = 0;
  for (; c + lanes <= width; c += lanes) hn::StoreU(scaled(read(from + c)), d, to + c);
  if (c < width) {
    const size_t rest = width - c;
    hn::StoreN(scaled(read(from + c, rest)), d, to + c, rest);
  }
  std::fill(to + width, to + padded, 0.0F);
}

// Slot of `position`, without its batch and head.
HWY_INLINE int64_t slot_of(const rules::StoredRows& rows, int64_t batch, int64_t position) {
  if (rows.ring != 0) return position % rows.ring;
  if (rows.pages == nullptr) return position;
  const int32_t page = rows.pages[batch * rows.pages_per_entry + position / rows.page_size];
  return page * rows.page_size + position % rows.page_size;
}

// slot_of() for positions first .. first + count - 1, in contiguous runs.
inline void fill_slots(const rules::StoredRows& rows, int64_t batch, int64_t first, int64_t count,
                       int64_t* to) {
  for (int64_t j = 0; j < count;) {
    int64_t slot = slot_of(rows, batch, first + j);
    int64_t run = count;
    if (rows.ring != 0) run = rows.ring - slot;
    if (rows.pages != nullptr) run = rows.page_size - (first + j) % rows.page_size;
    for (const int64_t end = std::min(j + run, count); j < end; ++j) to[j] = slot++;
  }
}

template <class D>
HWY_INLINE void read_row(D d, const rules::StoredRows& rows, int64_t batch, int64_t head,
                         int64_t position, size_t width, size_t padded, float* HWY_RESTRICT to) {
  if (width == 0) {
    std::fill_n(to, padded, 0.0F);
    return;
  }
  // Pages are shared by the batch.
  const int64_t entry = rows.pages == nullptr ? batch : 0;
  const int64_t slot = slot_of(rows, batch, position);
  const int64_t at = rules::row_offset(rows.stride, entry, head, slot);
  rules::visit_element(rows.type, [&]<class T>(std::type_identity<T>) HWY_ATTR {
    const T* const from = static_cast<const T*>(rows.data) + at;
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(to, from, width * sizeof(float));
      std::fill(to + width, to + padded, 0.0F);
    } else {
      const float factor =
          std::is_same_v<T, int8_t>
              ? rows.scales[rules::row_offset(rows.scale_stride, entry, head, slot)]
              : 1.0F;
      widen(d, reinterpret_cast<const typename SimdElement<T>::type*>(from), width, padded, factor,
            to);
    }
  });
}

struct FloatRows {
  const float* data;
  ptrdiff_t stride;
};

// Returns positions first .. first + count - 1 as rows of at least `padded` floats: in place if
// possible, otherwise copied to `scratch`, which has room for count * padded floats.
template <class D>
HWY_NOINLINE FloatRows read_rows(D d, const rules::StoredRows& rows, int64_t batch, int64_t head,
                                 int64_t first, size_t count, size_t width, size_t padded,
                                 float* HWY_RESTRICT scratch) {
  if (rows.dense_floats() && width == padded) {
    return {
        static_cast<const float*>(rows.data) + rules::row_offset(rows.stride, batch, head, first),
        static_cast<ptrdiff_t>(rows.stride[2])};
  }
  for (size_t row = 0; row < count; ++row) {
    read_row(d, rows, batch, head, first + static_cast<int64_t>(row), width, padded,
             scratch + row * padded);
  }
  return {scratch, static_cast<ptrdiff_t>(padded)};
}

// Copies rows into strips of kVecs vectors, `strip` floats apart, with zeros up to whole vectors.
// Row by row, so that reads are sequential.
template <size_t kVecs, class D>
HWY_NOINLINE void copy_to_strips(D d, const FloatRows& rows, size_t count, size_t width,
                                 float* HWY_RESTRICT to, ptrdiff_t strip) {
  const size_t vector = hn::Lanes(d);
  const size_t lanes = kVecs * vector;
  const float* HWY_RESTRICT from = rows.data;
  for (size_t row = 0; row < count; ++row, from += rows.stride, to += lanes) {
    float* HWY_RESTRICT at = to;
    size_t c = 0;
    for (; c + lanes <= width; c += lanes, at += strip) {
      for (size_t v = 0; v < kVecs; ++v) {
        hn::StoreU(hn::LoadU(d, from + c + v * vector), d, at + v * vector);
      }
    }
    for (; c < width; c += vector, at += vector) {
      hn::StoreU(hn::LoadN(d, from + c, width - c), d, at);
    }
  }
}

// Copies pairs of bf16 rows into strips of kVecs vectors of pairs: element c of pair i is (row 2i,
// row 2i + 1) at column c. A missing last row and columns beyond the width are zero.
template <size_t kVecs, class D>
HWY_NOINLINE void copy_pairs_to_strips(D d, const uint16_t* rows, ptrdiff_t stride, size_t count,
                                       size_t width, float* HWY_RESTRICT to, ptrdiff_t strip) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> half;
  const size_t vector = hn::Lanes(d);
  const size_t lanes = kVecs * vector;
  for (size_t first = 0; first < width; first += lanes, to += strip) {
    const size_t end = HWY_MIN(lanes, width - first);
    float* at = to;
    for (size_t row = 0; row < count; row += 2, at += lanes) {
      const uint16_t* low = rows + static_cast<ptrdiff_t>(row) * stride + first;
      for (size_t c = 0; c < end; c += vector) {
        const size_t there = HWY_MIN(vector, end - c);
        auto pair = hn::PromoteTo(du, hn::LoadN(half, low + c, there));
        if (row + 1 < count) {
          const auto high = hn::PromoteTo(du, hn::LoadN(half, low + stride + c, there));
          pair = hn::Or(pair, hn::ShiftLeft<16>(high));
        }
        hn::StoreU(hn::BitCast(d, pair), d, at + c);
      }
    }
  }
}

// Rounds to nearest even.
template <class T, class D>
HWY_INLINE void narrow(D d, const float* HWY_RESTRICT from, size_t width, T* HWY_RESTRICT to) {
  if constexpr (std::is_same_v<T, float>) {
    std::copy_n(from, width, to);
  } else if constexpr (std::is_same_v<T, hwy::float16_t> && !kConvertsF16) {
    rules::write_floats(from, static_cast<int64_t>(width), to, DType::kF16, 0);
  } else {
    const hn::Rebind<T, D> half;
    const size_t lanes = hn::Lanes(d);
    size_t c = 0;
    for (; c + lanes <= width; c += lanes) {
      hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, from + c)), half, to + c);
    }
    if (c < width) {
      const size_t rest = width - c;
      hn::StoreN(hn::DemoteTo(half, hn::LoadN(d, from + c, rest)), half, to + c, rest);
    }
  }
}

// Reads the row of `position`, f32 or bf16, as bf16: rounded to nearest even, then zeros up to
// `padded`.
template <class D>
HWY_INLINE void read_bf16_row(D d, const rules::StoredRows& rows, int64_t batch, int64_t head,
                              int64_t position, size_t width, size_t padded,
                              uint16_t* HWY_RESTRICT to) {
  if (width == 0) {
    std::fill_n(to, padded, uint16_t{0});
    return;
  }
  // Pages are shared by the batch.
  const int64_t entry = rows.pages == nullptr ? batch : 0;
  const int64_t at = rules::row_offset(rows.stride, entry, head, slot_of(rows, batch, position));
  if (rows.type == DType::kF32) {
    narrow(d, static_cast<const float*>(rows.data) + at, width,
           reinterpret_cast<hwy::bfloat16_t*>(to));
  } else {
    const hn::Repartition<uint16_t, D> d16;
    const size_t lanes = hn::Lanes(d16);
    const uint16_t* const from = static_cast<const uint16_t*>(rows.data) + at;
    size_t c = 0;
    for (; c + lanes <= width; c += lanes) hn::StoreU(hn::LoadU(d16, from + c), d16, to + c);
    for (; c < width; ++c) to[c] = from[c];
  }
  std::fill(to + width, to + padded, uint16_t{0});
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_STORED_ROWS_INL_H_
