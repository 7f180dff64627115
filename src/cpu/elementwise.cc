// LayerNorm, RMSNorm, activations, sums, embeddings, and copies, scaling and averages of heads, a
// row at a time.
#include "cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/exp2-inl.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using V = hn::Vec<DF>;

// 1 / (1 + e^-x), computed from e^-|x|, which neither overflows nor cancels.
V sigmoid(DF d, V x) {
  const V e = exp2_clamped(d, exp2_table(), hn::Mul(hn::Abs(x), hn::Set(d, -kLog2E)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, hn::Set(d, 1.0F));
  return hn::Div(numerator, hn::Add(hn::Set(d, 1.0F), e));
}

// erfc(z) for z >= 0, as e^(-z^2) t P(t) with t = 1 / (1 + 0.47 z). P interpolates at the Chebyshev
// nodes of 0 <= z <= 10, with a relative error of 3.3e-8, or 1e-7 in float arithmetic. For larger z
// the exponential is 0.
V erfc_positive(DF d, V z) {
  constexpr float kP[] = {2.651337962e-01F,  2.659853165e-01F, 2.278883883e-01F,  2.206266916e-01F,
                          -4.271174880e-02F, 3.051133006e-01F, -3.601170376e-01F, 1.081272498e-01F,
                          2.333189970e-02F,  -1.337786499e-02F};
  const V one = hn::Set(d, 1.0F);
  const V t = hn::Div(one, mul_add(z, hn::Set(d, 0.47F), one));
  V poly = hn::Set(d, kP[9]);
  for (size_t i = 9; i-- > 0;) poly = mul_add(poly, t, hn::Set(d, kP[i]));
  const V exponential = exp2_clamped(d, exp2_table(), hn::Mul(hn::Mul(z, z), hn::Set(d, -kLog2E)));
  return hn::Mul(hn::Mul(exponential, t), poly);
}

// x Phi(x). With tail = x/2 erfc(|x| / sqrt(2)), it is tail for x < 0 and x - tail otherwise.
V gelu(DF d, V x) {
  const V z = hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678118654752F));
  const V tail = hn::Mul(hn::Mul(x, hn::Set(d, 0.5F)), erfc_positive(d, z));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(x, tail));
}

V activation(DF d, Activation which, V x) {
  switch (which) {
    case Activation::kRelu:
      // This argument order keeps a NaN.
      return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
    case Activation::kGelu:
      return gelu(d, x);
    case Activation::kGeluTanh: {
      // (1 + tanh(u)) / 2 is the sigmoid of 2 u; here 2 sqrt(2/pi) (x + 0.044715 x^3).
      const V cubic = mul_add(hn::Mul(x, x), hn::Set(d, 0.071354816F), hn::Set(d, 1.5957691216F));
      return hn::Mul(x, sigmoid(d, hn::Mul(x, cubic)));
    }
    case Activation::kSilu:
      break;
  }
  return hn::Mul(x, sigmoid(d, x));
}

