// Compares the CUDA kernels with the oracle on the device of this machine: random calls, forward
// and backward, and as many that only the kernels of tensor cores serve.
//
//   multihead-cuda-check [random calls, 300]
//
// Exit code 0; 1 if a result is wrong; 3 if there is no device. native/dev/cuda_check.sh runs it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <span>
#include <vector>

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

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Copies of host arrays on the device, found by addresses within the host's.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    for (const auto& [host, copy] : copies_) cudaFree(copy.data);
  }

  template <class Array>
  void add(Array& array) {
    if (array.empty()) return;
    Copy copy{nullptr, array.size() * sizeof(array[0]), array.data()};
    must(cudaMalloc(&copy.data, copy.bytes), "cudaMalloc");
    must(cudaMemcpy(copy.data, array.data(), copy.bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    copies_[reinterpret_cast<uintptr_t>(array.data())] = copy;
  }
  void read_back() const {
    for (const auto& [host, copy] : copies_) {
      must(cudaMemcpy(copy.host, copy.data, copy.bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
  }
  // Null stays null, as does what was not added because it has no elements.
  template <class T>
  T* at(T* host) const {
    const auto address = reinterpret_cast<uintptr_t>(host);
    auto after = copies_.upper_bound(address);
    if (after == copies_.begin()) return nullptr;
    const auto& [begin, copy] = *std::prev(after);
    if (address - begin >= copy.bytes) return nullptr;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(copy.data) + (address - begin));
  }
  template <class Tensor>
  void move(Tensor& tensor) const {
    tensor.data = at(static_cast<decltype(tensor.data)>(tensor.data));
  }
  template <class T>
  void move(std::span<const T>& values) const {
    if (!values.empty()) values = {at(values.data()), values.size()};
  }

 private:
  struct Copy {
    void* data;
    size_t bytes;
    void* host;
  };
  std::map<uintptr_t, Copy> copies_;
};

void move_options(AttentionOptions& options, const DeviceMemory& memory) {
  memory.move(options.mask);
  memory.move(options.bias);
  memory.move(options.kv_lengths);
  memory.move(options.alibi_slopes);
  memory.move(options.sinks);
  memory.move(options.qk_norm.q_gain);
  memory.move(options.qk_norm.k_gain);
  memory.move(options.rope.q_positions);
  memory.move(options.rope.k_positions);
}

std::vector<float> floats_of(const ConstAnyTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = element(tensor, static_cast<int64_t>(i));
  return values;
}

// By how much the output exceeds its limit.
double excess_on_device(uint64_t seed) {
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
  // Only out and lse; bytes[0] and bytes[1] are theirs.
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
  if (over > 0) std::printf("wrong by %g: %s\n", over, c.description.c_str());
  return over;
}

// By how much a gradient exceeds `allowed`.
double excess_of_gradient(const char* name, const std::vector<float>& got,
                          const std::vector<double>& expected, double allowed) {
  double over = -INFINITY;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto value = static_cast<double>(got[i]);
    if (std::isnan(value) && std::isnan(expected[i])) continue;
    const double difference = std::abs(value - expected[i]);
    over = std::max(over, std::isnan(difference) ? INFINITY : difference - allowed);
  }
  if (over > 0) std::printf("%s wrong by %g: ", name, over);
  return over;
}

// The inputs of a call of attention_backward() in host memory.
struct BackwardInputs {
  ConstAnyTensor q, k, v;
  AttentionOptions options;
  AttentionResults results;
  ConstAnyTensor d_out;
  AttentionGradients gradients;
};

// Runs it on copies of its tensors, which `memory` has.
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

// By how much the gradients of a random call exceed their limit, which is that of the emulator's
// tests.
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
  // q and k of 16 bits are rounded to them after RoPE and QK-norm.
  const bool rounded = transformed && (c.q.dtype != DType::kF32 || c.k.dtype != DType::kF32);
  const double allowed =
      (error_of_weights(call.lse) + (rounded ? 0x1p-5 : 0.0)) * largest_gradient(expected);
  const double over =
      std::max({excess_of_gradient("d_q", g.d_q, expected.d_q, allowed),
                excess_of_gradient("d_k", g.d_k, expected.d_k, allowed),
                excess_of_gradient("d_v", g.d_v, expected.d_v, allowed),
                excess_of_gradient("d_bias", g.d_bias, expected.d_bias, allowed),
                excess_of_gradient("d_sinks", g.d_sinks, expected.d_sinks, allowed)});
  if (over > 0) std::printf("%s\n", c.description.c_str());
  return over;
}

// By how much a call whose tensors are all bf16 or all f16 exceeds its limit: the kernels of tensor
// cores, forward and backward.
double excess_of_tensor_cores(uint64_t seed) {
  Random random(seed);
  const cuda::testing::HopperCase call =
      cuda::testing::random_hopper_case(random, /*packed=*/false, {60, 300, 700});
  const Dims of_queries{call.batch, call.heads, call.queries, call.width};
  const Dims of_keys{call.batch, call.kv_heads, call.keys, call.width};
  cuda::testing::Halves q(random, of_queries, call.type), k(random, of_keys, call.type),
      v(random, of_keys, call.type), d_out(random, of_queries, call.type);
  const auto exact = reference::attention(q.view(), k.view(), v.view(), call.options);
  std::vector<float> out(exact.out.size()), lse(exact.lse.size());
  std::vector<float> of_oracle(exact.out.begin(), exact.out.end());
  std::vector<float> lse_of_oracle(exact.lse.begin(), exact.lse.end());
  Gradients g;
  g.d_q = poisoned(of_queries.elements());
  g.d_k = poisoned(of_keys.elements());
  g.d_v = poisoned(of_keys.elements());
  DeviceMemory memory;
  for (auto* const halves : {&q, &k, &v, &d_out}) memory.add(halves->storage);
  for (auto* const array : {&out, &lse, &of_oracle, &lse_of_oracle, &g.d_q, &g.d_k, &g.d_v}) {
    memory.add(*array);
  }
  std::vector<int32_t> lengths = call.lengths;
  std::vector<float> sinks = call.sinks;
  memory.add(lengths);
  memory.add(sinks);
  AttentionOptions options = call.options;
  options.kv_lengths = lengths;
  options.sinks = sinks;

  AttentionOptions moved = options;
  move_options(moved, memory);
  ConstAnyTensor tensors[] = {q.view(), k.view(), v.view()};
  for (ConstAnyTensor& tensor : tensors) memory.move(tensor);
  const Dims of_lse{call.batch, call.heads, call.queries};
  const AttentionOutputs outputs{.out = Tensor(memory.at(out.data()), of_queries),
                                 .lse = Tensor(memory.at(lse.data()), of_lse)};
  uint64_t needed = 0;
  Status status =
      cuda::attention_workspace(tensors[0], tensors[1], tensors[2], moved, outputs, needed);
  cuda::Workspace workspace{nullptr, needed};
  if (needed != 0) must(cudaMalloc(&workspace.data, needed), "cudaMalloc");
  if (status.ok()) {
    status = cuda::attention(tensors[0], tensors[1], tensors[2], moved, outputs, workspace,
                             /*stream=*/nullptr);
  }
  must(cudaDeviceSynchronize(), call.description.c_str());
  cudaFree(workspace.data);
  if (status.ok()) {
    status = backward_on_device({q.view(), k.view(), v.view(), options,
                                 AttentionResults{.out = ConstTensor(of_oracle.data(), of_queries),
                                                  .lse = ConstTensor(lse_of_oracle.data(), of_lse)},
                                 d_out.view(),
                                 AttentionGradients{.d_q = Tensor(g.d_q.data(), of_queries),
                                                    .d_k = Tensor(g.d_k.data(), of_keys),
                                                    .d_v = Tensor(g.d_v.data(), of_keys)}},
                                memory);
  }
  if (!status.ok()) {
    std::printf("%s\n", status.message().c_str());
    return INFINITY;
  }
  const reference::ReferenceGradients expected =
      reference::attention_backward(q.view(), k.view(), v.view(), options, d_out.view());
  // Weights are rounded to bf16 or f16, and values are up to 4.
  const double allowed = 0x1p-6 * largest_gradient(expected);
  const double over = std::max({excess_of_gradient("out", out, exact.out, 0x1p-5),
                                excess_of_gradient("lse", lse, exact.lse, 1e-3),
                                excess_of_gradient("d_q", g.d_q, expected.d_q, allowed),
                                excess_of_gradient("d_k", g.d_k, expected.d_k, allowed),
                                excess_of_gradient("d_v", g.d_v, expected.d_v, allowed)});
  if (over > 0) std::printf("%s\n", call.description.c_str());
  return over;
}

}  // namespace
}  // namespace multihead::testing

int main(int argc, char** argv) {
  using namespace multihead;  // NOLINT(google-build-using-namespace)
  if (const Status status = cuda::available(); !status.ok()) {
    std::printf("skipped: no CUDA device (%s)\n", status.message().c_str());
    return 3;
  }
  const uint64_t calls = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300;
  int wrong = 0;
  for (uint64_t seed = 1; seed <= calls; ++seed) {
    for (const auto check :
         {multihead::testing::excess_on_device, multihead::testing::excess_of_backward,
          multihead::testing::excess_of_tensor_cores}) {
      if (!(check(seed) <= 0)) ++wrong;
    }
  }
  std::printf("%llu random calls of each kind, %d wrong\n", static_cast<unsigned long long>(calls),
              wrong);
  return wrong == 0 ? 0 : 1;
}
