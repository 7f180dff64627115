// attention() compared with the Eigen oracle, on every SIMD target of the machine.
#include "multihead/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "reference/reference_attention.h"
#include "rules/dropout_mask.h"
#include "rules/element.h"
#include "rules/visibility.h"
#include "support/closeness.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/special_values.h"

namespace multihead {
namespace {

using reference::ReferenceOutputs;
using testing::CaptureRequest;
using testing::difference;
using testing::excess;
using testing::largest_difference;
using testing::Random;
using testing::random_case;
using testing::RandomCase;
using testing::tolerance;

// Outputs start as NaN, so that unwritten elements show.
std::vector<float> poisoned(const Dims& shape) {
  return std::vector<float>(static_cast<size_t>(shape.elements()), kNaN);
}

// A tensor of any type, read back as floats.
class StoredOutput {
 public:
  StoredOutput(DType type, const Dims& shape) : type_(type), shape_(shape) {
    if (type == DType::kF32)
      floats_ = poisoned(shape);
    else
      halves_.assign(static_cast<size_t>(shape.elements()), testing::half_bits(kNaN, type));
  }
  AnyTensor tensor() {
    void* const data = type_ == DType::kF32 ? static_cast<void*>(floats_.data()) : halves_.data();
    return {data, type_, shape_, contiguous_strides(shape_)};
  }
  std::vector<float> values() {
    if (type_ == DType::kF32) return floats_;
    const AnyTensor view = tensor();
    std::vector<float> values;
    for (int64_t i = 0; i < shape_.elements(); ++i) {
      values.push_back(testing::element({view.data, type_, shape_, view.strides}, i));
    }
    return values;
  }

 private:
  DType type_;
  Dims shape_;
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
};

struct Result {
  std::vector<float> out, lse, weights;
  std::vector<std::vector<float>> captures;
  std::vector<uint8_t> dropout_mask;

  friend bool operator==(const Result&, const Result&) = default;
};

int64_t heads_of(const CaptureRequest& request, const RandomCase& c) {
  return request.heads.empty() ? c.weights_shape[1] : static_cast<int64_t>(request.heads.size());
}

Result run(const RandomCase& c, Context& context) {
  StoredOutput out(c.out_type, c.out_shape);
  Result result;
  result.lse = poisoned(c.lse_shape);
  result.weights = poisoned(c.weights_shape);
  AttentionOutputs outputs{.out = out.tensor(),
                           .lse = {result.lse.data(), c.lse_shape},
                           .weights = {result.weights.data(), c.weights_shape}};
  std::vector<ScoreCapture> captures;
  for (const CaptureRequest& request : c.captures) {
    const Dims shape{c.weights_shape[0], heads_of(request, c), request.rows, c.weights_shape[3]};
    result.captures.push_back(poisoned(shape));
    captures.push_back({.stage = request.stage,
                        .out = {result.captures.back().data(), shape},
                        .heads = request.heads,
                        .first_row = request.first_row});
  }
  outputs.captures = captures;
  if (c.options.dropout.probability > 0) {
    result.dropout_mask.assign(result.weights.size(), 77);
    outputs.dropout_mask = {result.dropout_mask.data(), c.weights_shape};
  }
  const Status status = attention(c.q, c.k, c.v, c.options, outputs, context);
  EXPECT_TRUE(status.ok()) << status.message();
  result.out = out.values();
  return result;
}

void expect_captures(const RandomCase& c, const Result& got, const ReferenceOutputs& expected,
                     double allowed) {
  for (size_t n = 0; n < c.captures.size(); ++n) {
    const CaptureRequest& request = c.captures[n];
    const std::vector<double>& whole = expected.stage(request.stage);
    const int64_t keys = c.weights_shape[3];
    std::vector<double> part;
    for (int64_t b = 0; b < c.weights_shape[0]; ++b) {
      for (int64_t h = 0; h < heads_of(request, c); ++h) {
        const int64_t head = request.heads.empty() ? h : request.heads[static_cast<size_t>(h)];
        const auto first =
            whole.begin() +
            ((b * c.weights_shape[1] + head) * c.weights_shape[2] + request.first_row) * keys;
        part.insert(part.end(), first, first + request.rows * keys);
      }
    }
    // A score has the full rounding error of its dot product, a weight at most half of it.
    const double factor = request.stage == ScoreStage::kWeights ? 1 : 2;
    ASSERT_LE(largest_difference(got.captures[n], part), factor * allowed) << "capture " << n;
  }
}

void expect_dropout_mask(const RandomCase& c, const Result& got) {
  if (got.dropout_mask.empty()) return;
  const uint64_t threshold = rules::dropout_threshold(c.options.dropout.probability);
  size_t at = 0;
  for (int64_t b = 0; b < c.weights_shape[0]; ++b) {
    for (int64_t h = 0; h < c.weights_shape[1]; ++h) {
      for (int64_t i = 0; i < c.weights_shape[2]; ++i) {
        for (int64_t j = 0; j < c.weights_shape[3]; ++j, ++at) {
          const bool kept = rules::dropout_keeps(c.options.dropout.seed, b, h, i, j, threshold);
          ASSERT_EQ(got.dropout_mask[at], kept ? 1 : 0) << b << " " << h << " " << i << " " << j;
        }
      }
    }
  }
}

void expect_equals_oracle(const RandomCase& c, Context& context) {
  const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options, true);
  const double allowed = tolerance(c, expected);
  const double survivor = 1.0 / (1.0 - static_cast<double>(c.options.dropout.probability));
  testing::on_every_target([&] {
    const Result got = run(c, context);
    ASSERT_LE(excess(got.out, expected.out, c.out_type, allowed * survivor), 0.0);
    ASSERT_LE(largest_difference(got.lse, expected.lse), 2 * allowed);
    ASSERT_LE(largest_difference(got.weights, expected.weights), allowed);
    expect_captures(c, got, expected, allowed);
    expect_dropout_mask(c, got);
  });
}

class AttentionOnTargets : public ::testing::Test {
 protected:
  Context context_{2};
};

class AttentionOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
  Context context_{2};
};

TEST_F(AttentionOnTargets, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : testing::random_seeds(250)) {
    const RandomCase c = random_case(seed);
    SCOPED_TRACE(c.description);
    expect_equals_oracle(c, context_);
    if (HasFatalFailure()) return;
  }
}

// Small calls combine options as large ones do, and a million of them take only minutes.
TEST_F(AttentionOnTargets, EqualsOracleOnSmallRandomCalls) {
  for (const uint64_t seed : testing::random_seeds(500)) {
    const RandomCase c = random_case(seed, {.max_queries = 20, .max_keys = 50, .max_width = 20});
    SCOPED_TRACE(c.description);
    expect_equals_oracle(c, context_);
    if (HasFatalFailure()) return;
  }
}

// Head dims that are not a multiple of a lane count, and large head dims.
TEST_F(AttentionOnTargets, EqualsOracleOnAnyHeadWidth) {
  for (const int64_t width : {1, 2, 3, 7, 20, 33, 80, 96, 128, 255, 256}) {
    for (const int64_t value_dim : {width, int64_t{5}}) {
      RandomCase c;
      Random random(static_cast<uint64_t>(width));
      const Dims q{1, 2, 19, width}, k{1, 1, 37, width}, v{1, 1, 37, value_dim};
      c.q = stored(c, random.floats(q.elements()), DType::kF32, q, contiguous_strides(q));
      c.k = stored(c, random.floats(k.elements()), DType::kF32, k, contiguous_strides(k));
      c.v = stored(c, random.floats(v.elements()), DType::kF32, v, contiguous_strides(v));
      c.options.causal = Causal::bottom_right();
      c.out_shape = {1, 2, 19, value_dim};
      c.lse_shape = {1, 2, 19};
      c.weights_shape = {1, 2, 19, 37};
      SCOPED_TRACE("d_k " + std::to_string(width) + ", d_v " + std::to_string(value_dim));
      expect_equals_oracle(c, context_);
    }
  }
}

