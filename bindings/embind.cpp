// The table between TypeScript and the core. It converts nothing and owns little: one Context,
// the last error, the last trace, and the caches behind their handles. Checks of JavaScript
// values, lifetime and ownership are the TypeScript package's.
#include <emscripten/bind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/multihead.h"

namespace {

using Quad = std::array<int32_t, 4>;

// Rank 0 with address 0 is "not given". Strides in elements.
struct TensorArg {
  uint32_t data = 0;
  int32_t dtype = 0;  // multihead::DType; not read for masks
  int32_t rank = 0;
  Quad shape{};
  Quad strides{};
};

// Values in a row; none where the length is 0.
struct SpanArg {
  uint32_t data = 0;
  int32_t length = 0;
};

struct OptionsArg {
  TensorArg mask, bias;
  float scale = 0;
  bool has_scale = false;
  int32_t causal = 0;  // multihead::Alignment, like window_alignment
  double offset = 0;
  double window_left = -1, window_right = -1;
  int32_t window_alignment = 0;
  double window_offset = 0;
  SpanArg kv_lengths, alibi_slopes, sinks;
  float softcap = 0;
  bool norm_enabled = false;
  SpanArg q_gain, k_gain;
  float epsilon = 0;
  int32_t rope_style = 0;  // multihead::Rope::Style
  double rope_base = 0;
  int32_t rotary_dim = 0;
  SpanArg q_positions, k_positions;
  float dropout = 0;
  uint32_t seed_low = 0, seed_high = 0;
};

struct OutputsArg {
  TensorArg out, lse, weights, dropout_mask;
};

struct CaptureArg {
  int32_t stage = 0;  // multihead::ScoreStage
  TensorArg out;
  SpanArg heads;
  int32_t first_row = 0;
};

struct RopeArg {
  int32_t style = 0;
  double base = 0;
  int32_t rotary_dim = 0;
};

struct LatentArg {
  TensorArg q_nope, q_rope, latent, k_rope, w_uk, w_uv;
};

struct CacheArg {
  int32_t batch = 0, kv_heads = 0, key_width = 0, value_width = 0, capacity = 0;
  int32_t layout = 0;  // multihead::KVCacheConfig::Layout
  int32_t type = 0;    // multihead::KVCacheConfig::Type
  int32_t page_size = 0, pages = 0;
};

struct ModuleArgs {
  int32_t embed_dim = 0, num_heads = 0, head_dim = 0;
  TensorArg q_proj, k_proj, v_proj, q_bias, k_bias, v_bias, out_proj, out_bias;
  TensorArg x, output;
  OptionsArg options;
  bool trace = false;
};

struct Error {
  int32_t code = 0;
  std::string argument, expected, got;
};

multihead::Context& context() {
  static multihead::Context shared(1);
  return shared;
}

multihead::Status last_status;
multihead::Trace last_trace;
// For the next call, which takes them whatever becomes of it.
std::vector<multihead::ScoreCapture> next_captures;
// By handle - 1; an empty place is free.
std::vector<std::unique_ptr<multihead::KVCache>> caches;

int32_t keep(multihead::Status status) {
  last_status = std::move(status);
  return static_cast<int32_t>(last_status.code());
}

template <class T>
T* address(uint32_t data) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(data));
}

template <class T>
std::span<const T> span(const SpanArg& arg) {
  return {address<const T>(arg.data), static_cast<size_t>(arg.length)};
}

multihead::Dims dims(const Quad& values, int32_t rank) {
  multihead::Dims result;
  for (int32_t axis = 0; axis < rank && axis < 4; ++axis) {
    result.push_back(values[static_cast<size_t>(axis)]);
  }
  return result;
}

template <class T>
multihead::TensorView<T> view(const TensorArg& arg) {
  return {address<T>(arg.data), dims(arg.shape, arg.rank), dims(arg.strides, arg.rank)};
}

template <class Void>
multihead::AnyTensorView<Void> any_view(const TensorArg& arg) {
  return {address<Void>(arg.data), static_cast<multihead::DType>(arg.dtype),
          dims(arg.shape, arg.rank), dims(arg.strides, arg.rank)};
}
multihead::ConstAnyTensor input(const TensorArg& arg) { return any_view<const void>(arg); }

