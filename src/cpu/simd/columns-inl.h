// Rows of floats of any width, a vector at a time.
#if defined(MULTIHEAD_CPU_SIMD_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_COLUMNS_INL_H_
#undef MULTIHEAD_CPU_SIMD_COLUMNS_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_COLUMNS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_COLUMNS_INL_H_