// Returns a mask or bias for (B, H, N_q, N_k) in a random layout that a view allows: shared axes,
// any order of the other axes, contiguous or strided keys. T is the type of an element.
template <class T, class Make>
TensorView<const T> random_cover(Random& random, const Dims& scores, std::deque<std::vector<T>>& in,
                                 const Make& make) {
  Dims shape = scores;
  for (int axis = 0; axis < 3; ++axis) {
    if (random.chance(axis == 2 ? 0.25 : 0.5)) shape[axis] = 1;
  }
  int order[] = {3, 2, 1, 0};  // innermost first
  if (random.chance(0.3)) std::swap(order[0], order[random.integer(1, 3)]);
  Dims strides = shape;
  int64_t step = random.chance(0.25) ? random.integer(2, 3) : 1;
  for (const int axis : order) {
    strides[axis] = step;
    step = step * shape[axis] + (random.chance(0.3) ? random.integer(0, 5) : 0);
  }
  // The memory ends with the last entry.
  int64_t last = 0;
  for (int axis = 0; axis < 4; ++axis) last += (shape[axis] - 1) * strides[axis];
  std::vector<T> values(shape.elements() == 0 ? 0 : static_cast<size_t>(last + 1));
  const auto at = [&](int64_t b, int64_t h, int64_t i, int64_t j) -> T& {
    return values[static_cast<size_t>(b * strides[0] + h * strides[1] + i * strides[2] +
                                      j * strides[3])];
  };
  // Each row has random runs of visible, hidden and mixed elements.
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t h = 0; h < shape[1]; ++h) {
      for (int64_t i = 0; i < shape[2]; ++i) {
        int64_t kind = 0;
        for (int64_t j = 0; j < shape[3]; ++j) {
          if (j == 0 || random.chance(0.02)) kind = random.integer(0, 2);
          at(b, h, i, j) = make(kind == 2 ? random.chance(0.5) : kind == 1);
        }
      }
    }
  }
  in.push_back(std::move(values));
  return {in.back().data(), shape, strides};
}

TEST_F(AttentionOnTargets, EqualsOracleWithMasksAndBiasesOfEveryForm) {
  for (uint64_t seed = 2000; seed < 2080; ++seed) {
    RandomCase c = random_case(seed, {.max_queries = 70, .max_keys = 450, .max_width = 8});
    Random random(seed);
    if (random.chance(0.7)) {
      c.options.mask = random_cover(random, c.weights_shape, c.bytes, [&](bool shown) {
        return static_cast<uint8_t>(shown ? random.integer(1, 255) : 0);
      });
      c.description += ", mask strides " + c.options.mask.strides.to_string();
    }
    if (random.chance(0.7)) {
      c.options.bias = random_cover(random, c.weights_shape, c.storage, [&](bool shown) {
        return shown ? random.uniform(-2.0F, 2.0F) : random.chance(0.9) ? -kInf : -3.4e38F;
      });
      c.description += ", bias strides " + c.options.bias.strides.to_string();
    }
    SCOPED_TRACE(c.description);
    expect_equals_oracle(c, context_);
    if (HasFatalFailure()) return;
  }
}

// A sink of 3.3e9 divided by a scale that is no power of two has no float, and rounding it changes
// the sum of a row by more than a float holds. One, five and forty rows: decoding and two tiles.
TEST_F(AttentionOnTargets, SinksOfEveryMagnitudeEqualTheOracle) {
  constexpr int64_t kHeads = 2, kWidth = 8;
  for (const int64_t rows : {1, 5, 40}) {
    for (const float sink : {0.0F, 50.0F, 90.0F, 120.0F, 1e3F, 1e5F, 1.2345678e7F, 1e8F, 3.3e9F,
                             4e9F, 1e10F, 1e15F, 1e30F, 3e38F}) {
      RandomCase c;
      Random random(static_cast<uint64_t>(rows));
      const Dims q{1, kHeads, rows, kWidth}, k{1, kHeads, 37, kWidth}, v{1, kHeads, 37, 5};
      c.q = stored(c, random.floats(q.elements()), DType::kF32, q, contiguous_strides(q));
      c.k = stored(c, random.floats(k.elements()), DType::kF32, k, contiguous_strides(k));
      c.v = stored(c, random.floats(v.elements()), DType::kF32, v, contiguous_strides(v));
      // The first rows see no key.
      c.options.causal = Causal::at_offset(-2);
      const std::vector<float> sinks{sink, -sink};
      c.options.sinks = sinks;
      c.out_shape = {1, kHeads, rows, 5};
      c.lse_shape = {1, kHeads, rows};
      c.weights_shape = {1, kHeads, rows, 37};
      c.captures = {{.stage = ScoreStage::kWeights, .heads = {}, .first_row = 0, .rows = rows}};
      SCOPED_TRACE(std::to_string(rows) + " rows, sink " + std::to_string(sink));
      expect_equals_oracle(c, context_);
      // Scores of the size of the sink: the sink takes part in the softmax.
      c.options.causal = {};
      const std::vector<float> bias(static_cast<size_t>(kHeads), sink);
      c.options.bias = {bias.data(), {1, kHeads, 1, 1}};
      if (sink < 1e7F) expect_equals_oracle(c, context_);
      if (HasFatalFailure()) return;
    }
  }
}

// Compares capped scores with tanh in double. Allowed error: 3 units in the last place of the cap,
// and for small scores 4 units of the score. No score may exceed the cap.
TEST_P(AttentionOnTarget, SoftcapIsAccurate) {
  Random random(17);
  std::vector<float> x{0.0F, -0.0F, kInf, -kInf, kNaN, 1e-36F, 3.4e38F};
  while (x.size() < 20000) {
    x.push_back(std::ldexp(random.uniform(-1.0F, 1.0F), static_cast<int>(random.integer(-20, 10))));
  }
  const auto keys = static_cast<int64_t>(x.size());
  const float q = 1.0F;
  for (const float cap : {0.125F, 1.0F, 7.3F, 30.0F, 50.0F}) {
    std::vector<float> capped = poisoned({keys});
    const ScoreCapture capture{.stage = ScoreStage::kCapped,
                               .out = {capped.data(), {1, 1, 1, keys}}};
    const Status status =
        attention_scores(ConstTensor(&q, {1, 1, 1, 1}), ConstTensor(x.data(), {1, 1, keys, 1}),
                         {.scale = 1.0F, .softcap = cap}, capture, context_);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < x.size(); ++i) {
      const auto wide = static_cast<double>(cap);
      const double expected = wide * std::tanh(static_cast<double>(x[i]) / wide);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(capped[i])) << i;
        continue;
      }
      ASSERT_LE(std::abs(capped[i]), cap) << x[i];
      const auto ulp = [](double value) { return std::ldexp(1.0, std::ilogb(value) - 23); };
      const double allowed = std::min(3 * ulp(wide), 4 * ulp(expected == 0.0 ? wide : expected));
      ASSERT_LE(std::abs(static_cast<double>(capped[i]) - expected), allowed)
          << x[i] << " capped at " << cap << " gives " << capped[i];
    }
  }
}

