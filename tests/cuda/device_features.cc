// Checks on a GPU of packed sequences, caches, merges, captures, graphs, streams and NaN.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cuda/cache_case.h"
#include "cuda/device_checks.h"
#include "cuda/device_memory.h"
#include "cuda/hopper_case.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/cuda.h"
#include "reference/reference_attention.h"
#include "rules/dropout_mask.h"
#include "rules/element.h"
#include "support/call_outputs.h"
#include "support/captured.h"
#include "support/closeness.h"
#include "support/random_backward.h"
#include "support/random_case.h"

namespace multihead::testing {
namespace {

using cuda::testing::CacheCase;
using cuda::testing::Halves;
using cuda::testing::HopperCase;

// Device memory for one call.
class Scratch {
 public:
  explicit Scratch(uint64_t bytes) : workspace_{nullptr, bytes} {
    if (bytes != 0) must(cudaMalloc(&workspace_.data, bytes), "cudaMalloc");
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { cudaFree(workspace_.data); }
  const cuda::Workspace& get() const { return workspace_; }

 private:
  cuda::Workspace workspace_;
};

// Waits for the device; returns false and prints the message if a call was refused.
bool done(const Status& status, const std::string& what) {
  must(cudaDeviceSynchronize(), what.c_str());
  if (!status.ok()) std::printf("%s: %s\n", what.c_str(), status.message().c_str());
  return status.ok();
}

std::vector<float> floats(const ConstAnyTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = element(tensor, static_cast<int64_t>(i));
  return values;
}

// True if all numbers are within `allowed` of the expected ones; prints the first wrong one. Equal
// infinities and pairs of NaN are right.
template <class Expected>
bool close(const std::string& what, const std::vector<float>& got,
           const std::vector<Expected>& expected, double allowed) {
  if (got.size() != expected.size()) {
    std::printf("%s: %zu numbers instead of %zu; ", what.c_str(), got.size(), expected.size());
    return false;
  }
  for (size_t i = 0; i < got.size(); ++i) {
    const auto value = static_cast<double>(got[i]), want = static_cast<double>(expected[i]);
    if (value == want || (std::isnan(value) && std::isnan(want))) continue;
    if (std::abs(value - want) <= allowed) continue;
    std::printf("%s: number %zu is %g instead of %g; ", what.c_str(), i, value, want);
    return false;
  }
  return true;
}

double largest_of(const std::vector<float>& values) {
  double largest = 1.0;
  for (const float value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  return largest;
}

// Views rows of one batch entry as packed sequences, (T, H, d).
ConstAnyTensor packed(const Halves& rows) {
  return {rows.data,
          rows.type,
          {rows.shape[2], rows.shape[1], rows.shape[3]},
          {rows.strides[2], rows.strides[1], 1}};
}

// Both directions of packed sequences, compared with the library on the CPU.
bool right_packed(uint64_t seed) {
  Random random(seed);
  const HopperCase call = cuda::testing::random_hopper_case(random, /*packed=*/true, {60, 300});
  const int64_t q_rows = call.cu_q.back(), k_rows = call.cu_k.back();
  if (q_rows == 0 || k_rows == 0) return true;
  const Dims of_queries{1, call.heads, q_rows, call.width};
  const Dims of_keys{1, call.kv_heads, k_rows, call.width};
  Halves q(random, of_queries, call.type), k(random, of_keys, call.type),
      v(random, of_keys, call.type), d_out(random, of_queries, call.type);
  std::vector<int32_t> cu_q = call.cu_q, cu_k = call.cu_k;
  std::vector<float> sinks = call.sinks;
  AttentionOptions options = call.options;
  options.sinks = sinks;

  const auto size_q = static_cast<size_t>(of_queries.elements());
  const auto size_k = static_cast<size_t>(of_keys.elements());
  const auto size_lse = static_cast<size_t>(call.heads * q_rows);
  struct Results {
    std::vector<float> out, lse, d_q, d_k, d_v;
    Results(size_t q, size_t k, size_t rows)
        : out(q, NAN), lse(rows, NAN), d_q(q, NAN), d_k(k, NAN), d_v(k, NAN) {}
  } cpu(size_q, size_k, size_lse), got(size_q, size_k, size_lse);
  const Dims rows_q{q_rows, call.heads, call.width}, rows_k{k_rows, call.kv_heads, call.width};
  const Dims rows_lse{call.heads, q_rows};
  const auto views = [&](Results& r) {
    return AttentionGradients{.d_q = {r.d_q.data(), rows_q},
                              .d_k = {r.d_k.data(), rows_k},
                              .d_v = {r.d_v.data(), rows_k}};
  };
  Context context(1);
  const AttentionResults results{.out = ConstTensor(cpu.out.data(), rows_q),
                                 .lse = ConstTensor(cpu.lse.data(), rows_lse)};
  Status status = attention_varlen(
      packed(q), packed(k), packed(v), cu_q, cu_k, options,
      {.out = Tensor(cpu.out.data(), rows_q), .lse = Tensor(cpu.lse.data(), rows_lse)}, context);
  if (status.ok()) {
    status = attention_varlen_backward(packed(q), packed(k), packed(v), cu_q, cu_k, options,
                                       results, packed(d_out), views(cpu), context);
  }
  if (!done(status, "on the CPU")) return false;

  DeviceMemory memory;
  for (auto* const halves : {&q, &k, &v, &d_out}) memory.add(halves->storage);
  for (auto* const array :
       {&cpu.out, &cpu.lse, &got.out, &got.lse, &got.d_q, &got.d_k, &got.d_v, &sinks}) {
    memory.add(*array);
  }
  for (auto* const rows : {&cu_q, &cu_k}) memory.add(*rows);
  ConstAnyTensor on_device[] = {packed(q), packed(k), packed(v), packed(d_out)};
  for (ConstAnyTensor& tensor : on_device) memory.move(tensor);
  AttentionResults of_cpu = results;
  memory.move(of_cpu.out);
  memory.move(of_cpu.lse);
  AttentionGradients gradients = views(got);
  for (Tensor* const gradient : {&gradients.d_q, &gradients.d_k, &gradients.d_v}) {
    memory.move(*gradient);
  }
  memory.move(options.sinks);
  const AttentionOutputs outputs{.out = Tensor(memory.at(got.out.data()), rows_q),
                                 .lse = Tensor(memory.at(got.lse.data()), rows_lse)};
  cuda::PackedSequences sequences{
      .cu_q = cu_q, .cu_k = cu_k, .max_queries = call.queries, .max_keys = call.keys};
  memory.move(sequences.cu_q);
  memory.move(sequences.cu_k);
  const auto& [q_on, k_on, v_on, d_out_on] = on_device;
  uint64_t bytes = 0, bytes_back = 0;
  status = cuda::attention_varlen_workspace(q_on, k_on, v_on, sequences, options, outputs, bytes);
  if (status.ok()) {
    status = cuda::attention_varlen_backward_workspace(q_on, k_on, v_on, sequences, options, of_cpu,
                                                       d_out_on, gradients, bytes_back);
  }
  const Scratch scratch(std::max(bytes, bytes_back));
  if (status.ok()) {
    status = cuda::attention_varlen(q_on, k_on, v_on, sequences, options, outputs, scratch.get(),
                                    /*stream=*/nullptr);
  }
  if (status.ok()) {
    status = cuda::attention_varlen_backward(q_on, k_on, v_on, sequences, options, of_cpu, d_out_on,
                                             gradients, scratch.get(), /*stream=*/nullptr);
  }
  if (!done(status, call.description)) return false;
  memory.read_back();
  // Weights are rounded to 16 bits, and values are up to 4.
  const double of_gradients =
      0x1p-6 * std::max({largest_of(cpu.d_q), largest_of(cpu.d_k), largest_of(cpu.d_v)});
  const bool right =
      close("out", got.out, cpu.out, 0x1p-5) && close("lse", got.lse, cpu.lse, 1e-3) &&
      close("d_q", got.d_q, cpu.d_q, of_gradients) &&
      close("d_k", got.d_k, cpu.d_k, of_gradients) && close("d_v", got.d_v, cpu.d_v, of_gradients);
  if (!right) std::printf("%s\n", call.description.c_str());
  return right;
}

// decode() over a contiguous, ring or paged cache of any type, compared with the oracle.
bool right_cache(uint64_t seed) {
  Random random(seed);
  CacheCase cache(random);
  const KVCacheConfig& config = cache.view().config;
  const int64_t heads = config.num_kv_heads * random.integer(1, 3), queries = random.integer(1, 4);
  const Dims q_shape{config.batch, heads, queries, config.head_dim};
  const Dims out_shape{config.batch, heads, queries, config.value_dim};
  const Dims lse_shape{config.batch, heads, queries};
  Halves halves(random, q_shape, config.type == DType::kF16 ? DType::kF16 : DType::kBF16);
  std::vector<float> in_f32 = random.floats(q_shape.elements());
  const ConstAnyTensor q =
      random.chance(0.7) ? halves.view() : ConstAnyTensor(in_f32.data(), q_shape);
  std::vector<float> slopes, sinks;
  const AttentionOptions options =
      cuda::testing::random_decode_options(random, heads, slopes, sinks);
  std::vector<float> out = poisoned(out_shape.elements()), lse = poisoned(lse_shape.elements());

  DeviceMemory memory;
  cache.for_each_array([&](auto& array) { memory.add(array); });
  memory.add(halves.storage);
  for (auto* const array : {&in_f32, &slopes, &sinks, &out, &lse}) memory.add(*array);
  cuda::CacheView view = cache.view();
  view.keys = memory.at(static_cast<const std::byte*>(view.keys));
  view.values = memory.at(static_cast<const std::byte*>(view.values));
  view.key_scales = memory.at(view.key_scales);
  view.value_scales = memory.at(view.value_scales);
  for (auto* const numbers : {&view.lengths, &view.firsts, &view.page_table}) memory.move(*numbers);
  ConstAnyTensor on_device = q;
  memory.move(on_device);
  AttentionOptions moved = options;
  memory.move(moved.alibi_slopes);
  memory.move(moved.sinks);
  const AttentionOutputs outputs{.out = Tensor(memory.at(out.data()), out_shape),
                                 .lse = Tensor(memory.at(lse.data()), lse_shape)};
  const std::string kernel = cuda::explain_decode(on_device, view, moved, outputs);
  uint64_t bytes = 0;
  Status status = cuda::decode_workspace(on_device, view, moved, outputs, bytes);
  const Scratch scratch(bytes);
  if (status.ok()) status = cuda::decode(on_device, view, moved, outputs, scratch.get(), nullptr);
  if (!done(status, "decode")) return false;
  memory.read_back();

  // Values are at most 1. Kernels of mma.sync round weights to the type of the rows, and exp2 and
  // tanh of a GPU are approximations.
  const bool mma = kernel.starts_with("decode, mma.sync");
  if (mma && q.dtype == DType::kF32) {
    for (float& value : in_f32) value = rules::to_float(rules::to_bfloat16(value));
  }
  const double allowed = 1e-4 + (!mma ? 0.0 : config.type == DType::kF16 ? 0x1p-11 : 0x1p-8);
  for (int64_t b = 0; b < config.batch; ++b) {
    const int64_t length = cache.length(b), rows = heads * queries;
    std::vector<uint8_t> kept(static_cast<size_t>(length), 1);
    std::fill_n(kept.begin(), cache.first(b), uint8_t{0});
    AttentionOptions of_entry = options;
    // An entry without keys needs no mask.
    if (length > 0) of_entry.mask = {kept.data(), {1, 1, 1, length}};
    ConstAnyTensor own = q;
    own.shape[0] = 1;
    own.data = static_cast<const std::byte*>(q.data) + b * q.strides[0] * bytes_of(q.dtype);
    const auto expected = reference::attention(own, cache.keys_of(b), cache.values_of(b), of_entry);
    const auto part = [&](const std::vector<float>& all, int64_t width) {
      return std::vector<float>(all.begin() + b * rows * width,
                                all.begin() + (b + 1) * rows * width);
    };
    if (!close("out", part(out, config.value_dim), expected.out, allowed) ||
        !close("lse", part(lse, 1), expected.lse, 1e-4)) {
      std::printf("entry %d of %s\n", static_cast<int>(b), kernel.c_str());
      return false;
    }
  }
  return true;
}

// merge_attention(), compared with the library on the CPU.
bool right_merge(uint64_t seed) {
  Random random(seed);
  const Dims shape{random.integer(1, 3), random.integer(1, 4), random.integer(1, 50),
                   random.integer(1, 256)};
  const Dims of_lse{shape[0], shape[1], shape[2]};
  std::vector<float> out_a = random.floats(shape.elements()),
                     out_b = random.floats(shape.elements());
  std::vector<float> lse_a = random.floats(of_lse.elements(), -5.0F, 5.0F);
  std::vector<float> lse_b = random.floats(of_lse.elements(), -5.0F, 5.0F);
  for (std::vector<float>* const lse : {&lse_a, &lse_b}) {
    for (float& value : *lse) {
      if (random.chance(0.1)) value = -INFINITY;
    }
  }
  std::vector<float> out = out_a, lse = lse_a;
  DeviceMemory memory;
  for (auto* const array : {&out, &lse, &out_b, &lse_b}) memory.add(*array);
  Context context(1);
  Status status = merge_attention({out_a.data(), shape}, {lse_a.data(), of_lse},
                                  {out_b.data(), shape}, {lse_b.data(), of_lse}, &context);
  if (status.ok()) {
    status = cuda::merge_attention({memory.at(out.data()), shape}, {memory.at(lse.data()), of_lse},
                                   {memory.at(out_b.data()), shape},
                                   {memory.at(lse_b.data()), of_lse}, nullptr);
  }
  if (!done(status, "merge_attention")) return false;
  memory.read_back();
  return close("merged out", out, out_a, 1e-5) && close("merged lse", lse, lse_a, 1e-5);
}

// Weights, captures and the dropout mask of a random call.
bool right_captures(uint64_t seed) {
  RandomCase c = random_case(seed, {.max_queries = 40, .max_keys = 300, .max_width = 100});
  CallOutputs outputs(c);
  DeviceMemory memory, results;
  for (auto& array : c.storage) memory.add(array);
  for (auto& array : c.halves) memory.add(array);
  for (auto& array : c.bytes) memory.add(array);
  for (auto& array : c.integers) memory.add(array);
  auto bytes = outputs.bytes();
  // `bytes` are copies; the addresses of outputs() lie in the originals.
  const auto on_device = [&](auto* data) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto* const original = outputs.bytes()[i].data();
      if (static_cast<const void*>(data) == original && !bytes[i].empty()) {
        return reinterpret_cast<decltype(data)>(results.at(bytes[i].data()));
      }
    }
    return decltype(data){nullptr};
  };
  for (auto& array : bytes) results.add(array);
  AttentionOutputs moved = outputs.outputs();
  std::vector<ScoreCapture> captures(moved.captures.begin(), moved.captures.end());
  moved.out.data = on_device(static_cast<std::byte*>(moved.out.data));
  moved.lse.data = on_device(moved.lse.data);
  moved.weights.data = on_device(moved.weights.data);
  moved.dropout_mask.data = on_device(moved.dropout_mask.data);
  for (ScoreCapture& capture : captures) capture.out.data = on_device(capture.out.data);
  moved.captures = captures;
  ConstAnyTensor q = c.q, k = c.k, v = c.v;
  for (ConstAnyTensor* const tensor : {&q, &k, &v}) memory.move(*tensor);
  AttentionOptions options = c.options;
  move_options(options, memory);
  uint64_t needed = 0;
  Status status = cuda::attention_workspace(q, k, v, options, moved, needed);
  const Scratch scratch(needed);
  if (status.ok()) status = cuda::attention(q, k, v, options, moved, scratch.get(), nullptr);
  if (!done(status, c.description)) return false;
  results.read_back();

