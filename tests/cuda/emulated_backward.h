// Runs a call of a backward kernel in the emulator, and compares it with the Eigen oracle.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda/backward_params.h"
#include "cuda/emulated_forward.h"
#include "cuda/emulator/memory.h"
#include "cuda/kernels.h"
#include "engine/attention/plan.h"
#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "reference/reference_attention.h"
#include "reference/reference_backward.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"
#include "support/random_backward.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {

using multihead::testing::BackwardCall;
using multihead::testing::Gradients;

using LaunchBackward = int (*)(const BackwardParams&, const Device&, StreamHandle);

// Plans a call with the engine and runs it in the emulator; `launch` computes d_q, d_k and d_v. The
// default d_out is ConstTensor(call.d_out).
inline Gradients run_backward(const BackwardCall& call, const ConstAnyTensor& d_out,
                              LaunchBackward launch) {
  const auto& c = call.c;
  Gradients g = call.empty();
  const AttentionGradients views = call.views(g);
  engine::AttentionShape shape;
  Status status = engine::validate_inputs(c.q, c.k, c.v, shape);
  if (status.ok()) status = engine::validate_options(c.options, shape);
  if (status.ok()) {
    status =
        engine::validate_backward({c.q, c.k, c.v, c.options, call.results(), d_out, views}, shape);
  }
  EXPECT_TRUE(status.ok()) << status.message();
  engine::BackwardPlan plan =
      engine::plan_backward({c.q, c.k, c.v, c.options, call.results(), d_out, views}, shape);
  Context context(1);
  rules::AttentionParams& forward = plan.params.forward;
  if (plan.transforms) {
    status = engine::transform_inputs(*plan.transforms, forward, context);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  BackwardParams params{};
  static_cast<rules::GradientParams&>(params) = plan.params;
  params.forward.call = forward;
  const size_t rows = call.lse.size();
  std::vector<float> delta(rows), reference(rows);
  const rules::RowStrides strides{c.lse_shape[1] * c.lse_shape[2], c.lse_shape[2], 1};
  params.delta = {delta.data(), strides};
  params.reference = {reference.data(), strides};
  params.d_sinks = g.d_sinks.empty() ? nullptr : g.d_sinks.data();
  {
    Mapped memory;
    const auto map_rows = [&](const rules::StoredRows& of, int64_t heads, int64_t positions,
                              int64_t width, const char* name) {
      memory.map_rows(of, heads, forward.batch, positions, width, name);
    };
    map_rows(forward.q, forward.heads, forward.queries, forward.head_dim, "q");
    map_rows(forward.k, forward.kv_heads, forward.keys, forward.head_dim, "k");
    map_rows(forward.v, forward.kv_heads, forward.keys, forward.value_dim, "v");
    map_rows(params.out, forward.heads, forward.queries, forward.value_dim, "out");
    map_rows(params.d_out, forward.heads, forward.queries, forward.value_dim, "d_out");
    memory.map_input(call.lse, "lse");
    memory.map_scores(forward.mask, c.weights_shape, "mask");
    memory.map_scores(forward.bias, c.weights_shape, "bias");
    memory.map_input(c.options.kv_lengths, "kv_lengths");
    memory.map_input(c.options.alibi_slopes, "alibi_slopes");
    memory.map_input(c.options.sinks, "sinks");
    for (auto* const array : {&delta, &reference}) {
      memory.map(array->data(), array->size() * sizeof(float), Use::kWorkspace, "workspace");
    }
    const std::pair<std::vector<float>&, const char*> outputs[] = {{g.d_q, "d_q"},
                                                                   {g.d_k, "d_k"},
                                                                   {g.d_v, "d_v"},
                                                                   {g.d_bias, "d_bias"},
                                                                   {g.d_sinks, "d_sinks"}};
    for (const auto& [array, name] : outputs) {
      memory.map(array.data(), array.size() * sizeof(float), Use::kOutput, name);
    }
    if (rows > 0) {
      EXPECT_EQ(launch_backward_rows(params, nullptr), 0);
    }
    if (forward.batch * forward.kv_heads > 0) {
      EXPECT_EQ(launch(params, kDevice, nullptr), 0);
    }
    if (!g.d_bias.empty()) {
      EXPECT_EQ(launch_bias_gradient(params, nullptr), 0);
    }
    if (!g.d_sinks.empty()) {
      EXPECT_EQ(launch_sink_gradient(params, nullptr), 0);
    }
  }
  EXPECT_EQ(device().take_findings(), std::vector<std::string>());
  if (plan.transforms) {
    const engine::InputTransforms& transforms = *plan.transforms;
    status = engine::transform_back(transforms.q, transforms.query_transform(), views.d_q,
                                    views.d_q_gain, context);
    EXPECT_TRUE(status.ok()) << status.message();
    status = engine::transform_back(transforms.k, transforms.key_transform(), views.d_k,
                                    views.d_k_gain, context);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return g;
}

inline void expect_near(const char* name, const std::vector<float>& got,
                        const std::vector<double>& expected, double allowed) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
    ASSERT_NEAR(static_cast<double>(got[i]), expected[i], allowed) << name << "[" << i << "]";
  }
}

// Uses the tolerance of engine/attention/backward_test.cc. `of_products`: relative error of weights
// and score gradients, which a kernel rounds before its products. `of_scores`: relative error of
// the scores.
inline void expect_equals_oracle(const BackwardCall& call, const Gradients& got,
                                 const ConstAnyTensor& d_out, double of_products,
                                 double of_scores = 0.0) {
  const auto& c = call.c;
  const reference::ReferenceGradients expected =
      reference::attention_backward(c.q, c.k, c.v, c.options, d_out);
  const double relative = multihead::testing::error_of_weights(call.lse);
  const double largest = multihead::testing::largest_gradient(expected);
  const double exact = (relative + of_scores) * largest, allowed = exact + of_products * largest;
  expect_near("d_q", got.d_q, expected.d_q, allowed);
  expect_near("d_k", got.d_k, expected.d_k, allowed);
  expect_near("d_v", got.d_v, expected.d_v, allowed);
  expect_near("d_bias", got.d_bias, expected.d_bias, exact);
  expect_near("d_sinks", got.d_sinks, expected.d_sinks, exact);
  expect_near("d_q_gain", got.d_q_gain, expected.d_q_gain, 8 * allowed);
  expect_near("d_k_gain", got.d_k_gain, expected.d_k_gain, 8 * allowed);
}

}  // namespace multihead::cuda::testing