// bf16 products may change results only by the rounding of weights. A hidden NaN changes nothing.
TEST_P(AttentionOnTarget, BFloat16ProductsStayWithinTheirBound) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t heads = 2, group = random.integer(1, 2);
    const int64_t queries = random.integer(9, 150), keys = random.integer(1, 400);
    const int64_t width = 2 * random.integer(1, 40), value_dim = random.integer(1, 80);
    const auto values = [&](const Dims& shape) {
      std::vector<BFloat16> result(static_cast<size_t>(shape.elements()));
      for (BFloat16& value : result) value = rules::to_bfloat16(random.uniform(-1.0F, 1.0F));
      return result;
    };
    const Dims q_shape{1, heads * group, queries, width}, k_shape{1, heads, keys, width};
    const Dims v_shape{1, heads, keys, value_dim}, out_shape{1, heads * group, queries, value_dim};
    const std::vector<BFloat16> q = values(q_shape), k = values(k_shape);
    std::vector<BFloat16> v = values(v_shape);
    const auto length = static_cast<int32_t>(random.integer(0, keys));
    AttentionOptions options{.scale = 0.7F, .kv_lengths = {&length, 1}};
    if (random.integer(0, 1) == 1) options.causal = Causal::bottom_right();
    if (seed % 4 == 0 && length < keys) {
      v[static_cast<size_t>(length * value_dim)] = rules::to_bfloat16(kNaN);
    }
    std::vector<float> out[2];
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      options.precision = precision;
      std::vector<float>& result = out[static_cast<size_t>(precision)];
      result = poisoned(out_shape);
      const Status status = attention(TensorView<const BFloat16>(q.data(), q_shape),
                                      TensorView<const BFloat16>(k.data(), k_shape),
                                      TensorView<const BFloat16>(v.data(), v_shape), options,
                                      {.out = Tensor(result.data(), out_shape)}, context_);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (size_t i = 0; i < out[0].size(); ++i) {
      ASSERT_NEAR(out[1][i], out[0][i], std::ldexp(1.0, -9) + 1e-5) << i;
    }
  }
}

void poison(const ConstAnyTensor& tensor, int64_t index, float value) {
  void* const data = const_cast<void*>(tensor.data);
  if (tensor.dtype == DType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = testing::half_bits(value, tensor.dtype);
  }
}

// Writes NaN and infinities to every key and value that no query of its group sees, and repeats the
// call: the results must not change.
TEST_P(AttentionOnTarget, HiddenPositionsNeverLeak) {
  int poisoned_cases = 0;
  for (uint64_t seed = 1000; seed < 1120; ++seed) {
    RandomCase c = random_case(seed);
    // Raw and capped scores include hidden keys, so they are left out.
    std::erase_if(c.captures, [](const CaptureRequest& request) {
      return request.stage == ScoreStage::kRaw || request.stage == ScoreStage::kCapped;
    });
    SCOPED_TRACE(c.description);
    const Result clean = run(c, context_);
    const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options, true);
    const int64_t heads = c.weights_shape[1], queries = c.weights_shape[2];
    const int64_t keys = c.weights_shape[3];
    const int64_t group = heads / c.k.shape[1];
    Random random(seed);
    bool any = false;
    for (int64_t b = 0; b < c.k.shape[0]; ++b) {
      for (int64_t h = 0; h < c.k.shape[1]; ++h) {
        for (int64_t j = 0; j < keys; ++j) {
          bool seen = false;
          for (int64_t head = h * group; head < (h + 1) * group && !seen; ++head) {
            for (int64_t i = 0; i < queries && !seen; ++i) {
              const auto at = static_cast<size_t>(((b * heads + head) * queries + i) * keys + j);
              seen = expected.masked[at] != -INFINITY;
            }
          }
          if (seen) continue;
          any = true;
          for (const ConstAnyTensor* tensor : {&c.k, &c.v}) {
            const int64_t row =
                b * tensor->strides[0] + h * tensor->strides[1] + j * tensor->strides[2];
            for (int64_t d = 0; d < tensor->shape[3]; ++d) {
              poison(*tensor, row + d, random.pick({kNaN, kInf, -kInf}));
            }
          }
        }
      }
    }
    poisoned_cases += any ? 1 : 0;
    // A hidden NaN makes rows be recomputed with another order of sums: their last bits may differ.
    const Result got = run(c, context_);
    const double survivor = 1.0 / (1.0 - static_cast<double>(c.options.dropout.probability));
    ASSERT_LE(excess(got.out, {clean.out.begin(), clean.out.end()}, c.out_type,
                     tolerance(c, expected) * survivor),
              0.0);
    ASSERT_EQ(got.weights, clean.weights);
    ASSERT_EQ(got.lse, clean.lse);
    ASSERT_EQ(got.captures, clean.captures);
  }
  EXPECT_GT(poisoned_cases, 20);
}

// If only some queries see a key with NaN, only their rows may become NaN.
TEST_P(AttentionOnTarget, NaNReachesOnlyTheRowsThatSeeIt) {
  constexpr int64_t kTokens = 130;
  constexpr int64_t kWidth = 24;
  Random random(7);
  const std::vector<float> q = random.floats(kTokens * kWidth);
  std::vector<float> k = random.floats(kTokens * kWidth);
  std::vector<float> v = random.floats(kTokens * kWidth);
  const Dims shape{1, 1, kTokens, kWidth};
  const auto attend = [&] {
    std::vector<float> out(q.size(), kNaN);
    const Status status =
        attention({q.data(), shape}, {k.data(), shape}, {v.data(), shape},
                  {.causal = Causal::top_left()}, {.out = {out.data(), shape}}, context_);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  };
  const std::vector<float> clean = attend();
  constexpr int64_t kPoisoned = 77;
  for (std::vector<float>* poisoned : {&k, &v}) {
    const float original = (*poisoned)[kPoisoned * kWidth];
    (*poisoned)[kPoisoned * kWidth] = kNaN;
    const std::vector<float> got = attend();
    for (int64_t i = 0; i < kTokens; ++i) {
      const auto first = static_cast<size_t>(i * kWidth);
      if (i >= kPoisoned) {
        EXPECT_TRUE(std::isnan(got[first])) << "row " << i;
      } else {
        for (size_t d = first; d < first + kWidth; ++d) EXPECT_NEAR(got[d], clean[d], 1e-6F);
      }
    }
    (*poisoned)[kPoisoned * kWidth] = original;
  }
}

TEST_P(AttentionOnTarget, LongSequenceStaysWithinTolerance) {
  Random random(11);
  constexpr int64_t kTokens = 8192;
  const Dims q_shape{1, 1, 40, 64};
  const Dims k_shape{1, 1, kTokens, 64};
  RandomCase c;
  c.storage = {random.floats(q_shape.elements()), random.floats(k_shape.elements()),
               random.floats(k_shape.elements())};
  c.q = {c.storage[0].data(), q_shape};
  c.k = {c.storage[1].data(), k_shape};
  c.v = {c.storage[2].data(), k_shape};
  c.options = {.causal = Causal::bottom_right()};
  c.out_shape = q_shape;
  c.lse_shape = {1, 1, 40};
  c.weights_shape = {1, 1, 40, kTokens};
  const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options);
  const Result got = run(c, context_);
  EXPECT_LE(largest_difference(got.out, expected.out), 2e-6);
  EXPECT_LE(largest_difference(got.lse, expected.lse), 2e-6);
  EXPECT_LE(largest_difference(got.weights, expected.weights), 2e-6);
}

