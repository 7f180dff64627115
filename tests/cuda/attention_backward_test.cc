// attention_backward() and attention_varlen_backward() of multihead/cuda.h in the emulator,
// compared with the oracle and with the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/emulated_backward.h"
#include "cuda/emulator/memory.h"
#include "cuda/emulator/runtime.h"
#include "cuda/hopper_case.h"
#include "cuda/kernels.h"
#include "cuda/mapped_case.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"
#include "reference/reference_attention.h"
#include "reference/reference_backward.h"
#include "support/packed_case.h"
#include "support/random_backward.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using emulator::Use;
using multihead::testing::empty_gradients;
using multihead::testing::PackedCase;
using multihead::testing::poisoned;
using multihead::testing::random_seeds;

void map_gradients(Mapping& mapping, const Gradients& g) {
  for (const auto* const array :
       {&g.d_q, &g.d_k, &g.d_v, &g.d_bias, &g.d_sinks, &g.d_q_gain, &g.d_k_gain}) {
    mapping.add(*array, Use::kOutput, "gradient");
  }
}

Gradients run_call(const BackwardCall& call) {
  const RandomCase& c = call.c;
  Gradients g = call.empty();
  const AttentionGradients views = call.views(g);
  const ConstTensor d_out(call.d_out.data(), c.out_shape);
  Mapping mapping;
  mapping.add_inputs(c);
  for (const auto* const array : {&call.out, &call.lse, &call.d_out}) {
    mapping.add(*array, Use::kInput, "results");
  }
  map_gradients(mapping, g);
  uint64_t bytes = 0;
  Status status =
      attention_backward_workspace(c.q, c.k, c.v, c.options, call.results(), d_out, views, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  const MappedWorkspace workspace(bytes);
  status = attention_backward(c.q, c.k, c.v, c.options, call.results(), d_out, views,
                              workspace.get(), /*stream=*/nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  expect_no_findings();
  return g;
}

TEST(CudaAttentionBackward, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : random_seeds(120)) {
    const BackwardCall call(seed, {.max_queries = 20, .max_keys = 50, .max_width = 24});
    const RandomCase& c = call.c;
    SCOPED_TRACE(c.description);
    emulator::device().set_seed(seed);
    const bool transformed =
        c.options.qk_norm.enabled || c.options.rope.style != Rope::Style::kNone;
    // After RoPE and QK-norm, 16-bit q and k are rounded to 16 bits.
    const bool rounded = transformed && (c.q.dtype != DType::kF32 || c.k.dtype != DType::kF32);
    const ConstTensor d_out(call.d_out.data(), c.out_shape);
    expect_equals_oracle(call, run_call(call), d_out, 0.0, rounded ? 0x1p-5 : 0.0);
    if (HasFailure()) return;
  }
}

TEST(CudaAttentionBackward, HasTheSameBitsInAnyOrderOfTheThreads) {
  for (const uint64_t seed : random_seeds(10)) {
    const BackwardCall call(seed, {.max_queries = 20, .max_keys = 60, .max_width = 20});
    SCOPED_TRACE(call.c.description);
    emulator::device().set_seed(seed);
    const Gradients first = run_call(call);
    emulator::device().set_seed(seed + 1);
    EXPECT_TRUE(run_call(call).same_as(first));
  }
}

// 16-bit inputs run through the kernel that the plan chooses on each device. The tests of the
// kernels have more options and tighter bounds.
TEST(CudaAttentionBackward, RunsTheKernelsFor16BitInputs) {
  const struct {
    Device device;
    const char* kernel;
  } devices[] = {
      {{.compute_capability = 80, .multiprocessors = 4, .shared_bytes = 163 << 10}, "mma.sync on"},
      {{.compute_capability = 90, .multiprocessors = 4, .shared_bytes = 227 << 10}, "wgmma and"}};
  for (const uint64_t seed : random_seeds(6)) {
    for (const auto& [device, kernel] : devices) {
      Random random(seed);
      const DType type = random.pick({DType::kBF16, DType::kF16});
      const Dims of_queries{1, 4, 70, 64}, of_keys{1, 2, 90, 64}, of_lse{1, 4, 70};
      const Halves q(random, of_queries, type), k(random, of_keys, type), v(random, of_keys, type),
          d_out(random, of_queries, type);
      AttentionOptions options;
      options.causal.alignment = random.pick({Alignment::kNone, Alignment::kBottomRight});
      const reference::ReferenceOutputs exact =
          reference::attention(q.view(), k.view(), v.view(), options);
      const std::vector<float> out(exact.out.begin(), exact.out.end());
      const std::vector<float> lse(exact.lse.begin(), exact.lse.end());
      const AttentionResults results{.out = ConstTensor(out.data(), of_queries),
                                     .lse = ConstTensor(lse.data(), of_lse)};
      Gradients g;
      g.d_q = poisoned(of_queries.elements());
      g.d_k = poisoned(of_keys.elements());
      g.d_v = poisoned(of_keys.elements());
      const AttentionGradients views{.d_q = {g.d_q.data(), of_queries},
                                     .d_k = {g.d_k.data(), of_keys},
                                     .d_v = {g.d_v.data(), of_keys}};
      Mapping mapping;
      for (const Halves* const rows : {&q, &k, &v, &d_out}) {
        mapping.add(rows->data, rows->bytes(), Use::kInput, "rows");
      }
      for (const auto* const array : {&out, &lse}) mapping.add(*array, Use::kInput, "results");
      map_gradients(mapping, g);
      const MappedWorkspace workspace(1 << 14);
      emulator::device().set_seed(seed);
      emulator::runtime_state().device = device;
      const std::string explanation =
          explain_backward(q.view(), k.view(), v.view(), options, results, d_out.view(), views);
      const Status status = attention_backward(q.view(), k.view(), v.view(), options, results,
                                               d_out.view(), views, workspace.get(),
                                               /*stream=*/nullptr);
      emulator::runtime_state() = {};
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(explanation.starts_with(kernel)) << explanation;
      expect_no_findings();
      const reference::ReferenceGradients expected =
          reference::attention_backward(q.view(), k.view(), v.view(), options, d_out.view());
      const double allowed = 0x1p-6 * multihead::testing::largest_gradient(expected);
      expect_near("d_q", g.d_q, expected.d_q, allowed);
      expect_near("d_k", g.d_k, expected.d_k, allowed);
      expect_near("d_v", g.d_v, expected.d_v, allowed);
      if (HasFailure()) return;
    }
  }
}

// Packed sequences, their results on the CPU, and d_out.
struct PackedCall {
  PackedCase c;
  AttentionOptions options;
  ConstTensor q, k, v;
  std::vector<float> out, lse, d_out;
  PackedSequences sequences;

  explicit PackedCall(uint64_t seed)
      : c(seed),
        options(c.options()),
        q(c.q.data(), {c.queries(), c.heads, c.width}),
        k(c.k.data(), {c.keys(), c.kv_heads, c.width}),
        v(c.v.data(), {c.keys(), c.kv_heads, c.value_dim}),
        out(poisoned(c.queries() * c.heads * c.value_dim)),
        lse(poisoned(c.queries() * c.heads)),
        sequences{.cu_q = c.cu_q, .cu_k = c.cu_k} {
    Random random(seed + 77);
    d_out = random.floats(c.queries() * c.heads * c.value_dim);
    for (size_t s = 0; s + 1 < c.cu_q.size(); ++s) {
      sequences.max_queries = std::max<int64_t>(sequences.max_queries, c.cu_q[s + 1] - c.cu_q[s]);
      sequences.max_keys = std::max<int64_t>(sequences.max_keys, c.cu_k[s + 1] - c.cu_k[s]);
    }
    Context context(1);
    const Status status = multihead::attention_varlen(
        q, k, v, c.cu_q, c.cu_k, options,
        {.out = {out.data(), out_shape()}, .lse = {lse.data(), {c.heads, c.queries()}}}, context);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  Dims out_shape() const { return {c.queries(), c.heads, c.value_dim}; }
  AttentionResults results() const {
    return {.out = ConstTensor(out.data(), out_shape()),
            .lse = {lse.data(), {c.heads, c.queries()}}};
  }
  ConstAnyTensor d_out_view() const { return ConstTensor(d_out.data(), out_shape()); }

  Gradients empty() const {
    const int64_t gains = options.qk_norm.enabled ? c.width : 0;
    return {.d_q = poisoned(q.shape.elements()),
            .d_k = poisoned(k.shape.elements()),
            .d_v = poisoned(v.shape.elements()),
            .d_bias = {},
            .d_sinks = poisoned(static_cast<int64_t>(options.sinks.size())),
            .d_q_gain = poisoned(gains),
            .d_k_gain = poisoned(gains)};
  }
  AttentionGradients views(Gradients& g) const {
    return {.d_q = {g.d_q.data(), q.shape},
            .d_k = {g.d_k.data(), k.shape},
            .d_v = {g.d_v.data(), v.shape},
            .d_bias = {},
            .d_sinks = g.d_sinks,
            .d_q_gain = g.d_q_gain,
            .d_k_gain = g.d_k_gain};
  }
};

TEST(CudaAttentionBackward, PackedSequencesEqualThoseOfTheCpu) {
  for (const uint64_t seed : random_seeds(100)) {
    SCOPED_TRACE(seed);
    const PackedCall call(seed);
    const PackedCase& c = call.c;
    Gradients cpu = call.empty(), g = call.empty();
    Context context(1);
    Status status = multihead::attention_varlen_backward(
        call.q, call.k, call.v, c.cu_q, c.cu_k, call.options, call.results(), call.d_out_view(),
        call.views(cpu), context);
    ASSERT_TRUE(status.ok()) << status.message();
    Mapping mapping;
    for (const auto* const array :
         {&c.q, &c.k, &c.v, &c.sinks, &c.gain, &c.slopes, &call.out, &call.lse, &call.d_out}) {
      mapping.add(*array, Use::kInput, "floats");
    }
    for (const auto* const rows : {&c.cu_q, &c.cu_k}) mapping.add(*rows, Use::kInput, "rows");
    map_gradients(mapping, g);
    const AttentionGradients views = call.views(g);
    uint64_t bytes = 0;
    status =
        attention_varlen_backward_workspace(call.q, call.k, call.v, call.sequences, call.options,
                                            call.results(), call.d_out_view(), views, bytes);
    ASSERT_TRUE(status.ok()) << status.message();
    const MappedWorkspace workspace(bytes);
    emulator::device().set_seed(seed);
    status = attention_varlen_backward(call.q, call.k, call.v, call.sequences, call.options,
                                       call.results(), call.d_out_view(), views, workspace.get(),
                                       /*stream=*/nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_no_findings();
    const auto expect_close = [](const char* name, const std::vector<float>& got,
                                 const std::vector<float>& of_cpu, double factor) {
      double largest = 1.0;
      for (const float value : of_cpu) {
        largest = std::max(largest, std::abs(static_cast<double>(value)));
      }
      expect_near(name, got, {of_cpu.begin(), of_cpu.end()}, 1e-5 * factor * largest);
    };
    expect_close("d_q", g.d_q, cpu.d_q, 1);
    expect_close("d_k", g.d_k, cpu.d_k, 1);
    expect_close("d_v", g.d_v, cpu.d_v, 1);
    expect_close("d_sinks", g.d_sinks, cpu.d_sinks, 1);
    expect_close("d_q_gain", g.d_q_gain, cpu.d_q_gain, 8);
    expect_close("d_k_gain", g.d_k_gain, cpu.d_k_gain, 8);
    if (HasFailure()) return;
  }
}

// Rows outside all sequences, which hold NaN, get no gradient: T = 4 rows with one sequence in the
// middle, or with none.
TEST(CudaAttentionBackward, RowsOfNoSequenceGetNothing) {
  const Dims shape{4, 1, 2};
  for (const std::vector<int32_t>& cu : {std::vector<int32_t>{1, 3}, std::vector<int32_t>{0}}) {
    const bool has_sequence = cu.size() > 1;
    const std::vector<float> x{NAN, NAN, 0.5F, 0.25F, -0.5F, 1.0F, NAN, NAN}, lse{0, 1, 1, 0};
    std::vector<float> d_q(8, kUntouched), d_k(8, kUntouched), gains(4, kUntouched);
    const std::span<float> both = gains;
    Mapping mapping;
    mapping.add(cu, Use::kInput, "rows");
    for (const auto* const array : {&x, &lse}) mapping.add(*array, Use::kInput, "floats");
    for (const auto* const array : {&d_q, &d_k, &gains}) mapping.add(*array, Use::kOutput, "out");
    AttentionOptions options;
    options.rope.style = Rope::Style::kHalf;
    options.qk_norm.enabled = true;
    const ConstTensor rows(x.data(), shape);
    const AttentionResults results{.out = rows, .lse = {lse.data(), {1, 4}}};
    const AttentionGradients gradients{.d_q = {d_q.data(), shape},
                                       .d_k = {d_k.data(), shape},
                                       .d_v = {},
                                       .d_bias = {},
                                       .d_sinks = {},
                                       .d_q_gain = both.first(2),
                                       .d_k_gain = both.last(2)};
    const PackedSequences sequences{.cu_q = cu, .cu_k = cu, .max_queries = 4, .max_keys = 4};
    const MappedWorkspace workspace(1 << 12);
    const Status status =
        attention_varlen_backward(rows, rows, rows, sequences, options, results, rows, gradients,
                                  workspace.get(), /*stream=*/nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_no_findings();
    for (size_t i = 0; i < d_q.size(); ++i) {
      const bool in_sequence = has_sequence && i >= 2 && i < 6;
      EXPECT_EQ(d_q[i] != kUntouched, in_sequence) << i;
      EXPECT_EQ(d_k[i] != kUntouched, in_sequence) << i;
    }
    for (const float value : gains) {
      EXPECT_TRUE(has_sequence ? std::isfinite(value) : value == 0.0F) << value;
    }
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
