// Invalid calls of attention_backward() and attention_varlen_backward() of multihead/cuda.h return
// errors; in the emulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emulator/memory.h"
#include "cuda/emulator/runtime.h"
#include "cuda/mapped_case.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"

namespace multihead::cuda::testing {
namespace {

using emulator::Use;

// Shapes: q, out and d_out (1, 2, 3, 8), k and v (1, 2, 5, 8).
class CudaAttentionBackwardRefuses : public ::testing::Test {
 protected:
  CudaAttentionBackwardRefuses() : memory_(80, 0.5F), gradient_(80, kUntouched) {
    mapping_.add(memory_, Use::kInput, "in");
    mapping_.add(gradient_, Use::kOutput, "gradient");
  }
  ~CudaAttentionBackwardRefuses() override { emulator::runtime_state() = {}; }

  struct Arguments {
    ConstAnyTensor q, k, v;
    AttentionOptions options;
    AttentionResults results;
    ConstAnyTensor d_out;
    AttentionGradients gradients;
  };
  Arguments arguments() {
    const float* const data = memory_.data();
    const ConstTensor rows(data, {1, 2, 3, 8}), keys(data, {1, 2, 5, 8});
    return {.q = rows,
            .k = keys,
            .v = keys,
            .options = {},
            .results = {.out = rows, .lse = {data, {1, 2, 3}}},
            .d_out = rows,
            .gradients = {.d_k = {gradient_.data(), Dims{1, 2, 5, 8}}}};
  }
  static Status call(const Arguments& a, const Workspace& workspace) {
    return attention_backward(a.q, a.k, a.v, a.options, a.results, a.d_out, a.gradients, workspace,
                              /*stream=*/nullptr);
  }

  void expect(const Status& status, StatusCode code, const std::string& argument,
              const std::string& got) {
    expect_refusal(status, code, argument, got, gradient_);
    emulator::runtime_state() = {};
    const Status next = call(arguments(), workspace_.get());
    EXPECT_TRUE(next.ok()) << next.message();
    expect_no_findings();
    std::fill(gradient_.begin(), gradient_.end(), kUntouched);
  }
  void expect(const Arguments& a, StatusCode code, const std::string& argument,
              const std::string& got) {
    expect(call(a, workspace_.get()), code, argument, got);
  }

  std::vector<float> memory_, gradient_;
  Mapping mapping_;
  MappedWorkspace workspace_{1 << 12};
};

TEST_F(CudaAttentionBackwardRefuses, MemoryOfTheHost) {
  std::vector<float> host(80);
  Arguments a = arguments();
  a.d_out = ConstTensor(host.data(), {1, 2, 3, 8});
  expect(a, StatusCode::kDevice, "d_out", "memory of the host");
  a = arguments();
  a.results.lse.data = host.data();
  expect(a, StatusCode::kDevice, "lse", "memory of the host");
  a = arguments();
  a.gradients.d_q = {host.data(), Dims{1, 2, 3, 8}};
  expect(a, StatusCode::kDevice, "d_q", "memory of the host");
}

TEST_F(CudaAttentionBackwardRefuses, GradientsOfTheHost) {
  std::vector<float> sinks(2);
  Arguments a = arguments();
  a.options.sinks = {memory_.data(), 2};
  a.gradients.d_sinks = sinks;
  expect(a, StatusCode::kDevice, "d_sinks", "memory of the host");
}

TEST_F(CudaAttentionBackwardRefuses, MisalignedAddresses) {
  Arguments a = arguments();
  a.gradients.d_k.data =
      reinterpret_cast<float*>(reinterpret_cast<std::byte*>(gradient_.data()) + 2);
  expect(a, StatusCode::kShape, "d_k", "one 2 above");
}

TEST_F(CudaAttentionBackwardRefuses, GradientsOfWhatTheCallDoesNotHave) {
  Arguments a = arguments();
  a.gradients.d_sinks = {gradient_.data(), 2};
  expect(a, StatusCode::kOption, "d_sinks", "");
  a = arguments();
  a.gradients.d_bias = {gradient_.data(), Dims{3, 5}};
  expect(a, StatusCode::kOption, "d_bias", "");
}

TEST_F(CudaAttentionBackwardRefuses, ShapesThatDoNotFit) {
  Arguments a = arguments();
  a.gradients.d_k.shape = {1, 2, 4, 8};
  expect(a, StatusCode::kShape, "d_k", "4");
}

TEST_F(CudaAttentionBackwardRefuses, AWorkspaceThatIsTooSmall) {
  const Arguments a = arguments();
  uint64_t bytes = 0;
  ASSERT_TRUE(
      attention_backward_workspace(a.q, a.k, a.v, a.options, a.results, a.d_out, a.gradients, bytes)
          .ok());
  ASSERT_GT(bytes, 0U);
  expect(call(a, {}), StatusCode::kOption, "workspace", "none");
  const MappedWorkspace small(bytes - 1);
  expect(call(a, small.get()), StatusCode::kOption, "workspace", std::to_string(bytes - 1));
}

TEST_F(CudaAttentionBackwardRefuses, AStreamInAnErrorState) {
  emulator::runtime_state().stream_error = 700;
  expect(arguments(), StatusCode::kDevice, "stream", "700");
}

TEST_F(CudaAttentionBackwardRefuses, AnOldDevice) {
  emulator::runtime_state().device.compute_capability = 75;
  expect(arguments(), StatusCode::kDevice, "device", "75");
}

TEST_F(CudaAttentionBackwardRefuses, SequencesOfANegativeLength) {
  const std::vector<int32_t> rows{0, 3};
  const ConstTensor x(memory_.data(), {3, 2, 8});
  const Status status = attention_varlen_backward(
      x, x, x, {.cu_q = rows, .cu_k = rows, .max_queries = 3, .max_keys = -1}, {},
      {.out = x, .lse = {memory_.data(), {2, 3}}}, x, {.d_q = {gradient_.data(), Dims{3, 2, 8}}},
      workspace_.get(), /*stream=*/nullptr);
  expect(status, StatusCode::kOption, "max_keys", "-1");
}

TEST_F(CudaAttentionBackwardRefuses, ExplainsItsKernel) {
  const Arguments a = arguments();
  EXPECT_EQ(
      explain_backward(a.q, a.k, a.v, a.options, a.results, a.d_out, a.gradients),
      "f32 on compute capability 8.0; not wgmma, since the compute capability is not 9.0; not "
      "mma.sync, since q, k and v are not all bf16 or all f16");
}

}  // namespace
}  // namespace multihead::cuda::testing