// Equal weights of equal values are the worst case: every addition rounds in the same direction.
// All keys share one row of memory. attention.h states the bounds.
TEST_P(AttentionOnTarget, MeansOfEqualValuesStayWithinTheirBound) {
  constexpr float kValue = 0.7F;
  for (const int64_t keys : {100, 512, 2048, 32768, 131072}) {
    for (const int64_t queries : {1, 4, 40}) {
      const Dims shape{1, 1, queries, 64}, kv_shape{1, 1, keys, 64};
      const std::vector<float> row(64, kValue), q(static_cast<size_t>(shape.elements()), 0.0F);
      const ConstTensor kv{row.data(), kv_shape, {0, 0, 0, 1}};
      std::vector<float> out = poisoned(shape);
      ASSERT_TRUE(attention(ConstTensor{q.data(), shape}, kv, kv, {}, {.out = {out.data(), shape}},
                            context_)
                      .ok());
      // With 40 queries, the kernel sums 256 keys at a time, then adds these sums. With few
      // queries, a sum covers 256 keys in WebAssembly if much memory is read, otherwise fewer.
      const double roundings = 256.0 + static_cast<double>(keys) / 256.0;
#ifdef __EMSCRIPTEN__
      constexpr double kDecoding = 4e-6;
#else
      constexpr double kDecoding = 2e-6;
#endif
      const double bound = queries == 40 ? std::max(2e-6, roundings * 0x1p-25) : kDecoding;
      for (const float value : out) {
        ASSERT_NEAR(value, kValue, bound * static_cast<double>(kValue))
            << keys << " keys, " << queries << " queries";
      }
    }
  }
}

// If scale * (q . k) is an ordinary number, no intermediate product may overflow. Covers few and
// many queries, few and many keys, with and without terms added to scores.
TEST_P(AttentionOnTarget, ScalesAndMagnitudesFarFromOneEqualOracle) {
  for (const uint64_t seed : testing::random_seeds(150)) {
    Random random(seed);
    const int64_t queries = random.pick<int64_t>({1, 3, 20, 40});
    const int64_t keys = random.pick<int64_t>({5, 40, 300});
    const Dims q_shape{1, 2, queries, 16}, k_shape{1, random.pick<int64_t>({1, 2}), keys, 16};
    // Powers of ten for q, k and the scale, such that scores are about 1.
    const double of_q = random.uniform(-30, 30);
    const double of_k = std::clamp<double>(random.uniform(-30, 30), -37 - of_q, 37 - of_q);
    RandomCase c;
    c.storage = {random.floats(q_shape.elements()), random.floats(k_shape.elements()),
                 random.floats(k_shape.elements())};
    for (float& value : c.storage[0]) value *= static_cast<float>(std::pow(10.0, of_q));
    for (float& value : c.storage[1]) value *= static_cast<float>(std::pow(10.0, of_k));
    c.q = {c.storage[0].data(), q_shape};
    c.k = {c.storage[1].data(), k_shape};
    c.v = {c.storage[2].data(), k_shape};
    c.options.scale = random.pick({-1.0F, 1.0F}) * static_cast<float>(std::pow(10.0, -of_q - of_k));
    const std::vector<float> slopes{0.1F, 0.02F}, sinks{0.5F, -1.0F};
    std::vector<float> bias = random.floats(keys);
    if (random.chance(0.3)) c.options.softcap = 3.0F;
    if (random.chance(0.3)) c.options.alibi_slopes = slopes;
    if (random.chance(0.3)) c.options.bias = {bias.data(), {1, keys}};
    if (random.chance(0.3)) c.options.sinks = sinks;
    if (random.chance(0.5)) c.options.causal = Causal::bottom_right();
    c.out_shape = q_shape;
    c.lse_shape = {1, 2, queries};
    c.weights_shape = {1, 2, queries, keys};
    for (const ScoreStage stage :
         {ScoreStage::kRaw, ScoreStage::kCapped, ScoreStage::kMasked, ScoreStage::kWeights}) {
      if (random.chance(0.4)) c.captures.push_back({.stage = stage, .heads = {}, .rows = queries});
    }
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << ": " << queries << " queries of 1e" << of_q << ", " << keys
                 << " keys of 1e" << of_k << ", softcap " << c.options.softcap << ", alibi "
                 << !c.options.alibi_slopes.empty() << ", bias " << c.options.bias.given());
    const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options, true);
    const Result got = run(c, context_);
    ASSERT_LE(largest_difference(got.out, expected.out), 3e-6);
    ASSERT_LE(largest_difference(got.lse, expected.lse), 6e-6);
    ASSERT_LE(largest_difference(got.weights, expected.weights), 3e-6);
    expect_captures(c, got, expected, 3e-6);

    // A call with `out` only uses other code paths.
    std::vector<float> out = poisoned(c.out_shape);
    ASSERT_TRUE(
        attention(c.q, c.k, c.v, c.options, {.out = {out.data(), c.out_shape}}, context_).ok());
    ASSERT_LE(largest_difference(out, expected.out), 3e-6);
  }
}

// Scores of any size. Their rounding error is relative, so only the largest score is compared; all
// results must be numbers.
TEST_P(AttentionOnTarget, ScoresThatCanBeRepresentedAreNumbers) {
  for (const uint64_t seed : testing::random_seeds(150)) {
    Random random(seed);
    const int64_t queries = random.pick<int64_t>({1, 20, 40}), keys = random.integer(2, 300);
    const Dims q_shape{1, 1, queries, 16}, k_shape{1, 1, keys, 16};
    // Powers of ten for which q, k, scale and the score are all representable as floats.
    double of_q = 0, of_k = 0, of_scale = 0;
    do {
      of_q = random.uniform(-36, 36);
      of_k = random.uniform(-36, 36);
      of_scale = random.uniform(-36, 37);
    } while (std::abs(of_q + of_k + of_scale) > 36);
    std::vector<float> q = random.floats(q_shape.elements()), k = random.floats(k_shape.elements());
    const std::vector<float> v = random.floats(k_shape.elements());
    for (float& value : q) value *= static_cast<float>(std::pow(10.0, of_q));
    for (float& value : k) value *= static_cast<float>(std::pow(10.0, of_k));
    AttentionOptions options{.scale = static_cast<float>(std::pow(10.0, of_scale))};
    const std::vector<float> bias(static_cast<size_t>(keys), 0.5F), sinks{-3.0F};
    const int added = static_cast<int>(random.integer(0, 2));
    if (added == 1) options.bias = {bias.data(), {1, keys}};
    if (added == 2) options.sinks = sinks;
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << ": " << queries << " queries of 1e" << of_q << ", " << keys
                 << " keys of 1e" << of_k << ", scale 1e" << of_scale << ", added " << added);
    const ReferenceOutputs expected =
        reference::attention(ConstTensor{q.data(), q_shape}, ConstTensor{k.data(), k_shape},
                             ConstTensor{v.data(), k_shape}, options);
    std::vector<float> out = poisoned(q_shape), lse = poisoned({1, 1, queries});
    ASSERT_TRUE(attention(ConstTensor{q.data(), q_shape}, ConstTensor{k.data(), k_shape},
                          ConstTensor{v.data(), k_shape}, options,
                          {.out = {out.data(), q_shape}, .lse = {lse.data(), {1, 1, queries}}},
                          context_)
                    .ok());
    const double size = std::max(1.0, std::pow(10.0, of_q + of_k + of_scale));
    for (size_t row = 0; row < lse.size(); ++row) {
      ASSERT_NEAR(lse[row], expected.lse[row], 1e-5 * size);
    }
    for (const float value : out) ASSERT_LE(std::abs(value), 1.001F);
  }
}

