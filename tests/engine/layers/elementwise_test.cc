// Compares normalizations and activations with double, the other functions with plain loops, on
// every SIMD target of the machine.
#include "engine/layers/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "cpu/elementwise/elementwise.h"
#include "multihead/elementwise.h"
#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead {
namespace {

using testing::Random;

constexpr Activation kActivations[] = {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
                                       Activation::kSilu};

double expected_activation(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      break;
  }
  return x / (1 + std::exp(-x));
}

class ElementwiseOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
  Context context_{2};
};

TEST_P(ElementwiseOnTarget, ActivationsOverTheirWholeRange) {
  std::vector<float> x;
  for (double value = -40; value <= 40; value += 1.0 / 512) x.push_back(static_cast<float>(value));
  for (const float value : {0.0F, -0.0F, 1e-30F, -1e-30F, 1e30F, 88.0F, -88.0F, 1000.0F}) {
    x.push_back(value);
  }
  const Dims shape{1, static_cast<int64_t>(x.size())};
  for (const Activation activation : kActivations) {
    std::vector<float> y(x.size());
    ASSERT_TRUE(activate({x.data(), shape}, activation, {y.data(), shape}, context_).ok());
    for (size_t i = 0; i < x.size(); ++i) {
      const auto value = static_cast<double>(x[i]);
      const double expected = expected_activation(activation, value);
      ASSERT_NEAR(y[i], expected, 2e-7 * std::max(1.0, std::abs(value)))
          << static_cast<int>(activation) << " of " << value;
    }
    // NaN stays NaN, and does not change its neighbors.
    std::vector<float> with_nan(20, 1.0F);
    with_nan[3] = std::numeric_limits<float>::quiet_NaN();
    ASSERT_TRUE(
        activate({with_nan.data(), {4, 5}}, activation, {with_nan.data(), {4, 5}}, context_).ok());
    for (size_t i = 0; i < with_nan.size(); ++i) EXPECT_EQ(std::isnan(with_nan[i]), i == 3);
  }
}

TEST_P(ElementwiseOnTarget, RowsOfAnyWidthAndStride) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t rows = random.integer(1, 9), width = random.integer(1, 300);
    const int64_t stride = width + random.integer(0, 3);
    const float center = random.chance(0.3) ? 100.0F : 0.0F;
    const std::vector<float> x = random.floats(rows * stride, center - 2.0F, center + 2.0F);
    const std::vector<float> gate = random.floats(rows * stride, -4.0F, 4.0F);
    const std::vector<float> weight = random.floats(width), bias = random.floats(width);
    const bool has_weight = random.chance(0.7), has_bias = random.chance(0.7);
    const bool in_place = random.chance(0.5);
    const Dims shape{rows, width}, strides{stride, 1};
    const ConstTensor w = has_weight ? ConstTensor(weight.data(), {width}) : ConstTensor();
    const ConstTensor b = has_bias ? ConstTensor(bias.data(), {width}) : ConstTensor();
    for (const int which : {0, 1, 2}) {
      std::vector<float> y = which == 2 ? gate : x;
      const ConstTensor from{in_place ? y.data() : (which == 2 ? gate : x).data(), shape, strides};
      const Tensor to{y.data(), shape, strides};
      Status status;
      if (which == 0) status = layer_norm(from, w, b, 1e-5F, to, context_);
      if (which == 1) status = rms_norm(from, w, 1e-6F, to, context_);
      if (which == 2) {
        status = activate_gated(from, {x.data(), shape, strides}, Activation::kSilu, to, context_);
      }
      ASSERT_TRUE(status.ok()) << status.message();
      for (int64_t r = 0; r < rows; ++r) {
        const float* const row = x.data() + r * stride;
        double mean = 0, squares = 0;
        for (int64_t c = 0; c < width; ++c) mean += static_cast<double>(row[c]);
        mean = which == 0 ? mean / static_cast<double>(width) : 0.0;
        for (int64_t c = 0; c < width; ++c) {
          const double centered = static_cast<double>(row[c]) - mean;
          squares += centered * centered;
        }
        const double deviation =
            std::sqrt(squares / static_cast<double>(width) + (which == 0 ? 1e-5 : 1e-6));
        for (int64_t c = 0; c < stride; ++c) {
          const auto at = static_cast<size_t>(r * stride + c);
          if (c >= width) {
            ASSERT_EQ(y[at], which == 2 ? gate[at] : x[at]) << "written past the row";
            continue;
          }
          const auto column = static_cast<size_t>(c);
          double expected = (static_cast<double>(x[at]) - mean) / deviation;
          if (has_weight) expected *= static_cast<double>(weight[column]);
          if (has_bias && which == 0) expected += static_cast<double>(bias[column]);
          if (which == 2) {
            expected = expected_activation(Activation::kSilu, static_cast<double>(gate[at])) *
                       static_cast<double>(x[at]);
          }
          // In float, a mean of 100 has an error of 1e-5; division by a small deviation enlarges
          // it.
          const double tolerance =
              which == 0 && center != 0.0F ? 2e-5 / std::min(deviation, 1.0) : 2e-6;
          ASSERT_NEAR(y[at], expected, tolerance * std::max(1.0, std::abs(expected))) << which;
        }
      }
    }
  }
}

