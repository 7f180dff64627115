// The table between TypeScript and the core. It owns little: one Context, the last error, the
// last trace, and what stands behind handles. Checks of JavaScript values, lifetime and
// ownership are the TypeScript package's.
//
// What a call is given lies in one block of numbers, written by arguments.ts and read here in the
// same order. (As Embind's value objects they cost 15 us a call, and a ninth of the module.)
#include <emscripten/bind.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/multihead.h"

namespace {

using multihead::ConstAnyTensor;
using multihead::Dims;

// Twice what the longest call needs.
double arguments[256];

uint32_t argument_block() {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(std::data(arguments)));
}

template <class T>
T* pointer(uint32_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// Reads the block from its beginning. What one statement reads with several calls it reads
// between braces, where their order is that of the text.
class Arguments {
 public:
  double number() { return *next_++; }
  float real() { return static_cast<float>(number()); }
  int32_t integer() { return static_cast<int32_t>(number()); }
  uint32_t word() { return static_cast<uint32_t>(number()); }
  bool flag() { return number() != 0; }
  template <class Enum>
  Enum choice() {
    return static_cast<Enum>(integer());
  }

  // Values in a row; none where the length is 0.
  template <class T>
  std::span<const T> span() {
    const uint32_t address = word();
    return {pointer<const T>(address), word()};
  }

  // Its rank, and unless that is 0, which is "not given": address, dtype, extents. Without gaps.
  template <class Void>
  multihead::AnyTensorView<Void> any_tensor() {
    const int32_t rank = integer();
    if (rank == 0) return {};
    Void* const data = pointer<Void>(word());
    const auto dtype = choice<multihead::DType>();
    Dims shape;
    for (int32_t axis = 0; axis < rank; ++axis) shape.push_back(integer());
    return {data, dtype, shape, contiguous_strides(shape)};
  }
  ConstAnyTensor input() { return any_tensor<const void>(); }
  multihead::AnyTensor output() { return any_tensor<void>(); }
  // Of a type that the caller knows.
  template <class T>
  multihead::TensorView<T> tensor() {
    using Void = std::conditional_t<std::is_const_v<T>, const void, void>;
    const multihead::AnyTensorView<Void> any = any_tensor<Void>();
    return {static_cast<T*>(any.data), any.shape, any.strides};
  }

  multihead::AttentionOptions options() {
    using multihead::Alignment;
    multihead::AttentionOptions options;
    options.mask = tensor<const uint8_t>();
    options.bias = tensor<const float>();
    if (flag()) options.scale = real();
    options.causal = {choice<Alignment>(), whole()};
    options.window = {whole(), whole(), choice<Alignment>(), whole()};
    options.kv_lengths = span<int32_t>();
    options.alibi_slopes = span<float>();
    options.softcap = real();
    options.sinks = span<float>();
    options.qk_norm.enabled = flag();
    options.qk_norm.q_gain = span<float>();
    options.qk_norm.k_gain = span<float>();
    options.qk_norm.epsilon = real();
    options.rope = rotation();
    options.rope.q_positions = span<int32_t>();
    options.rope.k_positions = span<int32_t>();
    options.dropout.probability = real();
    const uint32_t low = word();
    options.dropout.seed = static_cast<uint64_t>(word()) << 32U | low;
    return options;
  }

  // Without positions.
  multihead::Rope rotation() {
    return {choice<multihead::Rope::Style>(), number(), integer(), {}, {}};
  }

  // Captures are pushed before the call.
  multihead::AttentionOutputs outputs(std::span<const multihead::ScoreCapture> captures = {}) {
    return {output(), tensor<float>(), tensor<float>(), captures, tensor<uint8_t>()};
  }

 private:
  int64_t whole() { return static_cast<int64_t>(number()); }

  const double* next_ = std::data(arguments);
};

// Objects of the core behind numbers from 1 on.
template <class T>
class Handles {
 public:
  T& at(int32_t handle) { return *objects_[static_cast<size_t>(handle - 1)]; }
  int32_t add(std::unique_ptr<T> object) {
    auto place = std::find(objects_.begin(), objects_.end(), nullptr);
    if (place == objects_.end()) place = objects_.emplace(objects_.end());
    *place = std::move(object);
    return static_cast<int32_t>(place - objects_.begin()) + 1;
  }
  void release(int32_t handle) { objects_[static_cast<size_t>(handle - 1)].reset(); }

 private:
  std::vector<std::unique_ptr<T>> objects_;  // an empty place is free
};

multihead::Context& context() {
  static multihead::Context shared(1);
  return shared;
}

multihead::Status last_status;
multihead::Trace last_trace;
// For the next call, which takes them whatever becomes of it.
std::vector<multihead::ScoreCapture> next_captures;
Handles<multihead::KVCache> caches;
Handles<multihead::PreparedAttention> prepared;

int32_t keep(multihead::Status status) {
  last_status = std::move(status);
  return static_cast<int32_t>(last_status.code());
}

// The captures that were pushed, which are used up with this call.
std::vector<multihead::ScoreCapture> pushed_captures() { return std::exchange(next_captures, {}); }

void push_capture() {
  Arguments from;
  next_captures.push_back({from.choice<multihead::ScoreStage>(), from.tensor<float>(),
                           from.span<int32_t>(), from.integer()});
}

int32_t attention() {
  Arguments from;
  const std::vector<multihead::ScoreCapture> captures = pushed_captures();
  const ConstAnyTensor q = from.input(), k = from.input(), v = from.input();
  const multihead::AttentionOptions options = from.options();
  return keep(multihead::attention(q, k, v, options, from.outputs(captures), context()));
}

// A handle, or a negative status code.
int32_t prepare() {
  Arguments from;
  const ConstAnyTensor q = from.input(), k = from.input(), v = from.input();
  const multihead::AttentionOptions options = from.options();
  auto op = std::make_unique<multihead::PreparedAttention>();
  const int32_t code =
      keep(multihead::PreparedAttention::create(q, k, v, options, from.outputs(), context(), *op));
  return code == 0 ? prepared.add(std::move(op)) : -code;
}

void prepared_release(int32_t handle) { prepared.release(handle); }

int32_t attention_scores() {
  Arguments from;
  const std::vector<multihead::ScoreCapture> captures = pushed_captures();
  const ConstAnyTensor q = from.input(), k = from.input();
  return keep(multihead::attention_scores(
      q, k, from.options(), captures.empty() ? multihead::ScoreCapture() : captures.front(),
      context()));
}

int32_t attention_varlen() {
  Arguments from;
  const ConstAnyTensor q = from.input(), k = from.input(), v = from.input();
  const std::span<const int32_t> cu_q = from.span<int32_t>(), cu_k = from.span<int32_t>();
  const multihead::AttentionOptions options = from.options();
  return keep(multihead::attention_varlen(q, k, v, cu_q, cu_k, options, from.outputs(), context()));
}

int32_t merge_attention() {
  Arguments from;
  const multihead::Tensor out_a = from.tensor<float>(), lse_a = from.tensor<float>();
  const multihead::ConstTensor out_b = from.tensor<const float>();
  return keep(multihead::merge_attention(out_a, lse_a, out_b, from.tensor<const float>()));
}

void alibi_slopes(uint32_t address, int32_t count) {
  multihead::alibi_slopes({pointer<float>(address), static_cast<size_t>(count)});
}

int32_t rotate() {
  Arguments from;
  const multihead::ConstTensor x = from.tensor<const float>();
  const std::span<const int32_t> positions = from.span<int32_t>();
  const multihead::Rope rope = from.rotation();
  return keep(multihead::rotate(x, positions, rope, from.tensor<float>(), context()));
}

int32_t latent_attention() {
  Arguments from;
  const auto form = from.choice<multihead::LatentForm>();
  const multihead::LatentAttentionInputs inputs{
      from.tensor<const float>(), from.tensor<const float>(), from.tensor<const float>(),
      from.tensor<const float>(), from.tensor<const float>(), from.tensor<const float>()};
  const multihead::AttentionOptions options = from.options();
  return keep(multihead::latent_attention(inputs, form, options, from.outputs(), context()));
}

// A handle, or a negative status code.
int32_t cache_create() {
  using Config = multihead::KVCacheConfig;
  Arguments from;
  const Config config{from.integer(),
                      from.integer(),
                      from.integer(),
                      from.integer(),
                      from.integer(),
                      from.choice<Config::Layout>(),
                      from.choice<Config::Type>(),
                      from.integer(),
                      from.integer()};
  auto cache = std::make_unique<multihead::KVCache>();
  const int32_t code = keep(multihead::KVCache::create(config, *cache));
  return code == 0 ? caches.add(std::move(cache)) : -code;
}

void cache_release(int32_t handle) { caches.release(handle); }

int32_t cache_append(int32_t handle) {
  Arguments from;
  const ConstAnyTensor k = from.input(), v = from.input();
  return keep(caches.at(handle).append(k, v, from.span<int32_t>()));
}

int32_t cache_attend(int32_t handle) {
  Arguments from;
  const std::vector<multihead::ScoreCapture> captures = pushed_captures();
  const ConstAnyTensor q = from.input();
  const multihead::AttentionOptions options = from.options();
  return keep(caches.at(handle).attend(q, options, from.outputs(captures), context()));
}

int32_t cache_truncate(int32_t handle, int32_t batch, int32_t length) {
  return keep(caches.at(handle).truncate(batch, length));
}
void cache_clear(int32_t handle) { caches.at(handle).clear(); }
int32_t cache_length(int32_t handle, int32_t batch) {
  return static_cast<int32_t>(caches.at(handle).length(batch));
}
int32_t cache_first_kept(int32_t handle, int32_t batch) {
  return static_cast<int32_t>(caches.at(handle).first_kept(batch));
}
double cache_bytes(int32_t handle) { return static_cast<double>(caches.at(handle).bytes()); }

int32_t linear() {
  Arguments from;
  const multihead::ConstTensor x = from.tensor<const float>(), weight = from.tensor<const float>();
  const multihead::ConstTensor bias = from.tensor<const float>();
  return keep(multihead::linear(x, weight, bias, from.tensor<float>(), context()));
}

// The module's arguments under the names that TypeScript has for them.
multihead::Status under_package_names(const multihead::Status& status) {
  if (status.ok()) return status;
  const std::string& name = status.argument();
  return {status.code(),
          name == "query" ? "x"
          : name == "out" ? "output"
                          : name,
          status.expected(), status.got()};
}

int32_t multi_head_attention() {
  Arguments from;
  multihead::MultiHeadAttentionConfig config{from.integer(), from.integer(), from.integer()};
  const multihead::MultiHeadAttentionWeights weights{
      from.tensor<const float>(), from.tensor<const float>(), from.tensor<const float>(),
      from.tensor<const float>(), from.tensor<const float>(), from.tensor<const float>(),
      from.tensor<const float>(), from.tensor<const float>()};
  const multihead::ConstTensor x = from.tensor<const float>();
  const multihead::AttentionOptions options = from.options();
  const multihead::Tensor output = from.tensor<float>();
  config.out_proj = weights.out_proj.given();
  multihead::MultiHeadAttention module;
  multihead::Status status = multihead::MultiHeadAttention::create(config, module);
  if (status.ok()) status = module.use_weights(weights);
  if (status.ok()) {
    last_trace.wanted = {"x",
                         "q",
                         "k",
                         "v",
                         "q_heads",
                         "k_heads",
                         "v_heads",
                         "scores",
                         "scaled_scores",
                         "masked_scores",
                         "weights",
                         "heads_out",
                         "merged",
                         "output"};
    status = module.forward({.query = x}, {.attention = options}, {.out = output},
                            from.flag() ? &last_trace : nullptr, context());
  }
  return keep(under_package_names(status));
}

std::string error_argument() { return last_status.argument(); }
std::string error_expected() { return last_status.expected(); }
std::string error_got() { return last_status.got(); }

// 64 bytes: a cache line, and the widest vector of any target.
uint32_t allocate(uint32_t bytes) {
  constexpr uint32_t kAlignment = 64;
  if (bytes > UINT32_MAX - kAlignment) return 0;
  const uint32_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;
  return static_cast<uint32_t>(
      reinterpret_cast<uintptr_t>(std::aligned_alloc(kAlignment, rounded)));
}

void release(uint32_t address) {
  std::free(reinterpret_cast<void*>(static_cast<uintptr_t>(address)));
}

const multihead::TraceStep& step(int32_t index) {
  return last_trace.steps[static_cast<size_t>(index)];
}
int32_t trace_count() { return static_cast<int32_t>(last_trace.steps.size()); }
std::string trace_name(int32_t index) { return step(index).name; }
int32_t trace_rank(int32_t index) { return step(index).shape.rank(); }
int32_t trace_extent(int32_t index, int32_t axis) {
  return static_cast<int32_t>(step(index).shape[axis]);
}
uint32_t trace_address(int32_t index) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(step(index).values.data()));
}
void release_trace() { last_trace = {}; }