// Positions in a ring grow without limit, beyond 2^24, from where floats do not represent every
// integer. All keys share one row of memory.
TEST_P(AttentionOnTarget, AlibiDistancesAreExactAtAnyPosition) {
  constexpr int64_t kKeys = (int64_t{1} << 30) + 101, kLeft = 64;
  Random random(9);
  const std::vector<float> row = random.floats(8), q = random.floats(2 * 40 * 8);
  const std::vector<float> slopes{0.25F, 0.5F};
  for (const int64_t queries : {1, 40}) {
    const Dims shape{1, 2, queries, 8}, lse_shape{1, 2, queries}, k_shape{1, 2, kKeys, 8};
    const ConstTensor k{row.data(), k_shape, {0, 0, 0, 1}};
    std::vector<float> out = poisoned(shape), lse = poisoned(lse_shape);
    const Status status = attention(
        ConstTensor{q.data(), shape}, k, k,
        {.causal = Causal::bottom_right(), .window = {.left = kLeft}, .alibi_slopes = slopes},
        {.out = {out.data(), shape}, .lse = {lse.data(), lse_shape}}, context_);
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t at = 0; at < 2 * queries; ++at) {
      double score = 0;
      for (int64_t c = 0; c < 8; ++c) {
        score += static_cast<double>(q[static_cast<size_t>(at * 8 + c)]) *
                 static_cast<double>(row[static_cast<size_t>(c)]) / std::sqrt(8.0);
      }
      double sum = 0;
      for (int64_t distance = 0; distance <= kLeft; ++distance) {
        sum += std::exp(-static_cast<double>(slopes[static_cast<size_t>(at / queries)]) *
                        static_cast<double>(distance));
      }
      EXPECT_NEAR(lse[static_cast<size_t>(at)], score + std::log(sum), 2e-6)
          << "of " << queries << " queries, row " << at;
    }
  }
}

// The softmax may use the maximum of earlier keys as its reference. In this test, later scores
// exceed it by a little, by much, by more than exp() can represent, or never.
TEST_P(AttentionOnTarget, MaximaThatRiseLateEqualOracle) {
  Random random(12);
  constexpr int64_t kKeys = 1100, kQueries = 70, kWidth = 8;
  for (const float rise : {-0.2F, 0.0F, 0.004F, 0.02F, 0.5F, 8.0F}) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "rise " << rise << ", causal " << causal);
      const Dims q_shape{1, 1, kQueries, kWidth}, k_shape{1, 1, kKeys, kWidth};
      RandomCase c;
      c.storage = {random.floats(q_shape.elements()), random.floats(k_shape.elements()),
                   random.floats(k_shape.elements())};
      for (int64_t row = 0; row < kQueries; ++row) {
        c.storage[0][static_cast<size_t>(row * kWidth)] = row % 3 == 0 ? -1.0F : 1.0F;
      }
      for (int64_t key = 0; key < kKeys; ++key) {
        c.storage[1][static_cast<size_t>(key * kWidth)] = rise * static_cast<float>(key);
      }
      c.q = {c.storage[0].data(), q_shape};
      c.k = {c.storage[1].data(), k_shape};
      c.v = {c.storage[2].data(), k_shape};
      c.options = {.scale = 1.0F};
      if (causal) c.options.causal = Causal::bottom_right();
      c.out_shape = q_shape;
      c.lse_shape = {1, 1, kQueries};
      c.weights_shape = {1, 1, kQueries, kKeys};
      const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options);
      const Result got = run(c, context_);
      // The rounding error of a score is relative to its size.
      const double tolerance = 2e-6 * (1.0 + std::abs(rise) * kKeys);
      EXPECT_LE(largest_difference(got.out, expected.out), tolerance);
      EXPECT_LE(largest_difference(got.lse, expected.lse), tolerance);
      EXPECT_LE(largest_difference(got.weights, expected.weights), tolerance);
    }
  }
}

TEST_P(AttentionOnTarget, SameBitsWhateverTheThreadCount) {
  Context one(1);
  Context three(3);
  for (uint64_t seed = 300; seed < 340; ++seed) {
    const RandomCase c = random_case(seed);
    SCOPED_TRACE(c.description);
    ASSERT_TRUE(run(c, one) == run(c, three));
  }
  // 16 threads divide blocks further.
  Context many(16);
  for (uint64_t seed = 340; seed < 360; ++seed) {
    const RandomCase c = random_case(seed, {.max_queries = 400});
    SCOPED_TRACE(c.description);
    ASSERT_TRUE(run(c, one) == run(c, many));
  }
}

// Captures scores chunk by chunk, without values, and compares them with one capture of all rows.
TEST_P(AttentionOnTarget, ChunksOfScoresEqualTheWhole) {
  int chunks = 0;
  for (uint64_t seed = 400; seed < 440; ++seed) {
    RandomCase c = random_case(seed);
    SCOPED_TRACE(c.description);
    Random random(seed);
    if (c.weights_shape[1] == 0) continue;
    const int64_t queries = c.weights_shape[2], keys = c.weights_shape[3];
    c.captures.clear();
    for (const ScoreStage stage :
         {ScoreStage::kRaw, ScoreStage::kCapped, ScoreStage::kMasked, ScoreStage::kWeights}) {
      c.captures.push_back({stage, {}, 0, queries});
    }
    const Result whole = run(c, context_);
    const double allowed = tolerance(c, reference::attention(c.q, c.k, c.v, c.options, true));
    const int64_t chunk = random.integer(1, 20);
    const auto head = static_cast<int32_t>(random.integer(0, c.weights_shape[1] - 1));
    for (size_t stage = 0; stage < c.captures.size(); ++stage) {
      for (int64_t first = 0; first < queries; first += chunk, ++chunks) {
        const int64_t rows = std::min(chunk, queries - first);
        const Dims shape{c.weights_shape[0], 1, rows, keys};
        std::vector<float> part = poisoned(shape);
        const std::vector<int32_t> heads{head};
        const Status status = attention_scores(c.q, c.k, c.options,
                                               {.stage = c.captures[stage].stage,
                                                .out = {part.data(), shape},
                                                .heads = heads,
                                                .first_row = first},
                                               context_);
        ASSERT_TRUE(status.ok()) << status.message();
        for (int64_t b = 0; b < shape[0]; ++b) {
          for (int64_t at = 0; at < rows * keys; ++at) {
            const auto index = static_cast<size_t>(
                ((b * c.weights_shape[1] + head) * queries + first) * keys + at);
            const float got = part[static_cast<size_t>(b * rows * keys + at)];
            const float expected = whole.captures[stage][index];
            // Scores have the same bits. The last bits of weights may differ, because their sums
            // are split into other tiles.
            const bool weight = c.captures[stage].stage == ScoreStage::kWeights;
            ASSERT_TRUE(weight ? difference(got, static_cast<double>(expected)) <= allowed
                               : got == expected)
                << got << " for " << expected << ", stage " << stage << ", row "
                << first + at / keys << ", key " << at % keys;
          }
        }
      }
    }
  }
  EXPECT_GT(chunks, 100);
}