// Enough elements for several threads, with every remainder of a vector length.
TEST_P(ElementwiseOnTarget, SumsOfAnyLength) {
  Random random(1);
  for (const int64_t count : {0, 1, 2, 3, 5, 8, 13, 16, 21, 34, 63, 64, 65, 16384, 50001}) {
    const std::vector<float> a = random.floats(count), b = random.floats(count);
    std::vector<float> expected, y(a.size() + 1, 42.0F), in_place = a;
    for (size_t i = 0; i < a.size(); ++i) expected.push_back(a[i] + b[i]);
    engine::add(a.data(), b.data(), y.data(), count, context_);
    engine::add(in_place.data(), b.data(), in_place.data(), count, context_);
    EXPECT_EQ(y.back(), 42.0F);
    y.pop_back();
    EXPECT_EQ(y, expected) << count;
    EXPECT_EQ(in_place, expected) << count;
  }
}

TEST_P(ElementwiseOnTarget, EmbeddingsWithAndWithoutPositions) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t width = random.integer(1, 70), batch = random.integer(1, 3);
    const int64_t sequence = random.integer(1, random.chance(0.2) ? 900 : 9);
    const int64_t vocabulary = random.integer(1, 30), first = random.integer(0, 5);
    const std::vector<float> table = random.floats(vocabulary * width);
    const std::vector<float> positions = random.floats((first + sequence) * width);
    std::vector<int32_t> tokens(static_cast<size_t>(batch * sequence));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.integer(0, vocabulary - 1));
    for (const bool has_positions : {false, true}) {
      std::vector<float> expected;
      for (size_t row = 0; row < tokens.size(); ++row) {
        const int64_t position = first + static_cast<int64_t>(row) % sequence;
        for (int64_t c = 0; c < width; ++c) {
          const float value = table[static_cast<size_t>(tokens[row] * width + c)];
          expected.push_back(
              has_positions ? value + positions[static_cast<size_t>(position * width + c)] : value);
        }
      }
      std::vector<float> y(expected.size());
      const cpu::EmbedParams params{.tokens = tokens.data(),
                                    .embeddings = table.data(),
                                    .positions = has_positions ? positions.data() : nullptr,
                                    .first_position = first,
                                    .sequence = sequence,
                                    .width = width,
                                    .y = y.data()};
      engine::over_rows(params, batch * sequence, width, cpu::embed_rows, context_);
      EXPECT_EQ(y, expected);
    }
  }
}

// (B, H, N, width) with a token's heads side by side, or with head after head, with gaps.
struct Heads {
  Dims shape, strides;
  std::vector<float> data;

  explicit Heads(Random& random)
      : shape{random.integer(1, 3), random.integer(1, 5), random.integer(1, 9),
              random.integer(1, random.chance(0.2) ? 2000 : 70)} {
    const int64_t head = shape[3] + random.integer(0, 2);
    const bool tokens_first = random.chance(0.5);
    const int64_t token = tokens_first ? shape[1] * head + random.integer(0, 2) : head;
    strides = {shape[1] * shape[2] * (head + 2), tokens_first ? head : shape[2] * head, token, 1};
    data = random.floats(shape[0] * strides[0]);
  }

  size_t index(int64_t b, int64_t h, int64_t n, int64_t c) const {
    return static_cast<size_t>(b * strides[0] + h * strides[1] + n * strides[2] + c);
  }
  template <class Each>
  void for_each(Each&& each) const {
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t n = 0; n < shape[2]; ++n) {
          for (int64_t c = 0; c < shape[3]; ++c) each(b, h, n, c);
        }
      }
    }
  }
};

