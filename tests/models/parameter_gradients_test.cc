// Gradients with respect to the tensors of the files, against differences of the metric of models
// whose tensors were changed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/golden_models.h"
#include "multihead/analysis.h"

namespace multihead::testing {
namespace {

using models::Metric;

double metric_of(const models::Model& model, const std::vector<int32_t>& ids, const Metric& metric,
                 Context& context) {
  std::vector<double> result;
  const Status status = models::measure(model, {.ids = ids}, metric, result, context);
  if (!status.ok()) ADD_FAILURE() << status.message();
  return result.empty() ? 0.0 : result[0];
}

// Moves the numbers of a tensor by sign * `step` * direction, and returns how far each one moved:
// numbers of 16 bits are rounded.
std::vector<double> move_numbers(std::span<std::byte> bytes, size_t count,
                                 const std::vector<float>& direction, double step) {
  std::vector<double> moved(count);
  for (size_t i = 0; i < count; ++i) {
    const double by = step * direction[i];
    if (bytes.size() == 4 * count) {
      float value = 0;
      std::memcpy(&value, bytes.data() + 4 * i, 4);
      const auto changed = static_cast<float>(value + by);
      std::memcpy(bytes.data() + 4 * i, &changed, 4);
      moved[i] = static_cast<double>(changed) - value;
      continue;
    }
    // bf16: the upper half of a float.
    uint32_t bits = 0;
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + 2, bytes.data() + 2 * i, 2);
    float value = 0;
    std::memcpy(&value, &bits, 4);
    auto changed = static_cast<float>(value + by);
    std::memcpy(&bits, &changed, 4);
    bits = (bits + 0x8000U) & 0xFFFF0000U;
    std::memcpy(&changed, &bits, 4);
    std::memcpy(bytes.data() + 2 * i, reinterpret_cast<std::byte*>(&bits) + 2, 2);
    moved[i] = static_cast<double>(changed) - value;
  }
  return moved;
}

class ParameterGradients : public ::testing::TestWithParam<const char*> {};

TEST_P(ParameterGradients, EqualDifferencesOfTheMetric) {
  const std::string name = GetParam();
  Context context(1);
  const models::Model model = open_golden(name);
  const std::vector<models::StoredTensor> tensors = models::parameters(model);
  ASSERT_FALSE(tensors.empty());
  const std::vector<int32_t> ids{5, 9, 2, 5, 7};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const Metric metrics[] = {{.token = 3, .against = 8},
                            {.kind = Metric::Kind::kMeanLogProbability}};
  for (const Metric& metric : metrics) {
    std::vector<std::vector<float>> values;
    std::vector<models::ParameterGradient> wanted;
    for (const models::StoredTensor& tensor : tensors) {
      values.emplace_back(static_cast<size_t>(tensor.shape.elements()), NAN);
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      wanted.push_back({tensors[i].name, {values[i].data(), tensors[i].shape}});
    }
    const Status status = models::parameter_gradients(model, {.ids = ids}, metric, wanted, context);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const size_t count = values[i].size();
      double norm = 0;
      for (const float value : values[i]) {
        ASSERT_TRUE(std::isfinite(value)) << tensors[i].name;
        norm += static_cast<double>(value) * value;
      }
      // Along the gradient, with some noise, so that a part that is missing shows.
      std::vector<float> direction(count);
      double length = 0;
      for (size_t k = 0; k < count; ++k) {
        direction[k] = static_cast<float>(values[i][k] / std::sqrt(norm + 1e-30)) +
                       0.3F * normal(random) / std::sqrt(static_cast<float>(count));
        length += static_cast<double>(direction[k]) * direction[k];
      }
      double ends[2] = {}, expected = 0;
      for (const int side : {0, 1}) {
        std::vector<double> moved;
        const models::Model changed =
            open_changed(name, [&](const std::string& tensor, std::span<std::byte> bytes) {
              if (tensor != tensors[i].name) return;
              const double step = (side == 0 ? 0.004 : -0.004) / std::sqrt(length);
              moved = move_numbers(bytes, count, direction, step);
            });
        ends[side] = metric_of(changed, ids, metric, context);
        for (size_t k = 0; k < count; ++k) {
          expected += (side == 0 ? 1.0 : -1.0) * values[i][k] * moved[k];
        }
      }
      EXPECT_NEAR(ends[0] - ends[1], expected, 1e-5 + 0.02 * std::abs(expected))
          << name << ' ' << tensors[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ParameterGradients,
                         ::testing::Values("gpt2", "gpt_neox", "gemma2", "gemma3", "olmo2", "phi3",
                                           "qwen2", "llama3", "starcoder2", "smollm3", "arcee",
                                           "cohere2", "ernie4_5", "exaone4", "glm4", "gpt_neo",
                                           "gptj", "granite", "hunyuan", "olmo", "olmo3", "opt",
                                           "phi", "stablelm_12b", "bloom", "gpt_bigcode",
                                           "nanochat"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ParameterGradients, RefuseTensorsThatTheModelDoesNotUse) {
  Context context(1);
  const models::Model model = open_golden("gpt2");
  const std::vector<int32_t> ids{1, 2, 3};
  std::vector<float> out(4);
  const models::ParameterGradient wrong{"no.such.tensor", {out.data(), {4}}};
  const Status status = models::parameter_gradients(model, {.ids = ids}, {}, {&wrong, 1}, context);
  EXPECT_EQ(status.code(), StatusCode::kOption);
  EXPECT_EQ(status.argument(), "outputs[0].name");
  const models::ParameterGradient shape{models::parameters(model)[0].name, {out.data(), {4}}};
  EXPECT_EQ(models::parameter_gradients(model, {.ids = ids}, {}, {&shape, 1}, context).code(),
            StatusCode::kShape);
  EXPECT_TRUE(models::parameters(models::Model()).empty());
}

TEST(ParameterGradients, RefuseAMetricThatIsNotFinite) {
  Context context(1);
  const models::Model model = open_golden("gpt2");
  const std::vector<int32_t> ids{1, 2, 3};
  const models::StoredTensor tensor = models::parameters(model).front();
  for (const auto& [value, slope] : {std::pair{0.0, NAN}, {0.0, INFINITY}, {double{NAN}, 1.0F}}) {
    const Metric metric{.kind = Metric::Kind::kFunction,
                        .function = [&](std::span<const float>, std::span<float> gradient) {
                          if (!gradient.empty()) gradient[7] = slope;
                          return value;
                        }};
    std::vector<float> out(static_cast<size_t>(tensor.shape.elements()));
    const models::ParameterGradient wanted{tensor.name, {out.data(), tensor.shape}};
    const Status status =
        models::parameter_gradients(model, {.ids = ids}, metric, {&wanted, 1}, context);
    EXPECT_EQ(status.code(), StatusCode::kOption);
    EXPECT_EQ(status.argument(), "metric");
    EXPECT_EQ(out, std::vector<float>(out.size())) << "wrote";
  }
}

}  // namespace
}  // namespace multihead::testing
