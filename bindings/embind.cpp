// The table between TypeScript and the core. It owns little: one Context, the last error, the
// last list of named tensors, and what stands behind handles. Checks of JavaScript values,
// lifetime and ownership are the TypeScript package's.
#include <emscripten/bind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "arguments.h"
#include "engine/error.h"
#include "handles.h"
#include "memory.h"
#include "multihead/multihead.h"

namespace {

using multihead::ConstAnyTensor;
using multihead::Dims;
using multihead::KVCache;
using multihead::MultiHeadAttention;
using multihead::MultiHeadAttentionCache;
using multihead::PreparedAttention;
using multihead::Transformer;
using multihead::TransformerBlock;
using multihead::TransformerCache;
using multihead::bindings::address_of;
using multihead::bindings::argument_block;
using multihead::bindings::Arguments;
using multihead::bindings::at;
using multihead::bindings::handles;
using multihead::bindings::pointer;
using multihead::bindings::release_object;
using multihead::bindings::renew_reserve;

uint32_t argument_address() { return address_of(std::data(argument_block)); }

multihead::Context& context() {
  static multihead::Context shared(1);
  return shared;
}

multihead::Status last_status;
std::string last_text;
// For the next call, which takes them whatever becomes of it.
std::vector<multihead::ScoreCapture> next_captures;
multihead::StateDict next_parameters;

// What calls return beside multihead::StatusCode, without a status.
constexpr int32_t kNothingLeft = 5;     // no memory to start the call with
constexpr int32_t kOtherArguments = 6;  // another number of them than the call reads

// Frees the last error, which may lie in the reserve, and renews the reserve. False where there is
// no memory for it.
bool has_reserve() {
  if (!last_status.ok()) {
    last_text = {};
    last_status = {};
  }
  return renew_reserve();
}

// Runs a call, and gives its status code.
template <class Work>
int32_t run(Work work) {
  if (!has_reserve()) return kNothingLeft;
  last_status = work();
  return static_cast<int32_t>(last_status.code());
}

// Of what has been read from the block before.
template <class Work>
int32_t run(const Arguments& from, Work work) {
  return from.complete() ? run(std::move(work)) : kOtherArguments;
}

// Makes an object: `work` fills it. A handle of it, or minus what run() gives.
template <class Object, class Work>
int32_t make(const Arguments& from, Work work) {
  std::unique_ptr<Object> object;
  const int32_t code = run(from, [&] {
    object = std::make_unique<Object>();
    return work(*object);
  });
  return code == 0 ? handles.add(object.release()) : -code;
}

// The captures that were pushed, which are used up with this call.
std::vector<multihead::ScoreCapture> pushed_captures() { return std::exchange(next_captures, {}); }

int32_t push_capture() {
  Arguments from;
  const multihead::ScoreCapture capture{from.choice<multihead::ScoreStage>(), from.tensor<float>(),
                                        from.span<int32_t>(), from.integer()};
  const int32_t code = run(from, [&] {
    next_captures.push_back(capture);
    return multihead::Status();
  });
  if (code != 0) next_captures = {};
  return code;
}

int32_t attention() {
  Arguments from;
  const std::vector<multihead::ScoreCapture> captures = pushed_captures();
  const ConstAnyTensor q = from.input(), k = from.input(), v = from.input();
  const multihead::AttentionOptions options = from.options();
  const multihead::AttentionOutputs outputs = from.outputs(captures);
  return run(from, [&] { return multihead::attention(q, k, v, options, outputs, context()); });
}

int32_t prepare() {
  Arguments from;
  const ConstAnyTensor q = from.input(), k = from.input(), v = from.input();
  const multihead::AttentionOptions options = from.options();
  const multihead::AttentionOutputs outputs = from.outputs();
  return make<PreparedAttention>(from, [&](PreparedAttention& op) {
    return PreparedAttention::create(q, k, v, options, outputs, context(), op);
  });
}

int32_t attention_scores() {
  Arguments from;
  const std::vector<multihead::ScoreCapture> captures = pushed_captures();
  const ConstAnyTensor q = from.input(), k = from.input();
  const multihead::AttentionOptions options = from.options();
  return run(from, [&] {
    return multihead::attention_scores(
        q, k, options, captures.empty() ? multihead::ScoreCapture() : captures.front(), context());
  });
}

int32_t attention_varlen() {
  Arguments from;
  const ConstAnyTensor q = from.input(), k = from.input(), v = from.input();
  const std::span<const int32_t> cu_q = from.span<int32_t>(), cu_k = from.span<int32_t>();
  const multihead::AttentionOptions options = from.options();
  const multihead::AttentionOutputs outputs = from.outputs();
  return run(from, [&] {
    return multihead::attention_varlen(q, k, v, cu_q, cu_k, options, outputs, context());
  });
}

int32_t merge_attention() {
  Arguments from;
  const multihead::Tensor out_a = from.tensor<float>(), lse_a = from.tensor<float>();
  const multihead::ConstTensor out_b = from.tensor<const float>();
  const multihead::ConstTensor lse_b = from.tensor<const float>();
  return run(from, [&] { return multihead::merge_attention(out_a, lse_a, out_b, lse_b); });
}

void alibi_slopes(uint32_t address, int32_t count) {
  multihead::alibi_slopes({pointer<float>(address), static_cast<size_t>(count)});
}

int32_t rotate() {
  Arguments from;
  const multihead::ConstTensor x = from.tensor<const float>();
  const std::span<const int32_t> positions = from.span<int32_t>();
  const multihead::Rope rope = from.rotation();
  const multihead::Tensor y = from.tensor<float>();
  return run(from, [&] { return multihead::rotate(x, positions, rope, y, context()); });
}

int32_t latent_attention() {
  Arguments from;
  const auto form = from.choice<multihead::LatentForm>();
  const multihead::LatentAttentionInputs inputs{
      from.tensor<const float>(), from.tensor<const float>(), from.tensor<const float>(),
      from.tensor<const float>(), from.tensor<const float>(), from.tensor<const float>()};
  const multihead::AttentionOptions options = from.options();
  const multihead::AttentionOutputs outputs = from.outputs();
  return run(
      from, [&] { return multihead::latent_attention(inputs, form, options, outputs, context()); });
}

// An object of any type, from its config.
template <class Object, class Config>
int32_t create(const Arguments& from, const Config& config) {
  return make<Object>(from, [&](Object& object) { return Object::create(config, object); });
}

int32_t cache_create() {
  Arguments from;
  const multihead::KVCacheConfig config = from.cache_config();
  return create<KVCache>(from, config);
}

int32_t cache_append(int32_t handle) {
  Arguments from;
  const ConstAnyTensor k = from.input(), v = from.input();
  const std::span<const int32_t> counts = from.span<int32_t>();
  return run(from, [&] { return at<KVCache>(handle).append(k, v, counts); });
}

int32_t cache_attend(int32_t handle) {
  Arguments from;
  const std::vector<multihead::ScoreCapture> captures = pushed_captures();
  const ConstAnyTensor q = from.input();
  const multihead::AttentionOptions options = from.options();
  const multihead::AttentionOutputs outputs = from.outputs(captures);
  return run(from, [&] { return at<KVCache>(handle).attend(q, options, outputs, context()); });
}

int32_t cache_truncate(int32_t handle, int32_t batch, int32_t length) {
  return run([&] { return at<KVCache>(handle).truncate(batch, length); });
}
void cache_clear(int32_t handle) { at<KVCache>(handle).clear(); }
int32_t cache_length(int32_t handle, int32_t batch) {
  return static_cast<int32_t>(at<KVCache>(handle).length(batch));
}
int32_t cache_first_kept(int32_t handle, int32_t batch) {
  return static_cast<int32_t>(at<KVCache>(handle).first_kept(batch));
}
double cache_bytes(int32_t handle) { return static_cast<double>(at<KVCache>(handle).bytes()); }

int32_t linear() {
  Arguments from;
  const multihead::ConstTensor x = from.tensor<const float>(), weight = from.tensor<const float>();
  const multihead::ConstTensor bias = from.tensor<const float>();
  const multihead::Tensor y = from.tensor<float>();
  return run(from, [&] { return multihead::linear(x, weight, bias, y, context()); });
}

// Tensors by name that a call gives: what it computed on its way, or the parameters of a module.
struct NamedTensor {
  std::string name;
  Dims shape;
  const void* data;  // floats without gaps
  bool by_columns = false;
};
std::vector<NamedTensor> last_list;
multihead::Trace last_trace;
std::vector<multihead::Trace> last_traces;  // of the layers of a stack

int32_t listed_count() { return static_cast<int32_t>(last_list.size()); }

// Gives JavaScript a text: its address and length go into the block.
double* write_text(const std::string& text) {
  double* next = std::data(argument_block);
  *next++ = address_of(text.data());
  *next++ = static_cast<double>(text.size());
  return next;
}

double* write_shape(const Dims& shape, double* next) {
  *next++ = shape.rank();
  for (int axis = 0; axis < std::min(shape.rank(), Dims::kMaxRank); ++axis) {
    *next++ = static_cast<double>(shape[axis]);
  }
  return next;
}

// The name as a text; behind it address, rank, extents, and 1 for a matrix column by column.
void listed(int32_t index) {
  const NamedTensor& tensor = last_list[static_cast<size_t>(index)];
  double* next = write_text(tensor.name);
  *next++ = address_of(tensor.data);
  next = write_shape(tensor.shape, next);
  *next = tensor.by_columns ? 1 : 0;
}

void release_listed() {
  last_list.clear();
  last_trace = {};
  last_traces.clear();
}

// Bit i of `names` asks for the i-th of trace_names(). Null where none is.
multihead::Trace* trace_of(uint32_t names) {
  last_trace.wanted.clear();
  for (const std::string_view name : multihead::trace_names()) {
    if ((names & 1U) != 0) last_trace.wanted.emplace_back(name);
    names >>= 1U;
  }
  return last_trace.wanted.empty() ? nullptr : &last_trace;
}

void list_steps(const multihead::Trace& trace, const std::string& prefix) {
  for (const multihead::TraceStep& step : trace.steps) {
    last_list.push_back({prefix + step.name, step.shape, step.values.data()});
  }
}

// Runs a call that records steps, and lists them. Steps of a stack have the number of their layer
// in front: "3.weights".
template <class Work>
int32_t run_traced(const Arguments& from, Work work) {
  return run(from, [&] {
    multihead::Status status = work();
    if (!status.ok()) release_listed();
    list_steps(last_trace, "");
    for (size_t layer = 0; layer < last_traces.size(); ++layer) {
      list_steps(last_traces[layer], std::to_string(layer) + ".");
    }
    return status;
  });
}

// Parameters; matrices that were loaded the other way round lie column by column.
template <class Module>
int32_t list_parameters(int32_t handle) {
  return run([&] {
    multihead::StateDict dict;
    multihead::Status status = at<Module>(handle).state_dict(dict);
    for (const auto& [name, tensor] : dict) {
      const bool by_columns = !(tensor.strides == contiguous_strides(tensor.shape));
      last_list.push_back({name, tensor.shape, tensor.data, by_columns});
    }
    return status;
  });
}

int32_t module_create() {
  Arguments from;
  const multihead::MultiHeadAttentionConfig config = from.module_config();
  return create<MultiHeadAttention>(from, config);
}

int32_t push_parameter() {
  Arguments from;
  const ConstAnyTensor tensor = from.input();
  const std::span<const char> name = from.span<char>();
  const int32_t code = run(from, [&] {
    next_parameters.insert_or_assign(std::string(name.begin(), name.end()), tensor);
    return multihead::Status();
  });
  if (code != 0) next_parameters = {};
  return code;
}

int32_t module_load(int32_t handle) {
  return run([&] {
    return at<MultiHeadAttention>(handle).load_state_dict(std::exchange(next_parameters, {}));
  });
}

// Under names that the caller chooses.
template <class Module>
int32_t load_named(int32_t handle, int32_t names) {
  return run([&] {
    return at<Module>(handle).load_state_dict(std::exchange(next_parameters, {}),
                                              static_cast<multihead::ParameterNames>(names));
  });
}

int32_t module_forward(int32_t handle) {
  Arguments from;
  const multihead::MultiHeadAttentionInputs inputs{
      from.tensor<const float>(), from.tensor<const float>(), from.tensor<const float>()};
  const multihead::MultiHeadAttentionOptions options = from.module_options();
  const multihead::MultiHeadAttentionOutputs outputs = from.module_outputs();
  const uint32_t steps = from.word();
  return run_traced(from, [&] {
    return at<MultiHeadAttention>(handle).forward(inputs, options, outputs, trace_of(steps),
                                                  context());
  });
}

// Of layers and blocks, or of stacks.
using ModuleCache = std::variant<MultiHeadAttentionCache, TransformerCache>;

template <class Cache, class Module>
int32_t cache_for(const Module& module) {
  Arguments from;
  const multihead::KVCacheConfig config = from.cache_config();
  return make<ModuleCache>(
      from, [&](ModuleCache& made) { return module.create_cache(config, made.emplace<Cache>()); });
}

// One that was not created where the handle is that of the other kind: no module takes it.
template <class Cache>
Cache& cache_at(int32_t handle) {
  static Cache none;
  Cache* const cache = std::get_if<Cache>(&at<ModuleCache>(handle));
  return cache == nullptr ? none : *cache;
}

bool is_of_stack(int32_t handle) {
  return std::holds_alternative<TransformerCache>(at<ModuleCache>(handle));
}

int32_t module_cache_create(int32_t handle) {
  return cache_for<MultiHeadAttentionCache>(at<MultiHeadAttention>(handle));
}
int32_t module_cache_rewind(int32_t handle, int32_t length) {
  return run([&] {
    return is_of_stack(handle) ? cache_at<TransformerCache>(handle).truncate(length)
                               : cache_at<MultiHeadAttentionCache>(handle).truncate(length);
  });
}
int32_t module_cache_length(int32_t handle) {
  return static_cast<int32_t>(is_of_stack(handle)
                                  ? cache_at<TransformerCache>(handle).length()
                                  : cache_at<MultiHeadAttentionCache>(handle).length());
}
double module_cache_bytes(int32_t handle) {
  return static_cast<double>(is_of_stack(handle)
                                 ? cache_at<TransformerCache>(handle).bytes()
                                 : cache_at<MultiHeadAttentionCache>(handle).kv().bytes());
}

int32_t module_step(int32_t handle, int32_t cache) {
  Arguments from;
  const multihead::ConstTensor x = from.tensor<const float>();
  const multihead::MultiHeadAttentionOptions options = from.module_options();
  const multihead::MultiHeadAttentionOutputs outputs = from.module_outputs();
  const uint32_t steps = from.word();
  return run_traced(from, [&] {
    return at<MultiHeadAttention>(handle).step(
        x, options, outputs, cache_at<MultiHeadAttentionCache>(cache), trace_of(steps), context());
  });
}

int32_t block_create() {
  Arguments from;
  const multihead::TransformerBlockConfig config = from.block_config();
  return create<TransformerBlock>(from, config);
}

// Without a cache forward(), else step().
int32_t block_call(int32_t handle, MultiHeadAttentionCache* cache) {
  Arguments from;
  const TransformerBlock& block = at<TransformerBlock>(handle);
  const multihead::ConstTensor x = from.tensor<const float>();
  const multihead::MultiHeadAttentionOptions options = from.module_options();
  const multihead::TransformerBlockOutputs outputs{from.tensor<float>(), from.tensor<float>()};
  const uint32_t steps = from.word();
  return run_traced(from, [&] {
    multihead::Trace* const trace = trace_of(steps);
    return cache == nullptr ? block.forward(x, options, outputs, trace, context())
                            : block.step(x, options, outputs, *cache, trace, context());
  });
}

int32_t block_forward(int32_t handle) { return block_call(handle, nullptr); }
int32_t block_cache_create(int32_t handle) {
  return cache_for<MultiHeadAttentionCache>(at<TransformerBlock>(handle).attention());
}
int32_t block_step(int32_t handle, int32_t cache) {
  return block_call(handle, &cache_at<MultiHeadAttentionCache>(cache));
}

int32_t transformer_create() {
  Arguments from;
  const multihead::TransformerConfig config = from.transformer_config();
  return create<Transformer>(from, config);
}

// Without a cache forward(), else step().
int32_t transformer_call(int32_t handle, TransformerCache* cache) {
  Arguments from;
  const Transformer& model = at<Transformer>(handle);
  const std::span<const int32_t> tokens = from.span<int32_t>();
  const int64_t batch = from.integer();
  const multihead::MultiHeadAttentionOptions options = from.module_options();
  multihead::TransformerOutputs outputs{from.tensor<float>(), from.tensor<float>(), {}};
  const uint32_t steps = from.word();
  return run_traced(from, [&] {
    if (const multihead::Trace* const wanted = trace_of(steps); wanted != nullptr) {
      last_traces.assign(static_cast<size_t>(model.config().num_layers), *wanted);
      outputs.traces = last_traces;
    }
    return cache == nullptr ? model.forward(tokens, batch, options, outputs, context())
                            : model.step(tokens, options, outputs, *cache, context());
  });
}

int32_t transformer_forward(int32_t handle) { return transformer_call(handle, nullptr); }
int32_t transformer_cache_create(int32_t handle) {
  return cache_for<TransformerCache>(at<Transformer>(handle));
}
int32_t transformer_step(int32_t handle, int32_t cache) {
  return transformer_call(handle, &cache_at<TransformerCache>(cache));
}

// Statistics that are not asked for have no elements.
int32_t head_statistics() {
  Arguments from;
  const multihead::ConstTensor weights = from.tensor<const float>();
  const std::span<const int32_t> tokens = from.span<int32_t>();
  const auto floats = [&]() -> std::span<float> {
    float* const data = pointer<float>(from.word());
    return {data, from.word()};
  };
  const multihead::HeadStatistics outputs{floats(), floats(), floats(), floats()};
  return run(from, [&] { return multihead::head_statistics(weights, tokens, outputs); });
}

// The last status that was not ok, as messages.ts reads it.
void last_error() {
  const multihead::Status::Record& error = *last_status.record();
  double* next = write_text(error.text);
  *next++ = static_cast<double>(error.message);
  *next++ = static_cast<double>(error.argument);
  *next++ = static_cast<double>(error.axes);
  *next++ = error.real;
  for (const int64_t number : error.numbers) *next++ = static_cast<double>(number);
  next = write_shape(error.shape, next);
  write_shape(error.given, next);
}

// 64 bytes: a cache line, and the widest vector of any target.
uint32_t allocate(uint32_t bytes) {
  constexpr uint32_t kAlignment = 64;
  // sbrk() takes a signed number of bytes, some of malloc()'s own among them.
  constexpr uint32_t kLargest = INT32_MAX - (1 << 20);
  // The reserve comes first: without it the next call could not report its error.
  if (bytes > kLargest || !has_reserve()) return 0;
  const uint32_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;
  return address_of(std::aligned_alloc(kAlignment, rounded));
}

void release(uint32_t address) { std::free(pointer<void>(address)); }

void simd_target() { write_text(last_text = multihead::simd_target()); }

}  // namespace