  const auto host = [&](const auto& tensor) {
    auto copy = tensor;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (static_cast<const void*>(tensor.data) == outputs.bytes()[i].data()) {
        copy.data = reinterpret_cast<decltype(copy.data)>(bytes[i].data());
      }
    }
    return copy;
  };
  const auto expected = reference::attention(c.q, c.k, c.v, c.options, true);
  const bool transformed = c.options.qk_norm.enabled || c.options.rope.style != Rope::Style::kNone;
  const bool half = c.q.dtype != DType::kF32 || c.k.dtype != DType::kF32;
  const double allowed = tolerance(c, expected) + (half && transformed ? 0x1p-5 : 0.0);
  bool right = close("weights", floats(host(outputs.outputs().weights)), expected.weights, allowed);
  for (size_t n = 0; n < c.captures.size(); ++n) {
    const double factor = c.captures[n].stage == ScoreStage::kWeights ? 1 : 2;
    right = right && close("capture", floats(host(outputs.outputs().captures[n].out)),
                           captured(c, c.captures[n], expected), factor * allowed);
  }
  if (outputs.outputs().dropout_mask.given()) {
    const auto mask = host(outputs.outputs().dropout_mask);
    const uint64_t threshold = rules::dropout_threshold(c.options.dropout.probability);
    const Dims& shape = c.weights_shape;
    for (int64_t at = 0; at < shape.elements(); ++at) {
      const int64_t row = at / shape[3], head = row / shape[2];
      const bool kept =
          rules::dropout_keeps(c.options.dropout.seed, head / shape[1], head % shape[1],
                               row % shape[2], at % shape[3], threshold);
      if (mask.data[at] == (kept ? 1 : 0)) continue;
      std::printf("the dropout mask is wrong at %d; ", static_cast<int>(at));
      right = false;
      break;
    }
  }
  if (!right) std::printf("%s\n", c.description.c_str());
  return right;
}

// A forward call with hidden and visible NaN, compared with the oracle.
bool right_nan(uint64_t seed, bool everywhere) {
  Random random(seed);
  HopperCase call = cuda::testing::random_hopper_case(random, /*packed=*/false, {60, 300});
  const Dims of_queries{call.batch, call.heads, call.queries, call.width};
  const Dims of_keys{call.batch, call.kv_heads, call.keys, call.width};
  Halves q(random, of_queries, call.type), k(random, of_keys, call.type),
      v(random, of_keys, call.type);
  if (everywhere) {
    for (Halves* const rows : {&q, &k, &v}) {
      for (uint16_t& value : rows->storage) value = half_bits(NAN, call.type);
    }
  } else {
    spoil_hidden(random, call, k, v);
  }
  std::vector<int32_t> lengths = call.lengths;
  std::vector<float> sinks = call.sinks;
  std::vector<float> out = poisoned(of_queries.elements());
  std::vector<float> lse = poisoned(call.batch * call.heads * call.queries);
  DeviceMemory memory;
  for (auto* const halves : {&q, &k, &v}) memory.add(halves->storage);
  for (auto* const array : {&out, &lse, &sinks}) memory.add(*array);
  memory.add(lengths);
  AttentionOptions options = call.options;
  options.kv_lengths = lengths;
  options.sinks = sinks;
  const auto expected = reference::attention(q.view(), k.view(), v.view(), options);
  move_options(options, memory);
  ConstAnyTensor on_device[] = {q.view(), k.view(), v.view()};
  for (ConstAnyTensor& tensor : on_device) memory.move(tensor);
  const AttentionOutputs outputs{
      .out = Tensor(memory.at(out.data()), of_queries),
      .lse = Tensor(memory.at(lse.data()), {call.batch, call.heads, call.queries})};
  uint64_t needed = 0;
  Status status =
      cuda::attention_workspace(on_device[0], on_device[1], on_device[2], options, outputs, needed);
  const Scratch scratch(needed);
  if (status.ok()) {
    status = cuda::attention(on_device[0], on_device[1], on_device[2], options, outputs,
                             scratch.get(), nullptr);
  }
  if (!done(status, call.description)) return false;
  memory.read_back();
  const bool right =
      close("out", out, expected.out, 0x1p-5) && close("lse", lse, expected.lse, 1e-3);
  if (!right) std::printf("%s\n", call.description.c_str());
  return right;
}

// One call of each kind that a model makes: prefill, its backward, and a step of decoding.
class Step {
 public:
  Step()
      : q_(random_, of_queries_, DType::kBF16),
        k_(random_, of_keys_, DType::kBF16),
        v_(random_, of_keys_, DType::kBF16),
        one_(random_, of_one_, DType::kBF16),
        out_(static_cast<size_t>(of_queries_.elements())),
        lse_(static_cast<size_t>(of_lse_.elements())),
        d_q_(out_.size()),
        d_k_(static_cast<size_t>(of_keys_.elements())),
        d_v_(d_k_.size()),
        next_(static_cast<size_t>(of_one_.elements())) {
    for (Halves* const halves : {&q_, &k_, &v_, &one_}) memory_.add(halves->storage);
    for (auto* const array : results()) memory_.add(*array);
    options_.causal = Causal::bottom_right();
    for (ConstAnyTensor* const tensor : {&q_on_, &k_on_, &v_on_, &one_on_}) memory_.move(*tensor);
    uint64_t bytes = 0;
    require(cuda::attention_workspace(q_on_, k_on_, v_on_, options_, outputs(), bytes));
    most_ = std::max(most_, bytes);
    require(cuda::attention_backward_workspace(q_on_, k_on_, v_on_, options_, of_forward(), q_on_,
                                               gradients(), bytes));
    most_ = std::max(most_, bytes);
    require(cuda::attention_workspace(one_on_, k_on_, v_on_, {}, of_next(), bytes));
    most_ = std::max(most_, bytes);
  }