multihead::AttentionOptions options_of(const OptionsArg& args) {
  using multihead::Alignment;
  multihead::AttentionOptions options{
      .causal = {static_cast<Alignment>(args.causal), static_cast<int64_t>(args.offset)},
      .window = {static_cast<int64_t>(args.window_left), static_cast<int64_t>(args.window_right),
                 static_cast<Alignment>(args.window_alignment),
                 static_cast<int64_t>(args.window_offset)},
      .mask = view<const uint8_t>(args.mask),
      .bias = view<const float>(args.bias),
      .kv_lengths = span<int32_t>(args.kv_lengths),
      .alibi_slopes = span<float>(args.alibi_slopes),
      .softcap = args.softcap,
      .sinks = span<float>(args.sinks),
      .qk_norm = {span<float>(args.q_gain), span<float>(args.k_gain), args.epsilon,
                  args.norm_enabled},
      .rope = {static_cast<multihead::Rope::Style>(args.rope_style), args.rope_base,
               args.rotary_dim, span<int32_t>(args.q_positions), span<int32_t>(args.k_positions)},
      .dropout = {args.dropout, static_cast<uint64_t>(args.seed_high) << 32U | args.seed_low}};
  if (args.has_scale) options.scale = args.scale;
  return options;
}

// Runs `call` with the pushed captures, which are used up then.
template <class Call>
int32_t with_captures(const OutputsArg& outputs, const Call& call) {
  const std::vector<multihead::ScoreCapture> captures = std::exchange(next_captures, {});
  return keep(
      call(multihead::AttentionOutputs{.out = any_view<void>(outputs.out),
                                       .lse = view<float>(outputs.lse),
                                       .weights = view<float>(outputs.weights),
                                       .captures = captures,
                                       .dropout_mask = view<uint8_t>(outputs.dropout_mask)}));
}

void push_capture(const CaptureArg& args) {
  next_captures.push_back({static_cast<multihead::ScoreStage>(args.stage), view<float>(args.out),
                           span<int32_t>(args.heads), args.first_row});
}

int32_t attention(const TensorArg& q, const TensorArg& k, const TensorArg& v,
                  const OptionsArg& options, const OutputsArg& outputs) {
  return with_captures(outputs, [&](const multihead::AttentionOutputs& to) {
    return multihead::attention(input(q), input(k), input(v), options_of(options), to, context());
  });
}

int32_t attention_scores(const TensorArg& q, const TensorArg& k, const OptionsArg& options) {
  return with_captures({}, [&](const multihead::AttentionOutputs& to) {
    return multihead::attention_scores(
        input(q), input(k), options_of(options),
        to.captures.empty() ? multihead::ScoreCapture() : to.captures.front(), context());
  });
}

int32_t attention_varlen(const TensorArg& q, const TensorArg& k, const TensorArg& v,
                         const SpanArg& cu_q, const SpanArg& cu_k, const OptionsArg& options,
                         const OutputsArg& outputs) {
  return with_captures(outputs, [&](const multihead::AttentionOutputs& to) {
    return multihead::attention_varlen(input(q), input(k), input(v), span<int32_t>(cu_q),
                                       span<int32_t>(cu_k), options_of(options), to, context());
  });
}

int32_t merge_attention(const TensorArg& out_a, const TensorArg& lse_a, const TensorArg& out_b,
                        const TensorArg& lse_b) {
  return keep(multihead::merge_attention(view<float>(out_a), view<float>(lse_a),
                                         view<const float>(out_b), view<const float>(lse_b)));
}

void alibi_slopes(uint32_t data, int32_t count) {
  multihead::alibi_slopes({address<float>(data), static_cast<size_t>(count)});
}

int32_t rotate(const TensorArg& x, const SpanArg& positions, const RopeArg& rope,
               const TensorArg& y) {
  return keep(multihead::rotate(view<const float>(x), span<int32_t>(positions),
                                {.style = static_cast<multihead::Rope::Style>(rope.style),
                                 .base = rope.base,
                                 .rotary_dim = rope.rotary_dim},
                                view<float>(y), context()));
}

int32_t latent_attention(const LatentArg& args, int32_t form, const OptionsArg& options,
                         const OutputsArg& outputs) {
  return with_captures(outputs, [&](const multihead::AttentionOutputs& to) {
    return multihead::latent_attention(
        {view<const float>(args.q_nope), view<const float>(args.q_rope),
         view<const float>(args.latent), view<const float>(args.k_rope),
         view<const float>(args.w_uk), view<const float>(args.w_uv)},
        static_cast<multihead::LatentForm>(form), options_of(options), to, context());
  });
}