// Compares varlen results with one call per sequence: equal except for the last bits.
void expect_close(float got, float expected, DType type) {
  if (got == expected) return;
  const float unit = type == DType::kF32 ? 1e-6F : type == DType::kF16 ? 1e-3F : 8e-3F;
  EXPECT_NEAR(got, expected, unit * std::max(1.0F, std::abs(expected)));
}

TEST_P(AttentionOnTarget, PackedSequencesEqualOneCallEach) {
  for (uint64_t seed = 500; seed < 540; ++seed) {
    RandomCase c = random_case(seed, {.max_queries = 30, .max_keys = 60});
    SCOPED_TRACE(c.description);
    Random random(seed);
    AttentionOptions options = c.options;
    options.mask = {};
    options.bias = {};
    options.kv_lengths = {};
    options.rope.q_positions = {};
    options.rope.k_positions = {};
    for (Alignment* alignment : {&options.causal.alignment, &options.window.alignment}) {
      if (*alignment == Alignment::kBottomRightOfLength) *alignment = Alignment::kBottomRight;
    }
    const int64_t heads = c.q.shape[1], kv_heads = c.k.shape[1];
    const int64_t width = c.q.shape[3], value_dim = c.v.shape[3];
    if (seed % 4 == 0 && width >= 2) {
      // Alignments that depend on the query and key lengths of each sequence.
      options.causal = Causal::bottom_right();
      options.window = {};
      options.rope.style = Rope::Style::kHalf;
      options.rope.rotary_dim = 2;
    }
    std::vector<int32_t> cu_q{0}, cu_k{0};
    const int64_t sequences = random.integer(0, 5);
    for (int64_t s = 0; s < sequences; ++s) {
      cu_q.push_back(cu_q.back() + static_cast<int32_t>(random.integer(0, 40)));
      cu_k.push_back(cu_k.back() + static_cast<int32_t>(random.integer(0, 70)));
    }
    const int64_t total_q = cu_q.back(), total_k = cu_k.back();
    RandomCase data;
    const auto packed = [&](int64_t total, int64_t of_heads, int64_t d, DType type) {
      const Dims shape{total, of_heads, d};
      return stored(data, random.floats(shape.elements()), type, shape, contiguous_strides(shape));
    };
    const ConstAnyTensor q = packed(total_q, heads, width, c.q.dtype);
    const ConstAnyTensor k = packed(total_k, kv_heads, width, c.k.dtype);
    const ConstAnyTensor v = packed(total_k, kv_heads, value_dim, c.v.dtype);
    StoredOutput packed_out(c.out_type, {total_q, heads, value_dim});
    std::vector<float> lse = poisoned({heads, total_q});
    const Status status = attention_varlen(
        q, k, v, cu_q, cu_k, options,
        {.out = packed_out.tensor(), .lse = {lse.data(), {heads, total_q}}}, context_);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> out = packed_out.values();

    for (size_t s = 0; s < static_cast<size_t>(sequences); ++s) {
      const auto one = [](const ConstAnyTensor& tensor, int64_t first, int64_t end) {
        const int64_t row = tensor.shape[1] * tensor.shape[2];
        const auto* const data_ =
            static_cast<const std::byte*>(tensor.data) + first * row * bytes_of(tensor.dtype);
        return ConstAnyTensor(static_cast<const void*>(data_), tensor.dtype,
                              {1, tensor.shape[1], end - first, tensor.shape[2]},
                              {0, tensor.shape[2], row, 1});
      };
      const int64_t rows = cu_q[s + 1] - cu_q[s];
      RandomCase single;
      single.q = one(q, cu_q[s], cu_q[s + 1]);
      single.k = one(k, cu_k[s], cu_k[s + 1]);
      single.v = one(v, cu_k[s], cu_k[s + 1]);
      single.out_type = c.out_type;
      single.options = options;
      single.options.dropout.seed += static_cast<uint64_t>(s) << 32U;
      single.out_shape = {1, heads, rows, value_dim};
      single.lse_shape = {1, heads, rows};
      single.weights_shape = {1, heads, rows, cu_k[s + 1] - cu_k[s]};
      // A call with few rows takes the decode path, which varlen calls never take.
      StoredOutput single_out(c.out_type, single.out_shape);
      Result expected;
      expected.lse = poisoned(single.lse_shape);
      expected.weights = poisoned(single.weights_shape);
      ASSERT_TRUE(attention(single.q, single.k, single.v, single.options,
                            {.out = single_out.tensor(),
                             .lse = {expected.lse.data(), single.lse_shape},
                             .weights = {expected.weights.data(), single.weights_shape}},
                            context_)
                      .ok());
      expected.out = single_out.values();
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t row = cu_q[s] + i;
          expect_close(lse[static_cast<size_t>(h * total_q + row)],
                       expected.lse[static_cast<size_t>(h * rows + i)], DType::kF32);
          for (int64_t d = 0; d < value_dim; ++d) {
            expect_close(out[static_cast<size_t>((row * heads + h) * value_dim + d)],
                         expected.out[static_cast<size_t>((h * rows + i) * value_dim + d)],
                         c.out_type);
          }
        }
      }
    }
  }
}

// Merges attention over parts of the keys in any order, and compares it with all keys at once.
TEST_P(AttentionOnTarget, MergedPartsEqualTheWhole) {
  for (uint64_t seed = 600; seed < 640; ++seed) {
    RandomCase c = random_case(seed);
    AttentionOptions& options = c.options;
    // Leaves out options that depend on the number or index of keys.
    options.alibi_slopes = {};
    options.dropout = {};
    options.rope = {};
    c.out_type = DType::kF32;
    c.captures.clear();
    // If all scores of a row are -3.4e38, its LSE is the same for any number of keys.
    for (std::vector<float>& values : c.storage)
      std::replace(values.begin(), values.end(), -3.4e38F, 0.0F);
    const int64_t queries = c.q.shape[2], keys = c.k.shape[2], batch = c.q.shape[0];
    // Explicit offsets keep the positions when keys are cut off at the front.
    for (auto [alignment, offset] :
         {std::pair{&options.causal.alignment, &options.causal.offset},
          std::pair{&options.window.alignment, &options.window.offset}}) {
      if (*alignment == Alignment::kBottomRight) *offset = keys - queries;
      if (*alignment == Alignment::kTopLeft) *offset = 0;
      if (*alignment == Alignment::kBottomRightOfLength) *offset = 3;
      if (*alignment != Alignment::kNone) *alignment = Alignment::kOffset;
    }
    if (options.window.given() && options.causal.alignment == Alignment::kNone) {
      options.window.alignment = Alignment::kOffset;
    } else {
      options.window.alignment = Alignment::kNone;
    }
    SCOPED_TRACE(c.description);
    const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, options, true);

    Random random(seed);
    std::vector<int64_t> cuts{0, keys};
    const int64_t parts = random.integer(2, 5);
    for (int64_t n = 1; n < parts; ++n) cuts.push_back(random.integer(0, keys));
    std::sort(cuts.begin(), cuts.end());
    std::vector<float> out, lse;
    const int64_t from = random.integer(0, parts - 1);
    for (int64_t n = 0; n < parts; ++n) {
      const auto part = static_cast<size_t>((from + n) % parts);
      const int64_t start = cuts[part], count = cuts[part + 1] - cuts[part];
      RandomCase piece;
      piece.q = c.q;
      for (const auto& [to, whole] : {std::pair{&piece.k, &c.k}, std::pair{&piece.v, &c.v}}) {
        *to = *whole;
        to->shape[2] = count;
        to->data = static_cast<const std::byte*>(whole->data) +
                   start * whole->strides[2] * bytes_of(whole->dtype);
      }
      piece.options = options;
      for (int64_t* offset : {&piece.options.causal.offset, &piece.options.window.offset}) {
        *offset = rules::saturating_add(*offset, -start);
      }
      const auto cut = [&](auto& view) {
        if (!view.given()) return;
        const int last = view.shape.rank() - 1;
        if (view.shape[last] == 1 && keys != 1) return;
        view.shape[last] = count;
        if (view.data != nullptr) view.data += start * view.strides[last];
      };
      cut(piece.options.mask);
      cut(piece.options.bias);
      std::vector<int32_t> lengths;
      for (const int32_t length : options.kv_lengths) {
        lengths.push_back(static_cast<int32_t>(std::clamp<int64_t>(length - start, 0, count)));
      }
      piece.options.kv_lengths = lengths;
      if (n > 0) piece.options.sinks = {};
      piece.out_shape = c.out_shape;
      piece.lse_shape = c.lse_shape;
      piece.weights_shape = {batch, c.q.shape[1], queries, count};
      const Result got = run(piece, context_);
      if (n == 0) {
        out = got.out;
        lse = got.lse;
        continue;
      }
      const Status status =
          merge_attention({out.data(), c.out_shape}, {lse.data(), c.lse_shape},
                          {got.out.data(), c.out_shape}, {got.lse.data(), c.lse_shape});
      ASSERT_TRUE(status.ok()) << status.message();
    }
    const double allowed = 2 * tolerance(c, expected);
    ASSERT_LE(largest_difference(out, expected.out), allowed);
    ASSERT_LE(largest_difference(lse, expected.lse), 2 * allowed);
  }
}