TEST_P(ElementwiseOnTarget, CopiesScalesAndAveragesHeads) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Heads from(random);
    const Dims& shape = from.shape;

    Heads copied = from;
    std::fill(copied.data.begin(), copied.data.end(), 42.0F);
    std::vector<float> expected = copied.data;
    from.for_each([&](auto... at) { expected[from.index(at...)] = from.data[from.index(at...)]; });
    engine::copy_rows({from.data.data(), shape, from.strides},
                      {copied.data.data(), shape, from.strides}, context_);
    EXPECT_EQ(copied.data, expected);

    std::vector<float> factors = random.floats(shape[1], -2.0F, 2.0F);
    factors[0] = 0.0F;
    Heads scaled = from;
    scaled.data[0] = std::numeric_limits<float>::quiet_NaN();
    expected = scaled.data;
    from.for_each([&](int64_t b, int64_t h, int64_t n, int64_t c) {
      float& value = expected[from.index(b, h, n, c)];
      const float factor = factors[static_cast<size_t>(h)];
      value = factor == 0.0F ? 0.0F : value * factor;
    });
    engine::scale_heads({scaled.data.data(), shape, from.strides}, factors, context_);
    EXPECT_EQ(scaled.data, expected);

    const Dims mean_shape{shape[0], shape[2], shape[3]};
    std::vector<float> mean(static_cast<size_t>(mean_shape.elements()));
    expected.assign(mean.size(), 0.0F);
    const auto at = [&](int64_t b, int64_t n, int64_t c) {
      return static_cast<size_t>((b * shape[2] + n) * shape[3] + c);
    };
    from.for_each([&](int64_t b, int64_t h, int64_t n, int64_t c) {
      expected[at(b, n, c)] += from.data[from.index(b, h, n, c)];
    });
    const auto factor = static_cast<float>(1.0 / static_cast<double>(shape[1]));
    for (float& value : expected) value *= factor;
    engine::mean_over_heads({from.data.data(), shape, from.strides}, {mean.data(), mean_shape},
                            context_);
    EXPECT_EQ(mean, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ElementwiseOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

TEST(Elementwise, RefusesWhatDoesNotFit) {
  std::vector<float> data(64, 42.0F);
  Context context(1);
  const Tensor good{data.data(), {2, 3}};
  const ConstTensor x = good;
  const auto argument = [](const Status& status) { return status.argument(); };
  EXPECT_EQ(argument(layer_norm({data.data(), {6}}, {}, {}, 0.1F, good, context)), "x");
  EXPECT_EQ(argument(layer_norm(x, {data.data(), {2}}, {}, 0.1F, good, context)), "weight");
  EXPECT_EQ(argument(layer_norm(x, {}, {data.data(), {4}}, 0.1F, good, context)), "bias");
  EXPECT_EQ(argument(layer_norm(x, {}, {}, -0.1F, good, context)), "eps");
  EXPECT_EQ(argument(rms_norm(x, {}, NAN, good, context)), "eps");
  EXPECT_EQ(argument(rms_norm(x, {}, 0.1F, {data.data(), {3, 2}}, context)), "y");
  EXPECT_EQ(argument(activate({nullptr, {2, 3}}, Activation::kGelu, good, context)), "x");
  EXPECT_EQ(argument(activate_gated(x, {data.data(), {2, 4}}, Activation::kSilu, good, context)),
            "x");
  EXPECT_EQ(data, std::vector<float>(64, 42.0F));
  EXPECT_TRUE(layer_norm({nullptr, {0, 3}}, {}, {}, 0.1F, {nullptr, {0, 3}}, context).ok());
  EXPECT_TRUE(layer_norm({nullptr, {3, 0}}, {}, {}, 0.1F, {nullptr, {3, 0}}, context).ok());
  // No elements, but gaps between rows.
  const Tensor nothing{nullptr, {3, 0}, {5, 1}};
  EXPECT_TRUE(activate(nothing, Activation::kGelu, nothing, context).ok());
  EXPECT_TRUE(activate_gated(nothing, nothing, Activation::kGelu, nothing, context).ok());
}

}  // namespace
}  // namespace multihead