// A handle, or a negative status code.
int32_t cache_create(const CacheArg& args) {
  auto cache = std::make_unique<multihead::KVCache>();
  const int32_t code = keep(multihead::KVCache::create(
      {.batch = args.batch,
       .kv_heads = args.kv_heads,
       .key_width = args.key_width,
       .value_width = args.value_width,
       .capacity = args.capacity,
       .layout = static_cast<multihead::KVCacheConfig::Layout>(args.layout),
       .type = static_cast<multihead::KVCacheConfig::Type>(args.type),
       .page_size = args.page_size,
       .pages = args.pages},
      *cache));
  if (code != 0) return -code;
  auto place = std::find(caches.begin(), caches.end(), nullptr);
  if (place == caches.end()) place = caches.emplace(caches.end());
  *place = std::move(cache);
  return static_cast<int32_t>(place - caches.begin()) + 1;
}

multihead::KVCache& cache_of(int32_t handle) { return *caches[static_cast<size_t>(handle - 1)]; }

void cache_release(int32_t handle) { caches[static_cast<size_t>(handle - 1)].reset(); }

int32_t cache_append(int32_t handle, const TensorArg& k, const TensorArg& v,
                     const SpanArg& counts) {
  return keep(cache_of(handle).append(input(k), input(v), span<int32_t>(counts)));
}

int32_t cache_attend(int32_t handle, const TensorArg& q, const OptionsArg& options,
                     const OutputsArg& outputs) {
  return with_captures(outputs, [&](const multihead::AttentionOutputs& to) {
    return cache_of(handle).attend(input(q), options_of(options), to, context());
  });
}

int32_t cache_truncate(int32_t handle, int32_t batch, int32_t length) {
  return keep(cache_of(handle).truncate(batch, length));
}
void cache_clear(int32_t handle) { cache_of(handle).clear(); }
int32_t cache_length(int32_t handle, int32_t batch) {
  return static_cast<int32_t>(cache_of(handle).length(batch));
}
int32_t cache_first_kept(int32_t handle, int32_t batch) {
  return static_cast<int32_t>(cache_of(handle).first_kept(batch));
}
double cache_bytes(int32_t handle) { return static_cast<double>(cache_of(handle).bytes()); }

int32_t linear(const TensorArg& x, const TensorArg& weight, const TensorArg& bias,
               const TensorArg& y) {
  return keep(multihead::linear(view<const float>(x), view<const float>(weight),
                                view<const float>(bias), view<float>(y), context()));
}

int32_t multi_head_attention(const ModuleArgs& args) {
  const multihead::MultiHeadAttentionWeights weights{.q_proj = view<const float>(args.q_proj),
                                                     .k_proj = view<const float>(args.k_proj),
                                                     .v_proj = view<const float>(args.v_proj),
                                                     .q_bias = view<const float>(args.q_bias),
                                                     .k_bias = view<const float>(args.k_bias),
                                                     .v_bias = view<const float>(args.v_bias),
                                                     .out_proj = view<const float>(args.out_proj),
                                                     .out_bias = view<const float>(args.out_bias)};
  return keep(multihead::multi_head_attention({args.embed_dim, args.num_heads, args.head_dim},
                                              weights, view<const float>(args.x),
                                              options_of(args.options), view<float>(args.output),
                                              args.trace ? &last_trace : nullptr, context()));
}

Error last_error() {
  return {static_cast<int32_t>(last_status.code()), last_status.argument(), last_status.expected(),
          last_status.got()};
}

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
Quad trace_shape(int32_t index) {
  Quad shape{};
  for (int axis = 0; axis < step(index).shape.rank() && axis < 4; ++axis) {
    shape[static_cast<size_t>(axis)] = static_cast<int32_t>(step(index).shape[axis]);
  }
  return shape;
}
uint32_t trace_address(int32_t index) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(step(index).values.data()));
}
void release_trace() { last_trace = {}; }

std::string simd_target() { return multihead::simd_target(); }
// Which of the two builds this is: Highway names both the same.
std::string simd_build() { return MULTIHEAD_WASM_SIMD; }

}  // namespace

