// Compares calls of attention() and attention_backward() on a GPU with the oracle.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "cuda/device_checks.h"
#include "cuda/device_memory.h"
#include "cuda/hopper_case.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"
#include "reference/reference_attention.h"
#include "reference/reference_backward.h"
#include "support/call_outputs.h"
#include "support/closeness.h"
#include "support/random_backward.h"
#include "support/random_case.h"

namespace multihead::testing {
namespace {

std::vector<float> floats_of(const ConstAnyTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = element(tensor, static_cast<int64_t>(i));
  return values;
}

// Returns by how much the error of a random forward call exceeds its limit.
double excess_of_forward(uint64_t seed) {
  RandomCase c = random_case(seed, {.max_queries = 300, .max_keys = 1000, .max_width = 256});
  CallOutputs outputs(c);
  DeviceMemory memory;
  for (auto& array : c.storage) memory.add(array);
  for (auto& array : c.halves) memory.add(array);
  for (auto& array : c.bytes) memory.add(array);
  for (auto& array : c.integers) memory.add(array);
  auto bytes = outputs.bytes();
  DeviceMemory results;
  for (auto& array : bytes) results.add(array);
  ConstAnyTensor q = c.q, k = c.k, v = c.v;
  for (ConstAnyTensor* tensor : {&q, &k, &v}) memory.move(*tensor);
  AttentionOptions options = c.options;
  move_options(options, memory);
  // The device computes only out and lse, into bytes[0] and bytes[1].
  AttentionOutputs on_device{.out = outputs.outputs().out, .lse = outputs.outputs().lse};
  on_device.out.data = results.at(bytes[0].data());
  on_device.lse.data = reinterpret_cast<float*>(results.at(bytes[1].data()));
  uint64_t needed = 0;
  Status status = cuda::attention_workspace(q, k, v, options, on_device, needed);
  cuda::Workspace workspace{nullptr, needed};
  if (needed != 0) must(cudaMalloc(&workspace.data, needed), "cudaMalloc");
  if (status.ok()) status = cuda::attention(q, k, v, options, on_device, workspace, nullptr);
  must(cudaDeviceSynchronize(), c.description.c_str());
  cudaFree(workspace.data);
  if (!status.ok()) {
    std::printf("%s\n", status.message().c_str());
    return INFINITY;
  }
  results.read_back();
  const auto expected = reference::attention(c.q, c.k, c.v, c.options, true);
  const bool half = c.q.dtype != DType::kF32 || c.k.dtype != DType::kF32;
  const bool transformed = c.options.qk_norm.enabled || c.options.rope.style != Rope::Style::kNone;
  const double rounding = !half ? 0 : transformed ? 0x1p-5 : 0x1p-7;
  const double survivor = 1.0 / (1.0 - static_cast<double>(c.options.dropout.probability));
  const double allowed = (tolerance(c, expected) + rounding) * survivor;
  ConstAnyTensor out = outputs.outputs().out;
  out.data = bytes[0].data();
  const double over = excess(floats_of(out), expected.out, c.out_type, allowed);
  if (!(over <= 0)) std::printf("wrong by %g: %s\n", over, c.description.c_str());
  return over;
}

// Returns by how much the error of a result exceeds `allowed`, and prints the first wrong number
// with its place.
double excess_of_result(const char* name, const std::vector<float>& got,
                        const std::vector<double>& expected, double allowed) {
  double most = -INFINITY;
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto value = static_cast<double>(got[i]);
    // Skip equal infinities and pairs of NaN: their difference would be NaN.
    if (value == expected[i] || (std::isnan(value) && std::isnan(expected[i]))) continue;
    const double difference = std::abs(value - expected[i]);
    const double over = std::isnan(difference) ? INFINITY : difference - allowed;
    if (over > 0 && wrong++ == 0) first = i;
    most = std::max(most, over);
  }
  if (wrong > 0) {
    std::printf("%s: %zu of %zu numbers are wrong by up to %g, first %zu: %g instead of %g; ", name,
                wrong, got.size(), most, first, static_cast<double>(got[first]), expected[first]);
  }
  return most;
}

// The inputs of a call of attention_backward() in host memory.
struct BackwardInputs {
  ConstAnyTensor q, k, v;
  AttentionOptions options;
  AttentionResults results;
  ConstAnyTensor d_out;
  AttentionGradients gradients;
};

// Runs the call on the device copies of its tensors in `memory`.
Status backward_on_device(BackwardInputs call, const DeviceMemory& memory) {
  for (ConstAnyTensor* const tensor : {&call.q, &call.k, &call.v, &call.d_out, &call.results.out}) {
    memory.move(*tensor);
  }
  memory.move(call.results.lse);
  move_options(call.options, memory);
  AttentionGradients& to = call.gradients;
  for (Tensor* const gradient : {&to.d_q, &to.d_k, &to.d_v, &to.d_bias}) memory.move(*gradient);
  for (std::span<float>* const gradient : {&to.d_sinks, &to.d_q_gain, &to.d_k_gain}) {
    if (!gradient->empty()) *gradient = {memory.at(gradient->data()), gradient->size()};
  }
  uint64_t needed = 0;
  Status status = cuda::attention_backward_workspace(call.q, call.k, call.v, call.options,
                                                     call.results, call.d_out, to, needed);
  cuda::Workspace workspace{nullptr, needed};
  if (needed != 0) must(cudaMalloc(&workspace.data, needed), "cudaMalloc");
  if (status.ok()) {
    status = cuda::attention_backward(call.q, call.k, call.v, call.options, call.results,
                                      call.d_out, to, workspace, /*stream=*/nullptr);
  }
  must(cudaDeviceSynchronize(), "attention_backward");
  cudaFree(workspace.data);
  if (status.ok()) memory.read_back();
  return status;
}

// Returns by how much the error of a random call's gradients exceeds its limit, the same limit as
// in the emulator's tests.
double excess_of_backward(uint64_t seed) {
  BackwardCall call(seed, {.max_queries = 100, .max_keys = 300, .max_width = 256});
  RandomCase& c = call.c;
  Gradients g = call.empty();
  DeviceMemory memory;
  for (auto& array : c.storage) memory.add(array);
  for (auto& array : c.halves) memory.add(array);
  for (auto& array : c.bytes) memory.add(array);
  for (auto& array : c.integers) memory.add(array);
  for (auto* const array : {&call.out, &call.lse, &call.d_out}) memory.add(*array);
  for (auto* const array :
       {&g.d_q, &g.d_k, &g.d_v, &g.d_bias, &g.d_sinks, &g.d_q_gain, &g.d_k_gain}) {
    memory.add(*array);
  }
  const Status status =
      backward_on_device({c.q, c.k, c.v, c.options, call.results(),
                          ConstTensor(call.d_out.data(), c.out_shape), call.views(g)},
                         memory);
  if (!status.ok()) {
    std::printf("%s\n", status.message().c_str());
    return INFINITY;
  }
  const reference::ReferenceGradients expected = call.expected();
  const bool transformed = c.options.qk_norm.enabled || c.options.rope.style != Rope::Style::kNone;
  // After RoPE and QK-norm, 16-bit q and k are rounded to 16 bits.
  const bool rounded = transformed && (c.q.dtype != DType::kF32 || c.k.dtype != DType::kF32);
  const double allowed =
      (error_of_weights(call.lse) + (rounded ? 0x1p-5 : 0.0)) * largest_gradient(expected);
  const double over = std::max({excess_of_result("d_q", g.d_q, expected.d_q, allowed),
                                excess_of_result("d_k", g.d_k, expected.d_k, allowed),
                                excess_of_result("d_v", g.d_v, expected.d_v, allowed),
                                excess_of_result("d_bias", g.d_bias, expected.d_bias, allowed),
                                excess_of_result("d_sinks", g.d_sinks, expected.d_sinks, allowed)});
  if (over > 0) std::printf("%s\n", c.description.c_str());
  return over;
}

// Directions of a call that are computed and compared.
struct Directions {
  bool forward, backward;
};

// Returns by how much the error of a 16-bit call exceeds its limit; infinity if the plan chooses
// another kernel than `kernel`, the beginning of its explanation.
double excess_of_halves(Random& random, const cuda::testing::HopperCase& call,
                        const std::string& kernel, Directions directions) {
  const Dims of_queries{call.batch, call.heads, call.queries, call.width};
  const Dims of_keys{call.batch, call.kv_heads, call.keys, call.width};
  cuda::testing::Halves q(random, of_queries, call.type), k(random, of_keys, call.type),
      v(random, of_keys, call.type), d_out(random, of_queries, call.type);
  std::vector<int32_t> lengths = call.lengths;
  std::vector<float> sinks = call.sinks;
  std::vector<float> slopes(call.options.alibi_slopes.begin(), call.options.alibi_slopes.end());
  AttentionOptions options = call.options;
  options.kv_lengths = lengths;
  options.sinks = sinks;
  options.alibi_slopes = slopes;
  const auto exact = reference::attention(q.view(), k.view(), v.view(), options);
  std::vector<float> out = poisoned(of_queries.elements());
  std::vector<float> lse = poisoned(call.batch * call.heads * call.queries);
  std::vector<float> of_oracle(exact.out.begin(), exact.out.end());
  std::vector<float> lse_of_oracle(exact.lse.begin(), exact.lse.end());
  Gradients g;
  g.d_q = poisoned(of_queries.elements());
  g.d_k = poisoned(of_keys.elements());
  g.d_v = poisoned(of_keys.elements());
  DeviceMemory memory;
  for (auto* const halves : {&q, &k, &v, &d_out}) memory.add(halves->storage);
  for (auto* const array :
       {&out, &lse, &of_oracle, &lse_of_oracle, &g.d_q, &g.d_k, &g.d_v, &sinks, &slopes}) {
    memory.add(*array);
  }
  memory.add(lengths);
  AttentionOptions moved = options;
  move_options(moved, memory);
  ConstAnyTensor tensors[] = {q.view(), k.view(), v.view()};
  for (ConstAnyTensor& tensor : tensors) memory.move(tensor);
  const Dims of_lse{call.batch, call.heads, call.queries};
  const AttentionOutputs outputs{.out = Tensor(memory.at(out.data()), of_queries),
                                 .lse = Tensor(memory.at(lse.data()), of_lse)};
  const AttentionResults results{.out = ConstTensor(of_oracle.data(), of_queries),
                                 .lse = ConstTensor(lse_of_oracle.data(), of_lse)};
  const AttentionGradients gradients{.d_q = Tensor(g.d_q.data(), of_queries),
                                     .d_k = Tensor(g.d_k.data(), of_keys),
                                     .d_v = Tensor(g.d_v.data(), of_keys)};
  const std::string explained =
      directions.forward ? cuda::explain(tensors[0], tensors[1], tensors[2], moved, outputs)
                         : cuda::explain_backward(tensors[0], tensors[1], tensors[2], moved,
                                                  results, d_out.view(), gradients);
  if (explained.substr(0, kernel.size()) != kernel) {
    std::printf("expected %s, got %s: %s\n", kernel.c_str(), explained.c_str(),
                call.description.c_str());
    return INFINITY;
  }
  Status status;
  if (directions.forward) {
    uint64_t needed = 0;
    status = cuda::attention_workspace(tensors[0], tensors[1], tensors[2], moved, outputs, needed);
    cuda::Workspace workspace{nullptr, needed};
    if (needed != 0) must(cudaMalloc(&workspace.data, needed), "cudaMalloc");
    if (status.ok()) {
      status = cuda::attention(tensors[0], tensors[1], tensors[2], moved, outputs, workspace,
                               /*stream=*/nullptr);
    }
    must(cudaDeviceSynchronize(), call.description.c_str());
    cudaFree(workspace.data);
    memory.read_back();
  }
  if (directions.backward && status.ok()) {
    status = backward_on_device(
        {q.view(), k.view(), v.view(), options, results, d_out.view(), gradients}, memory);
  }
  if (!status.ok()) {
    std::printf("%s\n", status.message().c_str());
    return INFINITY;
  }
  double over = -INFINITY;
  if (directions.forward) {
    over = std::max(excess_of_result("out", out, exact.out, 0x1p-5),
                    excess_of_result("lse", lse, exact.lse, 1e-3));
  }
  if (directions.backward) {
    const reference::ReferenceGradients expected =
        reference::attention_backward(q.view(), k.view(), v.view(), options, d_out.view());
    // The limit: weights are rounded to bf16 or f16, and values are up to 4.
    const double allowed = 0x1p-6 * largest_gradient(expected);
    over = std::max({over, excess_of_result("d_q", g.d_q, expected.d_q, allowed),
                     excess_of_result("d_k", g.d_k, expected.d_k, allowed),
                     excess_of_result("d_v", g.d_v, expected.d_v, allowed)});
  }
  if (!(over <= 0)) std::printf("%s\n", call.description.c_str());
  return over;
}

// Returns by how much the error of a random call on the tensor-core kernels exceeds its limit.
double excess_of_tensor_cores(uint64_t seed) {
  Random random(seed);
  const cuda::testing::HopperCase call =
      cuda::testing::random_hopper_case(random, /*packed=*/false, {60, 300, 700});
  return excess_of_halves(random, call, "", {.forward = true, .backward = true});
}

int wrong_calls(double (&excess)(uint64_t seed), uint64_t calls) {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= calls; ++seed) wrong += excess(seed) <= 0 ? 0 : 1;
  return wrong;
}

}  // namespace

