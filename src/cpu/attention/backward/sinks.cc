// Gradients of attention sinks.
#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/backward/sinks.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/math-inl.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

using V = hn::Vec<DF>;

// exp(sink - lse) * delta of a vector of rows. The weights are at most 1 but for rounding; an LSE
// of another call may be below the sink, and 2^x is computed for x < 127.
HWY_INLINE V weighted_delta(V sink, V lse, V delta) {
  const DF d;
  const V exponent = hn::Mul(hn::Sub(sink, lse), hn::Set(d, kLog2E));
  const V limit = hn::Set(d, 126.0F);
  const V bounded = hn::IfThenElse(hn::Gt(exponent, limit), limit, exponent);  // keeps NaN
  return hn::Mul(exp2_clamped(d, exp2_table(), bounded), delta);
}

// Loads `count` floats; missing lanes are 0.
HWY_INLINE V load_rows(const float* from, size_t count) {
  const DF d;
  return count >= hn::Lanes(d) ? hn::LoadU(d, from) : hn::LoadN(d, from, count);
}

// Sums of floats in double.
class DoubleSum {
 public:
#if HWY_HAVE_FLOAT64
  // Written out, because g++ compiles an implicit one for the base target.
  HWY_INLINE DoubleSum() : sum_(hn::Zero(hn::Repartition<double, DF>())) {}
  HWY_INLINE void add(V numbers) {
    const hn::Repartition<double, DF> d;
    sum_ = hn::Add(sum_, hn::PromoteLowerTo(d, numbers));
    sum_ = hn::Add(sum_, hn::PromoteUpperTo(d, numbers));
  }
  HWY_INLINE double total() const { return hn::ReduceSum(hn::Repartition<double, DF>(), sum_); }

 private:
  hn::Vec<hn::Repartition<double, DF>> sum_;
#else  // 32-bit ARM has no vectors of doubles
  HWY_INLINE void add(V numbers) {
    const DF d;
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    hn::Store(numbers, d, lanes);
    for (const float lane : lanes) sum_ += static_cast<double>(lane);
  }
  HWY_INLINE double total() const { return sum_; }

 private:
  double sum_ = 0;
#endif
};

// The products are floats. Their sum is in double, so that its error does not grow with the rows.
// The rows of a head are adjacent: validation demands it of the LSE.
float gradient_of_sink(const SinkParams& p, int64_t head) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const auto queries = static_cast<size_t>(p.queries);
  const V sink = hn::Set(d, p.sinks[head]);
  DoubleSum sum;
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const float* const lse = p.lse.row(batch, head, 0);
    const float* const delta = p.delta.row(batch, head, 0);
    for (size_t query = 0; query < queries; query += lanes) {
      const size_t count = HWY_MIN(lanes, queries - query);
      const V product =
          weighted_delta(sink, load_rows(lse + query, count), load_rows(delta + query, count));
      sum.add(product);
    }
  }
  return static_cast<float>(-sum.total());
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(gradient_of_sink);

float sink_gradient(const SinkParams& params, int64_t head) {
  return HWY_DYNAMIC_DISPATCH(gradient_of_sink)(params, head);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
