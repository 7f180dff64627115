// Compares the CUDA kernels with the CPU on the device of this machine, then measures some shapes.
//
//   multihead-cuda-check [random calls, 300] [--no-timing]
//
// Exit code 0; 1 if a result is wrong; 3 if there is no device. native/dev/cuda_check.sh runs it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <span>
#include <vector>

#include "multihead/cuda.h"
#include "reference/reference_attention.h"
#include "support/call_outputs.h"
#include "support/closeness.h"
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

struct Shape {
  const char* name;
  int64_t batch, heads, kv_heads, queries, keys, width;
  bool causal;
};

// Milliseconds of a call of bf16, the median of 20.
double milliseconds(const Shape& s) {
  const auto elements = [&](int64_t heads, int64_t rows) {
    return s.batch * heads * rows * s.width;
  };
  std::vector<uint16_t> q_bits(static_cast<size_t>(elements(s.heads, s.queries)));
  std::vector<uint16_t> k_bits(static_cast<size_t>(elements(s.kv_heads, s.keys)));
  Random random(1);
  for (auto* bits : {&q_bits, &k_bits}) {
    for (uint16_t& value : *bits) value = half_bits(random.uniform(-1, 1), DType::kBF16);
  }
  auto v_bits = k_bits, out_bits = q_bits;
  DeviceMemory memory;
  for (auto* bits : {&q_bits, &k_bits, &v_bits, &out_bits}) memory.add(*bits);
  const auto tensor = [&](std::vector<uint16_t>& bits, int64_t heads, int64_t rows) {
    const Dims shape{s.batch, heads, rows, s.width};
    return AnyTensor(static_cast<void*>(memory.at(bits.data())), DType::kBF16, shape,
                     contiguous_strides(shape));
  };
  const AnyTensor q = tensor(q_bits, s.heads, s.queries), k = tensor(k_bits, s.kv_heads, s.keys),
                  v = tensor(v_bits, s.kv_heads, s.keys);
  const AttentionOptions options{.causal = s.causal ? Causal::bottom_right() : Causal::none()};
  const AttentionOutputs outputs{.out = tensor(out_bits, s.heads, s.queries)};
  uint64_t needed = 0;
  Status status = cuda::attention_workspace(q, k, v, options, outputs, needed);
  cuda::Workspace workspace{nullptr, needed};
  if (needed != 0) must(cudaMalloc(&workspace.data, needed), "cudaMalloc");
  cudaEvent_t start = nullptr, end = nullptr;
  must(cudaEventCreate(&start), "cudaEventCreate");
  must(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int i = 0; i < 25 && status.ok(); ++i) {
    must(cudaEventRecord(start, nullptr), "cudaEventRecord");
    status = cuda::attention(q, k, v, options, outputs, workspace, nullptr);
    must(cudaEventRecord(end, nullptr), "cudaEventRecord");
    must(cudaEventSynchronize(end), s.name);
    float time = 0;
    must(cudaEventElapsedTime(&time, start, end), "cudaEventElapsedTime");
    if (i >= 5) times.push_back(time);  // after the warm-up
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  cudaFree(workspace.data);
  if (!status.ok()) {
    std::printf("%s: %s\n", s.name, status.message().c_str());
    return NAN;
  }
  std::printf("  %s\n", cuda::explain(q, k, v, options, outputs).c_str());
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return static_cast<double>(times[10]);
}

void measure() {
  // Ideal operations: a causal call counts half.
  for (const Shape& s : {Shape{"d 64, N 4096", 4, 16, 16, 4096, 4096, 64, false},
                         Shape{"d 64, N 4096, causal", 4, 16, 16, 4096, 4096, 64, true},
                         Shape{"d 128, N 512", 32, 16, 16, 512, 512, 128, false},
                         Shape{"d 128, N 4096", 4, 16, 16, 4096, 4096, 128, false},
                         Shape{"d 128, N 4096, causal", 4, 16, 16, 4096, 4096, 128, true},
                         Shape{"d 256, N 4096", 4, 8, 8, 4096, 4096, 256, false},
                         Shape{"decode, 8192 keys", 16, 32, 8, 1, 8192, 128, false}}) {
    const double time = milliseconds(s);
    const auto pairs = static_cast<double>(s.batch * s.heads * s.queries * s.keys);
    const double operations = 4.0 * pairs * static_cast<double>(s.width) * (s.causal ? 0.5 : 1.0);
    const auto read = static_cast<double>(s.batch * s.kv_heads * s.keys * s.width * 4);
    std::printf("%s: %.3f ms, %.1f TFLOP/s, %.0f GB/s of K and V\n", s.name, time,
                operations / time * 1e-9, read / time * 1e-6);
  }
}

}  // namespace
}  // namespace multihead::testing

int main(int argc, char** argv) {
  using namespace multihead;  // NOLINT(google-build-using-namespace)
  if (const Status status = cuda::available(); !status.ok()) {
    std::printf("skipped: no CUDA device (%s)\n", status.message().c_str());
    return 3;
  }
  uint64_t calls = 300;
  bool timing = true;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--no-timing") == 0) {
      timing = false;
    } else {
      calls = std::strtoull(argv[i], nullptr, 10);
    }
  }
  int wrong = 0;
  for (uint64_t seed = 1; seed <= calls; ++seed) {
    if (!(testing::excess_on_device(seed) <= 0)) ++wrong;
  }
  std::printf("%llu random calls, %d wrong\n", static_cast<unsigned long long>(calls), wrong);
  if (timing) testing::measure();
  return wrong == 0 ? 0 : 1;
}