// All lanes of a vector, or only the first few at the end of a row.
struct AllLanes {
  V load(const float* from) const { return hn::LoadU(DF(), from); }
  void store(V value, float* to) const { hn::StoreU(value, DF(), to); }
  V or_zero(V value) const { return value; }
};
struct FirstLanes {
  size_t lanes;
  V load(const float* from) const { return hn::LoadN(DF(), from, lanes); }
  void store(V value, float* to) const { hn::StoreN(value, DF(), to, lanes); }
  V or_zero(V value) const { return hn::IfThenElseZero(hn::FirstN(DF(), lanes), value); }
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

// Sum of value(column, lanes) over a row.
template <class Value>
HWY_INLINE float sum_of(int64_t width, Value&& value) {
  const DF d;
  V sum = hn::Zero(d);
  over_columns(width, [&](size_t column, auto lanes) {
    sum = hn::Add(sum, lanes.or_zero(value(column, lanes)));
  });
  return hn::ReduceSum(d, sum);
}

void normalise(const NormParams& p, int64_t first, int64_t end) {
  const DF d;
  const auto width = static_cast<float>(p.width);
  for (int64_t row = first; row < end; ++row) {
    const float* const x = p.x + row * p.x_stride;
    float* const y = p.y + row * p.y_stride;
    const auto load = [&](size_t column, auto lanes) { return lanes.load(x + column); };
    // Reads the row twice, from the cache: a difference of large squares would cancel.
    const V mean = hn::Set(d, p.centred ? sum_of(p.width, load) / width : 0.0F);
    const float squares = sum_of(p.width, [&](size_t column, auto lanes) {
      const V centred = hn::Sub(lanes.load(x + column), mean);
      return hn::Mul(centred, centred);
    });
    const V factor = hn::Set(d, 1.0F / std::sqrt(squares / width + p.epsilon));
    over_columns(p.width, [&](size_t column, auto lanes) {
      V value = hn::Mul(hn::Sub(lanes.load(x + column), mean), factor);
      if (p.weight != nullptr) value = hn::Mul(value, lanes.load(p.weight + column));
      if (p.bias != nullptr) value = hn::Add(value, lanes.load(p.bias + column));
      lanes.store(value, y + column);
    });
  }
}

void activate(const ActivationParams& p, int64_t first, int64_t end) {
  const DF d;
  for (int64_t row = first; row < end; ++row) {
    const float* const gate = p.gate + row * p.gate_stride;
    const float* const x = p.x == nullptr ? nullptr : p.x + row * p.x_stride;
    float* const y = p.y + row * p.y_stride;
    over_columns(p.width, [&](size_t column, auto lanes) {
      V value = activation(d, p.activation, lanes.load(gate + column));
      if (x != nullptr) value = hn::Mul(value, lanes.load(x + column));
      lanes.store(value, y + column);
    });
  }
}

void sum(const float* a, const float* b, float* y, int64_t count) {
  over_columns(count, [&](size_t column, auto lanes) {
    lanes.store(hn::Add(lanes.load(a + column), lanes.load(b + column)), y + column);
  });
}

void embed(const EmbedParams& p, int64_t first, int64_t end) {
  for (int64_t row = first; row < end; ++row) {
    const float* const token = p.embeddings + p.tokens[row] * p.width;
    float* const y = p.y + row * p.width;
    if (p.positions == nullptr) {
      std::copy_n(token, p.width, y);
    } else {
      sum(token, p.positions + (p.first_position + row % p.sequence) * p.width, y, p.width);
    }
  }
}

void scale_heads(const ScaleHeadsParams& p, int64_t first, int64_t end) {
  const DF d;
  for (int64_t row = first; row < end; ++row) {
    float* const token = p.x + row / p.tokens * p.stride[0] + row % p.tokens * p.stride[2];
    for (int64_t h = 0; h < p.heads; ++h) {
      float* const x = token + h * p.stride[1];
      const float factor = p.factors[h];
      if (factor == 0.0F) {
        std::fill_n(x, p.width, 0.0F);
        continue;
      }
      over_columns(p.width, [&](size_t column, auto lanes) {
        lanes.store(hn::Mul(lanes.load(x + column), hn::Set(d, factor)), x + column);
      });
    }
  }
}

void mean_heads(const MeanHeadsParams& p, int64_t first, int64_t end) {
  const DF d;
  const V factor = hn::Set(d, static_cast<float>(1.0 / static_cast<double>(p.heads)));
  for (int64_t row = first; row < end; ++row) {
    const int64_t b = row / p.tokens, n = row % p.tokens;
    const float* const x = p.x + b * p.x_stride[0] + n * p.x_stride[2];
    float* const y = p.y + b * p.y_stride[0] + n * p.y_stride[1];
    over_columns(p.width, [&](size_t column, auto lanes) {
      V sum = lanes.load(x + column);
      for (int64_t h = 1; h < p.heads; ++h) {
        sum = hn::Add(sum, lanes.load(x + h * p.x_stride[1] + column));
      }
      lanes.store(hn::Mul(sum, factor), y + column);
    });
  }
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(normalise);
HWY_EXPORT(activate);
HWY_EXPORT(sum);
HWY_EXPORT(embed);
HWY_EXPORT(scale_heads);
HWY_EXPORT(mean_heads);

void norm_rows(const NormParams& params, int64_t first, int64_t end) {
  HWY_DYNAMIC_DISPATCH(normalise)(params, first, end);
}

void activation_rows(const ActivationParams& params, int64_t first, int64_t end) {
  HWY_DYNAMIC_DISPATCH(activate)(params, first, end);
}

void embed_rows(const EmbedParams& params, int64_t first, int64_t end) {
  HWY_DYNAMIC_DISPATCH(embed)(params, first, end);
}

void scale_heads_rows(const ScaleHeadsParams& params, int64_t first, int64_t end) {
  HWY_DYNAMIC_DISPATCH(scale_heads)(params, first, end);
}

void mean_heads_rows(const MeanHeadsParams& params, int64_t first, int64_t end) {
  HWY_DYNAMIC_DISPATCH(mean_heads)(params, first, end);
}

void add(const float* a, const float* b, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(sum)(a, b, y, count);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
