// The entry points of multihead/cuda.h in the emulator, compared with the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emulator/runtime.h"
#include "cuda/mapped_case.h"
#include "multihead/cuda.h"
#include "reference/reference_attention.h"
#include "rules/dropout_mask.h"
#include "support/captured.h"
#include "support/closeness.h"
#include "support/packed_case.h"

namespace multihead::cuda::testing {
namespace {

using multihead::testing::captured;
using multihead::testing::excess;
using multihead::testing::largest_difference;
using multihead::testing::PackedCase;
using multihead::testing::Random;
using multihead::testing::random_case;
using multihead::testing::random_seeds;
using multihead::testing::tolerance;
using reference::ReferenceOutputs;

void run(const RandomCase& c, const CallOutputs& outputs) {
  uint64_t bytes = 0;
  Status status = attention_workspace(c.q, c.k, c.v, c.options, outputs.outputs(), bytes);
  ASSERT_TRUE(status.ok()) << status.message();
  const MappedWorkspace workspace(bytes);
  status =
      attention(c.q, c.k, c.v, c.options, outputs.outputs(), workspace.get(), /*stream=*/nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  expect_no_findings();
}

bool is_half(const RandomCase& c) { return c.q.dtype != DType::kF32 || c.k.dtype != DType::kF32; }

// `allowed` plus the rounding errors of 16-bit calls: weights are rounded before the products, and
// q and k after RoPE and QK-norm.
double half_tolerance(const RandomCase& c, double allowed) {
  if (!is_half(c)) return allowed;
  const bool transformed = c.options.qk_norm.enabled || c.options.rope.style != Rope::Style::kNone;
  return allowed + (transformed ? 0x1p-5 : 0x1p-7);
}

void expect_equals_oracle(const RandomCase& c, const AttentionOutputs& got) {
  const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options, true);
  const double of_scores = tolerance(c, expected);
  const bool transformed = c.options.qk_norm.enabled || c.options.rope.style != Rope::Style::kNone;
  const double allowed = half_tolerance(c, of_scores);
  const double exact = transformed ? allowed : of_scores;
  const double survivor = 1.0 / (1.0 - static_cast<double>(c.options.dropout.probability));
  ASSERT_LE(excess(floats_of(got.out), expected.out, c.out_type, allowed * survivor), 0.0);
  ASSERT_LE(largest_difference(floats_of(got.lse), expected.lse), 2 * exact);
  ASSERT_LE(largest_difference(floats_of(got.weights), expected.weights), exact);
  for (size_t n = 0; n < c.captures.size(); ++n) {
    const double factor = c.captures[n].stage == ScoreStage::kWeights ? 1 : 2;
    ASSERT_LE(
        largest_difference(floats_of(got.captures[n].out), captured(c, c.captures[n], expected)),
        factor * exact)
        << "capture " << n;
  }
  if (!got.dropout_mask.given()) return;
  const uint64_t threshold = rules::dropout_threshold(c.options.dropout.probability);
  int64_t at = 0;
  for (int64_t b = 0; b < c.weights_shape[0]; ++b) {
    for (int64_t h = 0; h < c.weights_shape[1]; ++h) {
      for (int64_t i = 0; i < c.weights_shape[2]; ++i) {
        for (int64_t j = 0; j < c.weights_shape[3]; ++j, ++at) {
          const bool kept = rules::dropout_keeps(c.options.dropout.seed, b, h, i, j, threshold);
          ASSERT_EQ(got.dropout_mask.data[at], kept ? 1 : 0);
        }
      }
    }
  }
}

TEST(CudaAttention, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : random_seeds(200)) {
    const RandomCase c = random_case(seed, {.max_queries = 40, .max_keys = 300, .max_width = 70});
    SCOPED_TRACE(c.description);
    CallOutputs outputs(c);
    Mapping mapping;
    mapping.add_inputs(c);
    mapping.add_outputs(outputs);
    emulator::device().set_seed(seed);
    run(c, outputs);
    expect_equals_oracle(c, outputs.outputs());
    if (HasFatalFailure()) return;
  }
}

TEST(CudaAttention, PackedSequencesEqualThoseOfTheCpu) {
  for (const uint64_t seed : random_seeds(100)) {
    SCOPED_TRACE(seed);
    const PackedCase c(seed);
    const AttentionOptions options = c.options();
    const ConstTensor q(c.q.data(), {c.queries(), c.heads, c.width});
    const ConstTensor k(c.k.data(), {c.keys(), c.kv_heads, c.width});
    const ConstTensor v(c.v.data(), {c.keys(), c.kv_heads, c.value_dim});
    const auto size = static_cast<size_t>(c.queries() * c.heads);
    std::vector<float> out(size * static_cast<size_t>(c.value_dim), NAN), lse(size, NAN);
    std::vector<float> cpu_out = out, cpu_lse = lse;
    const auto outputs_in = [&](std::vector<float>& o, std::vector<float>& l) {
      return AttentionOutputs{.out = {o.data(), {c.queries(), c.heads, c.value_dim}},
                              .lse = {l.data(), {c.heads, c.queries()}}};
    };
    Context context(1);
    Status status = multihead::attention_varlen(q, k, v, c.cu_q, c.cu_k, options,
                                                outputs_in(cpu_out, cpu_lse), context);
    ASSERT_TRUE(status.ok()) << status.message();
    Mapping mapping;
    for (const auto* array : {&c.q, &c.k, &c.v, &c.sinks, &c.gain, &c.slopes}) {
      mapping.add(*array, emulator::Use::kInput, "floats");
    }
    for (const auto* rows : {&c.cu_q, &c.cu_k}) {
      mapping.add(*rows, emulator::Use::kInput, "rows");
    }
    for (const auto* array : {&out, &lse}) mapping.add(*array, emulator::Use::kOutput, "output");
    PackedSequences sequences{.cu_q = c.cu_q, .cu_k = c.cu_k};
    for (size_t s = 0; s + 1 < c.cu_q.size(); ++s) {
      sequences.max_queries = std::max<int64_t>(sequences.max_queries, c.cu_q[s + 1] - c.cu_q[s]);
      sequences.max_keys = std::max<int64_t>(sequences.max_keys, c.cu_k[s + 1] - c.cu_k[s]);
    }
    uint64_t bytes = 0;
    const AttentionOutputs outputs = outputs_in(out, lse);
    status = attention_varlen_workspace(q, k, v, sequences, options, outputs, bytes);
    ASSERT_TRUE(status.ok()) << status.message();
    const MappedWorkspace workspace(bytes);
    emulator::device().set_seed(seed);
    status =
        attention_varlen(q, k, v, sequences, options, outputs, workspace.get(), /*stream=*/nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_no_findings();
    const auto expect_close = [](const std::vector<float>& got, const std::vector<float>& cpu) {
      EXPECT_LE(largest_difference(got, std::vector<double>(cpu.begin(), cpu.end())), 1e-5);
    };
    expect_close(out, cpu_out);
    expect_close(lse, cpu_lse);
    if (HasFailure()) return;
  }
}

// Shapes: q (1, 2, 3, 8), k and v (1, 2, 5, 8).
class CudaAttentionRefuses : public ::testing::Test {
 protected:
  CudaAttentionRefuses() : memory_(3 * 80 + 48), out_(48, kUntouched) {
    mapping_.add(memory_, emulator::Use::kInput, "in");
    mapping_.add(out_, emulator::Use::kOutput, "out");
  }
  ~CudaAttentionRefuses() override { emulator::runtime_state() = {}; }

  ConstAnyTensor q() const { return {memory_.data(), Dims{1, 2, 3, 8}}; }
  ConstAnyTensor k() const { return {memory_.data() + 48, Dims{1, 2, 5, 8}}; }
  AttentionOutputs outputs() { return {.out = {out_.data(), Dims{1, 2, 3, 8}}}; }

  void expect(const Status& status, StatusCode code, const std::string& argument,
              const std::string& got) {
    expect_refusal(status, code, argument, got, out_);
    const Status next = attention(q(), k(), k(), {}, outputs(), {}, nullptr);
    EXPECT_TRUE(next.ok() || emulator::runtime_state().stream_error != 0 ||
                emulator::runtime_state().device.compute_capability < 80)
        << next.message();
    std::fill(out_.begin(), out_.end(), kUntouched);
  }

  std::vector<float> memory_, out_;
  Mapping mapping_;
};

TEST_F(CudaAttentionRefuses, MemoryOfTheHost) {
  const std::vector<float> host(80);
  const ConstAnyTensor v(host.data(), Dims{1, 2, 5, 8});
  expect(attention(q(), k(), v, {}, outputs(), {}, nullptr), StatusCode::kDevice, "v",
         "memory of the host");
}

TEST_F(CudaAttentionRefuses, LengthsOfTheHost) {
  const std::vector<int32_t> lengths{4};
  expect(attention(q(), k(), k(), {.kv_lengths = lengths}, outputs(), {}, nullptr),
         StatusCode::kDevice, "kv_lengths", "memory of the host");
}

TEST_F(CudaAttentionRefuses, MisalignedAddresses) {
  const auto* const odd = reinterpret_cast<const std::byte*>(memory_.data()) + 2;
  const ConstAnyTensor misaligned(static_cast<const void*>(odd), DType::kF32, Dims{1, 2, 3, 8},
                                  contiguous_strides({1, 2, 3, 8}));
  expect(attention(misaligned, k(), k(), {}, outputs(), {}, nullptr), StatusCode::kShape, "q",
         "one 2 above");
}

TEST_F(CudaAttentionRefuses, RowsThatAreTooWide) {
  const std::vector<float> wide(264 * 2, 0.0F);
  const ConstAnyTensor x(wide.data(), Dims{1, 1, 2, 264});
  expect(attention(x, x, x, {}, {.out = {out_.data(), Dims{1, 1, 2, 264}}}, {}, nullptr),
         StatusCode::kShape, "q", "264");
}

TEST_F(CudaAttentionRefuses, AWorkspaceThatIsTooSmall) {
  AttentionOptions options;
  options.rope.style = Rope::Style::kHalf;
  uint64_t bytes = 0;
  ASSERT_TRUE(attention_workspace(q(), k(), k(), options, outputs(), bytes).ok());
  ASSERT_GT(bytes, 0U);
  expect(attention(q(), k(), k(), options, outputs(), {}, nullptr), StatusCode::kOption,
         "workspace", "none");
  const MappedWorkspace small(bytes - 1);
  expect(attention(q(), k(), k(), options, outputs(), small.get(), nullptr), StatusCode::kOption,
         "workspace", std::to_string(bytes - 1));
}

TEST_F(CudaAttentionRefuses, AStreamInAnErrorState) {
  emulator::runtime_state().stream_error = 700;
  expect(attention(q(), k(), k(), {}, outputs(), {}, nullptr), StatusCode::kDevice, "stream",
         "700");
}

TEST_F(CudaAttentionRefuses, AnOldDevice) {
  emulator::runtime_state().device.compute_capability = 75;
  expect(attention(q(), k(), k(), {}, outputs(), {}, nullptr), StatusCode::kDevice, "device", "75");
  EXPECT_FALSE(available().ok());
}

TEST(CudaAttention, ExplainsItsKernel) {
  const ConstTensor rows(nullptr, {1, 2, 100, 40}), few(nullptr, {1, 2, 1, 40}),
      keys(nullptr, {1, 2, 1000, 40});
  std::vector<float> memory(2 * 1000 * 40);
  const auto shaped = [&](const Dims& shape) { return ConstTensor(memory.data(), shape); };
  const AttentionOutputs of_rows{.out = {memory.data(), Dims{1, 2, 100, 40}}};
  EXPECT_EQ(
      explain(shaped({1, 2, 100, 40}), shaped({1, 2, 1000, 40}), shaped({1, 2, 1000, 40}), {},
              of_rows),
      "f32 on compute capability 8.0; not decode, since it has more than 16 query rows for "
      "each key/value head, and cannot use mma.sync; not wgmma, since the compute capability is "
      "not 9.0; not mma.sync, since q, k and v are not all bf16 or all f16");
  const AttentionOutputs of_few{.out = {memory.data(), Dims{1, 2, 1, 40}}};
  EXPECT_EQ(
      explain(shaped({1, 2, 1, 40}), shaped({1, 2, 1000, 40}), shaped({1, 2, 1000, 40}), {},
              of_few),
      "decode, f32: 4 splits of 256 keys on compute capability 8.0; not mma.sync, since q, k and "
      "v are not all bf16 or all f16");
  EXPECT_EQ(explain(few, keys, rows, {}, of_few), "");
}

}  // namespace
}  // namespace multihead::cuda::testing
