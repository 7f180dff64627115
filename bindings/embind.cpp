// The table between TypeScript and the core. It converts nothing and owns nothing but one
// Context, the last error and the last trace: checks of JavaScript values, lifetime and
// ownership are the TypeScript package's.
#include <emscripten/bind.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "multihead/multihead.h"

namespace {

using Quad = std::array<int32_t, 4>;

// Rank 0 with address 0 is "not given". Strides in elements.
struct TensorArg {
  uint32_t data = 0;
  int32_t rank = 0;
  Quad shape{};
  Quad strides{};
};

struct AttentionArgs {
  TensorArg q, k, v, out, lse, weights, mask, bias;
  float scale = 0;
  bool has_scale = false;
  int32_t causal = 0;  // multihead::Causal::Alignment
  double offset = 0;
};

struct ModuleArgs {
  int32_t embed_dim = 0, num_heads = 0, head_dim = 0;
  TensorArg q_proj, k_proj, v_proj, q_bias, k_bias, v_bias, out_proj, out_bias;
  TensorArg x, output, mask, bias;
  float scale = 0;
  bool has_scale = false;
  int32_t causal = 0;
  double offset = 0;
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

int32_t keep(multihead::Status status) {
  last_status = std::move(status);
  return static_cast<int32_t>(last_status.code());
}

template <class T>
multihead::TensorView<T> view(const TensorArg& arg) {
  multihead::TensorView<T> result;
  result.data = reinterpret_cast<T*>(static_cast<uintptr_t>(arg.data));
  for (int32_t axis = 0; axis < arg.rank && axis < 4; ++axis) {
    result.shape.push_back(arg.shape[static_cast<size_t>(axis)]);
    result.strides.push_back(arg.strides[static_cast<size_t>(axis)]);
  }
  return result;
}

template <class Args>
multihead::AttentionOptions options_of(const Args& args) {
  multihead::AttentionOptions options{
      .causal = {static_cast<multihead::Causal::Alignment>(args.causal),
                 static_cast<int64_t>(args.offset)},
      .mask = view<const uint8_t>(args.mask),
      .bias = view<const float>(args.bias)};
  if (args.has_scale) options.scale = args.scale;
  return options;
}

int32_t attention(const AttentionArgs& args) {
  return keep(multihead::attention(
      view<const float>(args.q), view<const float>(args.k), view<const float>(args.v),
      options_of(args),
      {view<float>(args.out), view<float>(args.lse), view<float>(args.weights)}, context()));
}

int32_t linear(const TensorArg& x, const TensorArg& weight, const TensorArg& bias,
               const TensorArg& y) {
  return keep(multihead::linear(view<const float>(x), view<const float>(weight),
                                view<const float>(bias), view<float>(y), context()));
}

int32_t multi_head_attention(const ModuleArgs& args) {
  const multihead::MultiHeadAttentionWeights weights{
      .q_proj = view<const float>(args.q_proj),
      .k_proj = view<const float>(args.k_proj),
      .v_proj = view<const float>(args.v_proj),
      .q_bias = view<const float>(args.q_bias),
      .k_bias = view<const float>(args.k_bias),
      .v_bias = view<const float>(args.v_bias),
      .out_proj = view<const float>(args.out_proj),
      .out_bias = view<const float>(args.out_bias)};
  return keep(multihead::multi_head_attention(
      {args.embed_dim, args.num_heads, args.head_dim}, weights, view<const float>(args.x),
      options_of(args), view<float>(args.output), args.trace ? &last_trace : nullptr, context()));
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
      .field("rank", &TensorArg::rank)
      .field("shape", &TensorArg::shape)
      .field("strides", &TensorArg::strides);
  emscripten::value_object<AttentionArgs>("AttentionArgs")
      .field("q", &AttentionArgs::q)
      .field("k", &AttentionArgs::k)
      .field("v", &AttentionArgs::v)
      .field("out", &AttentionArgs::out)
      .field("lse", &AttentionArgs::lse)
      .field("weights", &AttentionArgs::weights)
      .field("mask", &AttentionArgs::mask)
      .field("bias", &AttentionArgs::bias)
      .field("scale", &AttentionArgs::scale)
      .field("hasScale", &AttentionArgs::has_scale)
      .field("causal", &AttentionArgs::causal)
      .field("offset", &AttentionArgs::offset);
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
      .field("mask", &ModuleArgs::mask)
      .field("bias", &ModuleArgs::bias)
      .field("scale", &ModuleArgs::scale)
      .field("hasScale", &ModuleArgs::has_scale)
      .field("causal", &ModuleArgs::causal)
      .field("offset", &ModuleArgs::offset)
      .field("trace", &ModuleArgs::trace);
  emscripten::value_object<Error>("Error")
      .field("code", &Error::code)
      .field("argument", &Error::argument)
      .field("expected", &Error::expected)
      .field("got", &Error::got);

  function("attention", &attention);
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