EMSCRIPTEN_BINDINGS(multihead) {
  using emscripten::function;
  using emscripten::index;

  emscripten::value_array<Quad>("Quad")
      .element(index<0>())
      .element(index<1>())
      .element(index<2>())
      .element(index<3>());
  emscripten::value_object<TensorArg>("TensorArg")
      .field("data", &TensorArg::data)
      .field("dtype", &TensorArg::dtype)
      .field("rank", &TensorArg::rank)
      .field("shape", &TensorArg::shape)
      .field("strides", &TensorArg::strides);
  emscripten::value_object<SpanArg>("SpanArg")
      .field("data", &SpanArg::data)
      .field("length", &SpanArg::length);
  emscripten::value_object<OptionsArg>("OptionsArg")
      .field("mask", &OptionsArg::mask)
      .field("bias", &OptionsArg::bias)
      .field("scale", &OptionsArg::scale)
      .field("hasScale", &OptionsArg::has_scale)
      .field("causal", &OptionsArg::causal)
      .field("offset", &OptionsArg::offset)
      .field("windowLeft", &OptionsArg::window_left)
      .field("windowRight", &OptionsArg::window_right)
      .field("windowAlignment", &OptionsArg::window_alignment)
      .field("windowOffset", &OptionsArg::window_offset)
      .field("kvLengths", &OptionsArg::kv_lengths)
      .field("alibiSlopes", &OptionsArg::alibi_slopes)
      .field("softcap", &OptionsArg::softcap)
      .field("sinks", &OptionsArg::sinks)
      .field("normEnabled", &OptionsArg::norm_enabled)
      .field("qGain", &OptionsArg::q_gain)
      .field("kGain", &OptionsArg::k_gain)
      .field("epsilon", &OptionsArg::epsilon)
      .field("ropeStyle", &OptionsArg::rope_style)
      .field("ropeBase", &OptionsArg::rope_base)
      .field("rotaryDim", &OptionsArg::rotary_dim)
      .field("qPositions", &OptionsArg::q_positions)
      .field("kPositions", &OptionsArg::k_positions)
      .field("dropout", &OptionsArg::dropout)
      .field("seedLow", &OptionsArg::seed_low)
      .field("seedHigh", &OptionsArg::seed_high);
  emscripten::value_object<OutputsArg>("OutputsArg")
      .field("out", &OutputsArg::out)
      .field("lse", &OutputsArg::lse)
      .field("weights", &OutputsArg::weights)
      .field("dropoutMask", &OutputsArg::dropout_mask);
  emscripten::value_object<CaptureArg>("CaptureArg")
      .field("stage", &CaptureArg::stage)
      .field("out", &CaptureArg::out)
      .field("heads", &CaptureArg::heads)
      .field("firstRow", &CaptureArg::first_row);
  emscripten::value_object<RopeArg>("RopeArg")
      .field("style", &RopeArg::style)
      .field("base", &RopeArg::base)
      .field("rotaryDim", &RopeArg::rotary_dim);
  emscripten::value_object<LatentArg>("LatentArg")
      .field("qNope", &LatentArg::q_nope)
      .field("qRope", &LatentArg::q_rope)
      .field("latent", &LatentArg::latent)
      .field("kRope", &LatentArg::k_rope)
      .field("wUk", &LatentArg::w_uk)
      .field("wUv", &LatentArg::w_uv);
  emscripten::value_object<CacheArg>("CacheArg")
      .field("batch", &CacheArg::batch)
      .field("kvHeads", &CacheArg::kv_heads)
      .field("keyWidth", &CacheArg::key_width)
      .field("valueWidth", &CacheArg::value_width)
      .field("capacity", &CacheArg::capacity)
      .field("layout", &CacheArg::layout)
      .field("type", &CacheArg::type)
      .field("pageSize", &CacheArg::page_size)
      .field("pages", &CacheArg::pages);
  emscripten::value_object<ModuleArgs>("ModuleArgs")
      .field("embedDim", &ModuleArgs::embed_dim)
      .field("numHeads", &ModuleArgs::num_heads)
      .field("headDim", &ModuleArgs::head_dim)
      .field("qProj", &ModuleArgs::q_proj)
      .field("kProj", &ModuleArgs::k_proj)
      .field("vProj", &ModuleArgs::v_proj)
      .field("qBias", &ModuleArgs::q_bias)
      .field("kBias", &ModuleArgs::k_bias)
      .field("vBias", &ModuleArgs::v_bias)
      .field("outProj", &ModuleArgs::out_proj)
      .field("outBias", &ModuleArgs::out_bias)
      .field("x", &ModuleArgs::x)
      .field("output", &ModuleArgs::output)
      .field("options", &ModuleArgs::options)
      .field("trace", &ModuleArgs::trace);
  emscripten::value_object<Error>("Error")
      .field("code", &Error::code)
      .field("argument", &Error::argument)
      .field("expected", &Error::expected)
      .field("got", &Error::got);

  function("attention", &attention);
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
  function("lastError", &last_error);
  function("allocate", &allocate);
  function("release", &release);
  function("traceCount", &trace_count);
  function("traceName", &trace_name);
  function("traceRank", &trace_rank);
  function("traceShape", &trace_shape);
  function("traceAddress", &trace_address);
  function("releaseTrace", &release_trace);
  function("simdTarget", &simd_target);
  function("simdBuild", &simd_build);
}