// A section of the module, so that what it is can be read before it runs: load.ts does.
__asm__(
    ".section .custom_section.multihead,\"\",@\n"
    ".ascii \"" MULTIHEAD_VERSION " wire " MULTIHEAD_WIRE_VERSION " " MULTIHEAD_WASM_SIMD "\"");

// Not in the table: Embind's conversion of six integers takes longer than all the rest of it.
extern "C" EMSCRIPTEN_KEEPALIVE int32_t multihead_run(int32_t handle, uint32_t q, uint32_t k,
                                                      uint32_t v, uint32_t out, uint32_t lse) {
  return run([&] {
    return at<PreparedAttention>(handle).run(pointer<const void>(q), pointer<const void>(k),
                                             pointer<const void>(v), pointer<void>(out),
                                             pointer<float>(lse));
  });
}

EMSCRIPTEN_BINDINGS(multihead) {
  using emscripten::function;

  function("argumentBlock", &argument_address);
  function("attention", &attention);
  function("prepare", &prepare);
  function("preparedRelease", &release_object<PreparedAttention>);
  function("pushCapture", &push_capture);
  function("attentionScores", &attention_scores);
  function("attentionVarlen", &attention_varlen);
  function("mergeAttention", &merge_attention);
  function("alibiSlopes", &alibi_slopes);
  function("rotate", &rotate);
  function("latentAttention", &latent_attention);
  function("cacheCreate", &cache_create);
  function("cacheRelease", &release_object<KVCache>);
  function("cacheAppend", &cache_append);
  function("cacheAttend", &cache_attend);
  function("cacheTruncate", &cache_truncate);
  function("cacheClear", &cache_clear);
  function("cacheLength", &cache_length);
  function("cacheFirstKept", &cache_first_kept);
  function("cacheBytes", &cache_bytes);
  function("linear", &linear);
  function("listedCount", &listed_count);
  function("listed", &listed);
  function("releaseListed", &release_listed);
  function("moduleCreate", &module_create);
  function("moduleRelease", &release_object<MultiHeadAttention>);
  function("pushParameter", &push_parameter);
  function("moduleLoad", &module_load);
  function("moduleState", &list_parameters<MultiHeadAttention>);
  function("moduleForward", &module_forward);
  function("moduleCacheCreate", &module_cache_create);
  function("moduleCacheRelease", &release_object<ModuleCache>);
  function("moduleCacheRewind", &module_cache_rewind);
  function("moduleCacheLength", &module_cache_length);
  function("moduleCacheBytes", &module_cache_bytes);
  function("moduleStep", &module_step);
  function("blockCreate", &block_create);
  function("blockRelease", &release_object<TransformerBlock>);
  function("blockLoad", &load_named<TransformerBlock>);
  function("blockState", &list_parameters<TransformerBlock>);
  function("blockForward", &block_forward);
  function("blockCacheCreate", &block_cache_create);
  function("blockStep", &block_step);
  function("transformerCreate", &transformer_create);
  function("transformerRelease", &release_object<Transformer>);
  function("transformerLoad", &load_named<Transformer>);
  function("transformerState", &list_parameters<Transformer>);
  function("transformerForward", &transformer_forward);
  function("transformerCacheCreate", &transformer_cache_create);
  function("transformerStep", &transformer_step);
  function("headStatistics", &head_statistics);
  function("lastError", &last_error);
  function("allocate", &allocate);
  function("release", &release);
  function("simdTarget", &simd_target);
}