std::string simd_target() { return multihead::simd_target(); }
// Which of the two builds this is: Highway names both the same.
std::string simd_build() { return MULTIHEAD_WASM_SIMD; }

}  // namespace

// Not in the table: Embind's conversion of six integers takes longer than all the rest of it.
extern "C" EMSCRIPTEN_KEEPALIVE int32_t multihead_run(int32_t handle, uint32_t q, uint32_t k,
                                                      uint32_t v, uint32_t out, uint32_t lse) {
  return keep(prepared.at(handle).run(pointer<const void>(q), pointer<const void>(k),
                                      pointer<const void>(v), pointer<void>(out),
                                      pointer<float>(lse)));
}

EMSCRIPTEN_BINDINGS(multihead) {
  using emscripten::function;

  function("argumentBlock", &argument_block);
  function("attention", &attention);
  function("prepare", &prepare);
  function("preparedRelease", &prepared_release);
  function("pushCapture", &push_capture);
  function("attentionScores", &attention_scores);
  function("attentionVarlen", &attention_varlen);
  function("mergeAttention", &merge_attention);
  function("alibiSlopes", &alibi_slopes);
  function("rotate", &rotate);
  function("latentAttention", &latent_attention);
  function("cacheCreate", &cache_create);
  function("cacheRelease", &cache_release);
  function("cacheAppend", &cache_append);
  function("cacheAttend", &cache_attend);
  function("cacheTruncate", &cache_truncate);
  function("cacheClear", &cache_clear);
  function("cacheLength", &cache_length);
  function("cacheFirstKept", &cache_first_kept);
  function("cacheBytes", &cache_bytes);
  function("linear", &linear);
  function("multiHeadAttention", &multi_head_attention);
  function("errorArgument", &error_argument);
  function("errorExpected", &error_expected);
  function("errorGot", &error_got);
  function("allocate", &allocate);
  function("release", &release);
  function("traceCount", &trace_count);
  function("traceName", &trace_name);
  function("traceRank", &trace_rank);
  function("traceExtent", &trace_extent);
  function("traceAddress", &trace_address);
  function("releaseTrace", &release_trace);
  function("simdTarget", &simd_target);
  function("simdBuild", &simd_build);
}