int check_kernel(const KernelCheck& kernel) {
  int wrong = 0;
  uint64_t seed = 0;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const bool causal : {false, true}) {
      Random random(++seed);
      cuda::testing::HopperCase call{};
      call.type = call.out_type = type;
      call.batch = 2;
      call.kv_heads = 2;
      call.heads = 4;
      call.queries = kernel.queries;
      call.keys = 400;
      call.width = kernel.width;
      const std::vector<float> slopes = {0.02F, 0.05F, 0.1F, 0.2F};
      if (kernel.options) {
        call.options.softcap = 10.0F;
        call.options.alibi_slopes = slopes;
      }
      if (causal) call.options.causal.alignment = Alignment::kBottomRight;
      call.description = std::string(type == DType::kBF16 ? "bf16" : "f16") + ", 2 x 4/2 heads, " +
                         std::to_string(call.queries) + " queries, 400 keys, width " +
                         std::to_string(call.width) + (causal ? ", causal" : "");
      const Directions directions{.forward = !kernel.backward, .backward = kernel.backward};
      if (!(excess_of_halves(random, call, kernel.kernel, directions) <= 0)) ++wrong;
    }
  }
  return wrong;
}

int check_random_forward(uint64_t calls) { return wrong_calls(excess_of_forward, calls); }
int check_random_backward(uint64_t calls) { return wrong_calls(excess_of_backward, calls); }
int check_random_tensor_cores(uint64_t calls) { return wrong_calls(excess_of_tensor_cores, calls); }

}  // namespace multihead::testing