// The fraction of kept weights is 1 - p, and outputs keep their mean.
TEST_P(AttentionOnTarget, DropoutKeepsItsShareAndTheMean) {
  constexpr int64_t kTokens = 192;
  const Dims shape{2, 3, kTokens, 8};
  Random random(13);
  RandomCase c;
  for (ConstAnyTensor* tensor : {&c.q, &c.k, &c.v}) {
    const bool values = tensor == &c.v;
    *tensor = stored(c, random.floats(shape.elements(), values ? 1.0F : -1.0F, 1.0F), DType::kF32,
                     shape, contiguous_strides(shape));
  }
  c.out_shape = shape;
  c.lse_shape = {2, 3, kTokens};
  c.weights_shape = {2, 3, kTokens, kTokens};
  const Result without = run(c, context_);
  for (const float probability : {0.1F, 0.5F, 0.9F}) {
    const auto p = static_cast<double>(probability);
    c.options.dropout = {.probability = probability, .seed = 7};
    const Result got = run(c, context_);
    // Dropout does not change the softmax.
    EXPECT_EQ(got.weights, without.weights);
    EXPECT_EQ(got.lse, without.lse);
    double kept = 0, mean = 0;
    for (const uint8_t keep : got.dropout_mask) kept += keep;
    // With values of 1, an output is the sum of the kept weights times 1 / (1 - p).
    for (const float value : got.out) mean += static_cast<double>(value);
    const auto count = static_cast<double>(got.dropout_mask.size());
    EXPECT_NEAR(kept / count, 1 - p, 5 * std::sqrt(p * (1 - p) / count));
    mean /= static_cast<double>(got.out.size());
    // Weights are uneven, so the effective number of samples is smaller; half is a safe estimate.
    EXPECT_NEAR(mean, 1.0, 5 * std::sqrt(p / (1 - p) / (count / 2)));
    c.options.dropout.seed = 8;
    EXPECT_NE(run(c, context_).dropout_mask, got.dropout_mask);
  }
}

// Tests the decode path, short heads and blocks, which have separate kernels.
TEST_P(AttentionOnTarget, DropoutMaskIsOnesWithoutDropout) {
  for (const Dims& shape : {Dims{1, 2, 1, 8}, Dims{2, 3, 5, 8}, Dims{1, 2, 130, 8}}) {
    const int64_t keys = shape[2] + 67;
    const Dims key_shape{shape[0], 1, keys, 8}, scores{shape[0], shape[1], shape[2], keys};
    Random random(17);
    const std::vector<float> q = random.floats(shape.elements());
    const std::vector<float> k = random.floats(key_shape.elements());
    std::vector<float> plain(q.size()), out(q.size());
    std::vector<uint8_t> mask(static_cast<size_t>(scores.elements()), 77);
    // The mask also covers hidden positions.
    const AttentionOptions options{.causal = Causal::top_left(), .dropout = {.seed = 9}};
    const ConstTensor query(q.data(), shape), key(k.data(), key_shape);
    const AttentionOutputs only_out{.out = {plain.data(), shape}};
    const AttentionOutputs outputs{.out = {out.data(), shape},
                                   .dropout_mask = {mask.data(), scores}};
    ASSERT_EQ(attention(query, key, key, options, only_out, context_).message(), "");
    ASSERT_EQ(attention(query, key, key, options, outputs, context_).message(), "");
    EXPECT_EQ(mask, std::vector<uint8_t>(mask.size(), 1)) << shape.to_string();
    EXPECT_LE(largest_difference(out, {plain.begin(), plain.end()}), 2e-6) << shape.to_string();
  }
}

// Strided views give the same bits as contiguous copies.
TEST_P(AttentionOnTarget, StridesChangeNothing) {
  Random random(5);
  constexpr int64_t kBatch = 2, kTokens = 50, kHeads = 3, kWidth = 16;
  // Packed (B, N, 3, H, d), the result of a fused projection.
  const std::vector<float> packed = random.floats(kBatch * kTokens * 3 * kHeads * kWidth);
  const Dims shape{kBatch, kHeads, kTokens, kWidth};
  const Dims strides{kTokens * 3 * kHeads * kWidth, kWidth, 3 * kHeads * kWidth, 1};
  RandomCase strided;
  RandomCase copied;
  for (int64_t part = 0; part < 3; ++part) {
    const float* data = packed.data() + part * kHeads * kWidth;
    std::vector<float> copy;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t i = 0; i < kTokens; ++i) {
          const float* row = data + b * strides[0] + h * strides[1] + i * strides[2];
          copy.insert(copy.end(), row, row + kWidth);
        }
      }
    }
    copied.storage.push_back(std::move(copy));
    ConstAnyTensor RandomCase::*const tensor = part == 0   ? &RandomCase::q
                                               : part == 1 ? &RandomCase::k
                                                           : &RandomCase::v;
    strided.*tensor = ConstTensor(data, shape, strides);
    copied.*tensor = ConstTensor(copied.storage.back().data(), shape);
  }
  for (RandomCase* c : {&strided, &copied}) {
    c->options = {.causal = Causal::top_left()};
    c->out_shape = shape;
    c->lse_shape = {kBatch, kHeads, kTokens};
    c->weights_shape = {kBatch, kHeads, kTokens, kTokens};
  }
  const Result a = run(strided, context_);
  const Result b = run(copied, context_);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.weights, b.weights);

  // Output rows interleaved by head, (B, N, H, d).
  std::vector<float> interleaved(a.out.size(), kNaN);
  const Dims out_strides{kTokens * kHeads * kWidth, kWidth, kHeads * kWidth, 1};
  ASSERT_TRUE(attention(strided.q, strided.k, strided.v, strided.options,
                        {.out = {interleaved.data(), shape, out_strides}}, context_)
                  .ok());
  size_t at = 0;
  for (int64_t b_ = 0; b_ < kBatch; ++b_) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < kTokens; ++i) {
        for (int64_t d = 0; d < kWidth; ++d, ++at) {
          const auto index = static_cast<size_t>(b_ * out_strides[0] + h * out_strides[1] +
                                                 i * out_strides[2] + d);
          ASSERT_EQ(interleaved[index], a.out[at]);
        }
      }
    }
  }
}