  uint64_t workspace_bytes() const { return most_; }
  void enqueue(const cuda::Workspace& workspace, cuda::Stream stream) const {
    require(cuda::attention(q_on_, k_on_, v_on_, options_, outputs(), workspace, stream));
    require(cuda::attention_backward(q_on_, k_on_, v_on_, options_, of_forward(), q_on_,
                                     gradients(), workspace, stream));
    require(cuda::attention(one_on_, k_on_, v_on_, {}, of_next(), workspace, stream));
  }
  // Clears the results on the device.
  void clear() {
    for (auto* const array : results()) {
      must(cudaMemset(memory_.at(array->data()), 0xff, array->size() * sizeof(float)),
           "cudaMemset");
    }
    must(cudaDeviceSynchronize(), "cudaMemset");
  }
  // All results, one after the other.
  std::vector<float> read() {
    memory_.read_back();
    std::vector<float> all;
    for (const auto* const array : results()) all.insert(all.end(), array->begin(), array->end());
    return all;
  }

 private:
  static void require(const Status& status) {
    if (status.ok()) return;
    std::printf("%s\n", status.message().c_str());
    std::exit(1);
  }
  std::vector<std::vector<float>*> results() { return {&out_, &lse_, &d_q_, &d_k_, &d_v_, &next_}; }
  Tensor on_device(const std::vector<float>& array, const Dims& shape) const {
    return {const_cast<float*>(memory_.at(array.data())), shape};
  }
  AttentionOutputs outputs() const {
    return {.out = on_device(out_, of_queries_), .lse = on_device(lse_, of_lse_)};
  }
  AttentionResults of_forward() const {
    return {.out = ConstTensor(memory_.at(out_.data()), of_queries_),
            .lse = ConstTensor(memory_.at(lse_.data()), of_lse_)};
  }
  AttentionGradients gradients() const {
    return {.d_q = on_device(d_q_, of_queries_),
            .d_k = on_device(d_k_, of_keys_),
            .d_v = on_device(d_v_, of_keys_)};
  }
  AttentionOutputs of_next() const { return {.out = on_device(next_, of_one_)}; }