// Compares the weights with rows as articles print them, without a golden file.
TEST_P(AttentionOnTarget, UniformScoresGivePrintedRows) {
  const std::vector<float> zeros(4 * 8);
  const Dims shape{1, 1, 4, 8};
  std::vector<float> out(zeros.size());
  std::vector<float> weights(16);
  ASSERT_TRUE(attention({zeros.data(), shape}, {zeros.data(), shape}, {zeros.data(), shape},
                        {.causal = Causal::top_left()},
                        {.out = {out.data(), shape}, .weights = {weights.data(), {1, 1, 4, 4}}},
                        context_)
                  .ok());
  const float third = 1.0F / 3.0F;
  const std::vector<float> expected = {1,     0,     0,     0, .5F,  .5F,  0,    0,
                                       third, third, third, 0, .25F, .25F, .25F, .25F};
  for (size_t i = 0; i < weights.size(); ++i) {
    // Hidden weights are exactly 0.
    EXPECT_NEAR(weights[i], expected[i], expected[i] == 0.0F ? 0.0F : 1e-7F);
  }
}

TEST_P(AttentionOnTarget, EmptyExtents) {
  const std::vector<float> data(2 * 2 * 3 * 4, 1.0F);
  const Dims q_shape{2, 2, 3, 4};
  std::vector<float> out(data.size(), kNaN);
  std::vector<float> lse(12, kNaN);
  // No keys: no query sees anything.
  ASSERT_TRUE(attention({data.data(), q_shape}, {nullptr, {2, 2, 0, 4}}, {nullptr, {2, 2, 0, 4}},
                        {}, {.out = {out.data(), q_shape}, .lse = {lse.data(), {2, 2, 3}}},
                        context_)
                  .ok());
  EXPECT_EQ(out, std::vector<float>(out.size(), 0.0F));
  EXPECT_EQ(lse, std::vector<float>(lse.size(), -kInf));
  // No queries, no batch, or no value columns: nothing to write.
  EXPECT_TRUE(attention({nullptr, {2, 2, 0, 4}}, {data.data(), q_shape}, {data.data(), q_shape}, {},
                        {.out = {nullptr, {2, 2, 0, 4}}}, context_)
                  .ok());
  EXPECT_TRUE(attention({nullptr, {0, 2, 3, 4}}, {nullptr, {0, 2, 3, 4}}, {nullptr, {0, 2, 3, 4}},
                        {}, {.out = {nullptr, {0, 2, 3, 4}}}, context_)
                  .ok());
  EXPECT_TRUE(attention({data.data(), q_shape}, {data.data(), q_shape}, {nullptr, {2, 2, 3, 0}}, {},
                        {.out = {nullptr, {2, 2, 3, 0}}}, context_)
                  .ok());
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, AttentionOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

// A part without keys adds nothing, and a NaN stays NaN.
TEST(MergeAttention, NothingAndNaN) {
  const Dims out_shape{1, 1, 4, 1}, lse_shape{1, 1, 4};
  std::vector<float> out{0, 5, 0, 2}, lse{-kInf, 1, -kInf, 0};
  const std::vector<float> other{7, 0, kNaN, 4}, other_lse{2, -kInf, kNaN, 0};
  ASSERT_TRUE(merge_attention({out.data(), out_shape}, {lse.data(), lse_shape},
                              {other.data(), out_shape}, {other_lse.data(), lse_shape})
                  .ok());
  EXPECT_EQ(out[0], 7.0F);
  EXPECT_EQ(lse[0], 2.0F);
  EXPECT_EQ(out[1], 5.0F);
  EXPECT_EQ(lse[1], 1.0F);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_TRUE(std::isnan(lse[2]));
  EXPECT_FLOAT_EQ(out[3], 3.0F);
  EXPECT_FLOAT_EQ(lse[3], std::log(2.0F));
  std::vector<float> nothing{0}, no_lse{-kInf};
  const std::vector<float> also_nothing{0}, also_no_lse{-kInf};
  const Dims one{1, 1, 1, 1}, one_lse{1, 1, 1};
  ASSERT_TRUE(merge_attention({nothing.data(), one}, {no_lse.data(), one_lse},
                              {also_nothing.data(), one}, {also_no_lse.data(), one_lse})
                  .ok());
  EXPECT_EQ(nothing[0], 0.0F);
  EXPECT_EQ(no_lse[0], -kInf);
  // Values of width 0 with gaps between rows: no address may be computed from null pointers.
  const Dims none{1, 1, 4, 0}, gaps{8, 8, 2, 1};
  ASSERT_TRUE(merge_attention({nullptr, none, gaps}, {lse.data(), lse_shape}, {nullptr, none, gaps},
                              {other_lse.data(), lse_shape})
                  .ok());
}

// Covers both rules of the ALiBi paper: 8 heads, a power of two; and 6 heads, whose last two slopes
// are taken from the slopes of 8 heads.
TEST(AlibiSlopes, PowersOfTwoAndOthers) {
  std::vector<float> slopes(8);
  alibi_slopes(slopes);
  for (size_t h = 0; h < 8; ++h) EXPECT_EQ(slopes[h], std::ldexp(1.0F, -static_cast<int>(h) - 1));
  slopes.resize(6);
  alibi_slopes(slopes);
  EXPECT_EQ(slopes, (std::vector<float>{0.25F, 0.0625F, 0.015625F, 0.00390625F, 0.5F, 0.125F}));
  slopes.resize(1);
  alibi_slopes(slopes);
  EXPECT_EQ(slopes[0], 0.00390625F);
  alibi_slopes({});
}

TEST(Attention, RepeatedCallsKeepTheirScratch) {
  const RandomCase c = random_case(3);
  Context context(2);
  run(c, context);
  const size_t bytes = context.scratch_bytes();
  EXPECT_GT(bytes, 0U);
  for (int i = 0; i < 5; ++i) run(c, context);
  EXPECT_EQ(context.scratch_bytes(), bytes);
}

// Scratch memory does not depend on the number of keys: no N x N matrix is stored. Short sequences
// need less, because they have smaller blocks so that all threads have work.
TEST(Attention, ScratchIsIndependentOfTheSequenceLength) {
  size_t bytes[2] = {};
  AttentionOptions options;
  options.window = {.left = 64, .right = 64};
  for (const int64_t tokens : {16384, 32768}) {
    Context context(1);
    Random random(1);
    const Dims shape{1, 1, tokens, 64};
    const std::vector<float> data = random.floats(shape.elements());
    std::vector<float> out(data.size());
    ASSERT_TRUE(attention({data.data(), shape}, {data.data(), shape}, {data.data(), shape}, options,
                          {.out = {out.data(), shape}}, context)
                    .ok());
    bytes[tokens == 32768] = context.scratch_bytes();
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_LT(bytes[1], 8U << 20);
}

}  // namespace
}  // namespace multihead