  static constexpr int64_t kWidth = 64;
  Dims of_queries_{1, 4, 100, kWidth}, of_keys_{1, 2, 300, kWidth}, of_one_{1, 4, 1, kWidth},
      of_lse_{1, 4, 100};
  Random random_{1};
  Halves q_, k_, v_, one_;
  std::vector<float> out_, lse_, d_q_, d_k_, d_v_, next_;
  DeviceMemory memory_;
  AttentionOptions options_;
  ConstAnyTensor q_on_ = q_.view(), k_on_ = k_.view(), v_on_ = v_.view(), one_on_ = one_.view();
  uint64_t most_ = 0;
};

bool same(const char* what, const std::vector<float>& got, const std::vector<float>& expected) {
  if (got.size() == expected.size() &&
      std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0) {
    return true;
  }
  std::printf("%s: other bits than the same calls before; ", what);
  return false;
}

int count_wrong(uint64_t calls, const std::function<bool(uint64_t seed)>& right) {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= calls; ++seed) wrong += right(seed) ? 0 : 1;
  return wrong;
}

}  // namespace

int check_packed(uint64_t calls) { return count_wrong(calls, right_packed); }
int check_caches(uint64_t calls) { return count_wrong(calls, right_cache); }
int check_merge(uint64_t calls) { return count_wrong(calls, right_merge); }
int check_captures(uint64_t calls) { return count_wrong(calls, right_captures); }
int check_nan(uint64_t calls) {
  return count_wrong(calls, [](uint64_t seed) { return right_nan(seed, seed % 4 == 0); });
}

int check_second_stream() {
  Step step;
  const Scratch scratch(step.workspace_bytes()), other(step.workspace_bytes());
  step.enqueue(scratch.get(), nullptr);
  const std::vector<float> expected = step.read();
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  step.clear();
  step.enqueue(other.get(), stream);
  must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const bool right = same("second stream", step.read(), expected);
  must(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return right ? 0 : 1;
}

int check_prepared() {
  Step step;
  const Scratch scratch(step.workspace_bytes());
  const auto calls = [&] {
    step.enqueue(scratch.get(), nullptr);
    return Status();
  };
  // The fastest of a few times: on a GPU, the host does not wait for the kernels.
  const auto least_us = [](const auto& enqueue) {
    double least = INFINITY;
    for (int i = 0; i < 3; ++i) {
      const auto start = std::chrono::steady_clock::now();
      enqueue();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      least = std::min(least, 1e6 * took.count());
      must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    return least;
  };
  const double usual_us = least_us([&] { step.enqueue(scratch.get(), nullptr); });
  const std::vector<float> expected = step.read();
  step.clear();
  const std::vector<float> cleared = step.read();
  cuda::PreparedCalls prepared;
  if (!done(prepared.prepare(calls), "prepare()")) return 1;
  int wrong = same("prepare() enqueues nothing", step.read(), cleared) ? 0 : 1;
  bool launched = true;
  const double us =
      least_us([&] { launched = launched && done(prepared.launch(nullptr), "launch()"); });
  if (!launched || !same("prepared", step.read(), expected)) ++wrong;
  std::printf("the host takes %.1f us for three prepared calls, %.1f us for others; ", us,
              usual_us);
  return wrong;
}

int check_graph() {
  Step step;
  const Scratch scratch(step.workspace_bytes());
  step.enqueue(scratch.get(), nullptr);
  const std::vector<float> expected = step.read();
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  step.enqueue(scratch.get(), stream);
  must(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  must(cudaGraphInstantiate(&instance, graph, 0), "cudaGraphInstantiate");
  int wrong = 0;
  for (int launch = 0; launch < 2; ++launch) {
    step.clear();
    must(cudaGraphLaunch(instance, stream), "cudaGraphLaunch");
    must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (!same("graph", step.read(), expected)) ++wrong;
  }
  must(cudaGraphExecDestroy(instance), "cudaGraphExecDestroy");
  must(cudaGraphDestroy(graph), "cudaGraphDestroy");
  must(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return wrong;
}

}  // namespace multihead::testing
