// The functions of multihead/c.h. Each converts its arguments to C++, calls the C++ function, and
// converts the returned Status to an error of C.
#include "multihead/c.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "engine/error/error.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/kv_cache.h"
#include "multihead/prepared_attention.h"
#include "multihead/rope.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "multihead/version.h"

struct multihead_context {
  multihead::Context cpp;
};
struct multihead_prepared {
  multihead::PreparedAttention cpp;
};
struct multihead_cache {
  multihead::KVCache cpp;
};

namespace multihead {
namespace {

static_assert(MULTIHEAD_ERROR_ABORTED == static_cast<int>(StatusCode::kAborted));
static_assert(MULTIHEAD_INT8 == static_cast<int>(DType::kInt8));
static_assert(MULTIHEAD_OFFSET == static_cast<int>(Alignment::kOffset));
static_assert(MULTIHEAD_PAGED == static_cast<int>(KVCacheConfig::Layout::kPaged));

// Copies what fits; a character of several bytes may be cut.
template <size_t kSize>
void copy_text(const std::string& from, char (&to)[kSize]) {
  const size_t length = std::min(from.size(), kSize - 1);
  std::memcpy(to, from.data(), length);
  to[length] = 0;
}

void describe(const Status& status, multihead_error& error) {
  copy_text(status.argument(), error.argument);
  copy_text(status.expected(), error.expected);
  copy_text(status.got(), error.got);
  copy_text(status.message(), error.message);
}

// Calls work(), which returns a Status, and reports it.
template <class Work>
multihead_code call(multihead_error* to, const Work& work) noexcept {
  const Status status = engine::memory_guard(work);
  const auto code = static_cast<multihead_code>(status.code());
  constexpr size_t kCodeEnd = offsetof(multihead_error, code) + sizeof(to->code);
  if (to == nullptr || to->size < kCodeEnd) return code;
  to->code = code;
  if (status.ok()) return code;
  multihead_error error = {};
  error.size = to->size;
  error.code = code;
  // Texts that memory does not suffice for stay empty.
  static_cast<void>(engine::memory_guard([&]() -> Status {
    describe(status, error);
    return {};
  }));
  std::memcpy(static_cast<void*>(to), &error, std::min(to->size, sizeof(error)));
  return code;
}

Status refused(const char* argument, const char* expected, const std::string& got) {
  return {StatusCode::kOption, argument, expected, got};
}

template <class T>
Status need(const char* name, const T* pointer) {
  return pointer != nullptr ? Status() : refused(name, "an address", "null");
}

// Copies a struct that may have fewer members than this version knows, or more, which must be 0.
// Null: all members are 0.
template <class T>
Status copy_struct(const char* name, const T* given, T& own) {
  own = {};
  if (given == nullptr) return {};
  constexpr size_t kMost = sizeof(T) + 1024;  // more is not a size
  const size_t size = given->size;
  if (size < sizeof(size) || size > kMost) {
    return refused(name, "size: sizeof of the struct", std::to_string(size));
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + size, [](int b) { return b; })) {
    return refused(name, "0 in members that this version does not know", "a later version's");
  }
  std::memcpy(static_cast<void*>(&own), given, std::min(size, sizeof(T)));
  return {};
}

// Returns a value that no enumerator has if `value` has none.
template <class Enum>
Enum enumerator(int32_t value) {
  return static_cast<Enum>(value < 0 || value > UINT8_MAX ? UINT8_MAX : value);
}

Status dims_of(const char* name, const multihead_tensor& tensor, Dims& shape, Dims& strides) {
  if (tensor.rank < 0 || tensor.rank > Dims::kMaxRank) {
    return {StatusCode::kShape, name, "a rank from 0 to 8", std::to_string(tensor.rank)};
  }
  if (tensor.rank > 0 && tensor.shape == nullptr) {
    return {StatusCode::kShape, name, "a shape", "null"};
  }
  for (int32_t axis = 0; axis < tensor.rank; ++axis) shape.push_back(tensor.shape[axis]);
  strides = contiguous_strides(shape);
  for (int32_t axis = 0; axis < tensor.rank && tensor.strides != nullptr; ++axis) {
    strides[axis] = tensor.strides[axis];
  }
  return {};
}

// A tensor that is not given stays one.
template <class Void>
Status view(const char* name, const multihead_tensor* tensor, AnyTensorView<Void>& to) {
  if (tensor == nullptr) return {};
  if (tensor->dtype < MULTIHEAD_F32 || tensor->dtype > MULTIHEAD_BF16) {
    return refused(name, "a dtype of MULTIHEAD_F32, F16 or BF16", std::to_string(tensor->dtype));
  }
  to.data = tensor->data;
  to.dtype = static_cast<DType>(tensor->dtype);
  return dims_of(name, *tensor, to.shape, to.strides);
}

template <class T>
Status view(const char* name, const multihead_tensor* tensor, TensorView<T>& to) {
  if (tensor == nullptr) return {};
  constexpr bool kIsFloat = std::is_same_v<std::remove_const_t<T>, float>;
  if (tensor->dtype != (kIsFloat ? MULTIHEAD_F32 : MULTIHEAD_BOOL)) {
    return refused(name, kIsFloat ? "dtype MULTIHEAD_F32" : "dtype MULTIHEAD_BOOL",
                   std::to_string(tensor->dtype));
  }
  to.data = static_cast<T*>(tensor->data);
  return dims_of(name, *tensor, to.shape, to.strides);
}

template <class Array, class T>
Status view(const char* name, const Array& array, std::span<T>& to) {
  if (array.data == nullptr && array.count > 0) return need(name, array.data);
  to = {array.data, array.count};
  return {};
}

Status convert(const multihead_rope* given, Rope& to) {
  if (given == nullptr) return {};
  multihead_rope rope;
  MULTIHEAD_TRY(copy_struct("rope", given, rope));
  if (rope.half != 0 && rope.half != 1) {
    return refused("rope.half", "0 or 1", std::to_string(rope.half));
  }
  to.style = rope.half == 1 ? Rope::Style::kHalf : Rope::Style::kInterleaved;
  if (rope.base != 0.0) to.base = rope.base;
  to.rotary_dim = rope.rotary_dim;
  MULTIHEAD_TRY(view("rope.q_positions", rope.q_positions, to.q_positions));
  return view("rope.k_positions", rope.k_positions, to.k_positions);
}

Status convert(const multihead_attention_options* given, AttentionOptions& to) {
  multihead_attention_options options;
  MULTIHEAD_TRY(copy_struct("options", given, options));
  if (options.has_scale) to.scale = options.scale;
  to.causal = {enumerator<Alignment>(options.causal), options.causal_offset};
  if (options.has_window) {
    to.window = {options.window_left, options.window_right,
                 enumerator<Alignment>(options.window_alignment), options.window_offset};
  }
  MULTIHEAD_TRY(view("mask", options.mask, to.mask));
  MULTIHEAD_TRY(view("bias", options.bias, to.bias));
  MULTIHEAD_TRY(view("kv_lengths", options.kv_lengths, to.kv_lengths));
  MULTIHEAD_TRY(view("alibi_slopes", options.alibi_slopes, to.alibi_slopes));
  MULTIHEAD_TRY(view("sinks", options.sinks, to.sinks));
  MULTIHEAD_TRY(view("q_gain", options.q_gain, to.qk_norm.q_gain));
  MULTIHEAD_TRY(view("k_gain", options.k_gain, to.qk_norm.k_gain));
  to.qk_norm.enabled = options.qk_norm;
  if (options.qk_norm) to.qk_norm.eps = options.qk_norm_eps;
  to.softcap = options.softcap;
  to.dropout = {options.dropout, options.dropout_seed};
  if (options.bf16) to.precision = Precision::kBf16;
  return convert(options.rope, to.rope);
}

Status convert(const multihead_attention_outputs* given, AttentionOutputs& to) {
  multihead_attention_outputs outputs;
  MULTIHEAD_TRY(copy_struct("outputs", given, outputs));
  MULTIHEAD_TRY(view("out", outputs.out, to.out));
  MULTIHEAD_TRY(view("lse", outputs.lse, to.lse));
  MULTIHEAD_TRY(view("weights", outputs.weights, to.weights));
  return view("dropout_mask", outputs.dropout_mask, to.dropout_mask);
}

struct Forward {
  ConstAnyTensor q, k, v;
  AttentionOptions options;
};

Status convert(const multihead_tensor* q, const multihead_tensor* k, const multihead_tensor* v,
               const multihead_attention_options* options, Forward& to) {
  MULTIHEAD_TRY(view("q", q, to.q));
  MULTIHEAD_TRY(view("k", k, to.k));
  MULTIHEAD_TRY(view("v", v, to.v));
  return convert(options, to.options);
}

struct Backward : Forward {
  AttentionResults results;
  ConstAnyTensor d_out;
  AttentionGradients gradients;
};

Status convert(const multihead_attention_results* given_results, const multihead_tensor* d_out,
               const multihead_attention_gradients* given_gradients, Backward& to) {
  multihead_attention_results results;
  MULTIHEAD_TRY(copy_struct("results", given_results, results));
  MULTIHEAD_TRY(view("out", results.out, to.results.out));
  MULTIHEAD_TRY(view("lse", results.lse, to.results.lse));
  to.results.check_lse = !results.trusts_lse;
  MULTIHEAD_TRY(view("d_out", d_out, to.d_out));
  multihead_attention_gradients gradients;
  MULTIHEAD_TRY(copy_struct("gradients", given_gradients, gradients));
  MULTIHEAD_TRY(view("d_q", gradients.d_q, to.gradients.d_q));
  MULTIHEAD_TRY(view("d_k", gradients.d_k, to.gradients.d_k));
  MULTIHEAD_TRY(view("d_v", gradients.d_v, to.gradients.d_v));
  MULTIHEAD_TRY(view("d_bias", gradients.d_bias, to.gradients.d_bias));
  MULTIHEAD_TRY(view("d_sinks", gradients.d_sinks, to.gradients.d_sinks));
  MULTIHEAD_TRY(view("d_q_gain", gradients.d_q_gain, to.gradients.d_q_gain));
  return view("d_k_gain", gradients.d_k_gain, to.gradients.d_k_gain);
}

}  // namespace
}  // namespace multihead

using multihead::call;
using multihead::convert;
using multihead::copy_struct;
using multihead::need;
using multihead::Status;
using multihead::view;

int32_t multihead_version() {
  return 10000 * MULTIHEAD_VERSION_MAJOR + 100 * MULTIHEAD_VERSION_MINOR + MULTIHEAD_VERSION_PATCH;
}

const char* multihead_simd_target() { return multihead::simd_target(); }

multihead_code multihead_context_create(const multihead_context_options* given,
                                        multihead_context** context, multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("context", context));
    multihead_context_options options;
    MULTIHEAD_TRY(copy_struct("options", given, options));
    if (options.threads < 0) {
      return multihead::refused("threads", "0 or more", std::to_string(options.threads));
    }
    if ((options.allocate == nullptr) != (options.deallocate == nullptr)) {
      return multihead::refused("allocate", "allocate and deallocate, or neither", "one of them");
    }
    *context = new multihead_context{
        multihead::Context(multihead::ContextOptions{.threads = options.threads,
                                                     .parallel_for = options.parallel_for,
                                                     .allocate = options.allocate,
                                                     .deallocate = options.deallocate,
                                                     .cancelled = options.cancelled,
                                                     .profile = options.profile,
                                                     .user = options.user})};
    return {};
  });
}

void multihead_context_destroy(multihead_context* context) { delete context; }

size_t multihead_context_scratch_bytes(const multihead_context* context) {
  return context == nullptr ? 0 : context->cpp.scratch_bytes();
}

multihead_code multihead_attention(multihead_context* context, const multihead_tensor* q,
                                   const multihead_tensor* k, const multihead_tensor* v,
                                   const multihead_attention_options* options,
                                   const multihead_attention_outputs* outputs,
                                   multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("context", context));
    multihead::Forward of;
    multihead::AttentionOutputs to;
    MULTIHEAD_TRY(convert(q, k, v, options, of));
    MULTIHEAD_TRY(convert(outputs, to));
    return multihead::attention(of.q, of.k, of.v, of.options, to, context->cpp);
  });
}

multihead_code multihead_attention_backward(multihead_context* context, const multihead_tensor* q,
                                            const multihead_tensor* k, const multihead_tensor* v,
                                            const multihead_attention_options* options,
                                            const multihead_attention_results* results,
                                            const multihead_tensor* d_out,
                                            const multihead_attention_gradients* gradients,
                                            multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("context", context));
    multihead::Backward of;
    MULTIHEAD_TRY(convert(q, k, v, options, of));
    MULTIHEAD_TRY(convert(results, d_out, gradients, of));
    return multihead::attention_backward(of.q, of.k, of.v, of.options, of.results, of.d_out,
                                         of.gradients, context->cpp);
  });
}

multihead_code multihead_prepared_create(multihead_context* context, const multihead_tensor* q,
                                         const multihead_tensor* k, const multihead_tensor* v,
                                         const multihead_attention_options* options,
                                         const multihead_attention_outputs* outputs,
                                         multihead_prepared** prepared, multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("context", context));
    MULTIHEAD_TRY(need("prepared", prepared));
    multihead::Forward of;
    multihead::AttentionOutputs to;
    MULTIHEAD_TRY(convert(q, k, v, options, of));
    MULTIHEAD_TRY(convert(outputs, to));
    auto made = std::make_unique<multihead_prepared>();
    MULTIHEAD_TRY(multihead::PreparedAttention::create(of.q, of.k, of.v, of.options, to,
                                                       context->cpp, made->cpp));
    *prepared = made.release();
    return {};
  });
}

multihead_code multihead_prepared_run(multihead_prepared* prepared, const void* q, const void* k,
                                      const void* v, void* out, float* lse,
                                      multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("prepared", prepared));
    return prepared->cpp.run(q, k, v, out, lse);
  });
}

void multihead_prepared_destroy(multihead_prepared* prepared) { delete prepared; }

multihead_code multihead_cache_create(const multihead_cache_config* given, multihead_cache** cache,
                                      multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("cache", cache));
    multihead_cache_config config;
    MULTIHEAD_TRY(copy_struct("config", given, config));
    using Config = multihead::KVCacheConfig;
    auto made = std::make_unique<multihead_cache>();
    MULTIHEAD_TRY(multihead::KVCache::create(
        {.batch = config.batch == 0 ? 1 : config.batch,
         .num_kv_heads = config.num_kv_heads,
         .head_dim = config.head_dim,
         .value_dim = config.value_dim,
         .values_in_keys = config.values_in_keys,
         .capacity = config.capacity,
         .layout = multihead::enumerator<Config::Layout>(config.layout),
         .type = multihead::enumerator<multihead::DType>(config.type),
         .page_size = config.page_size == 0 ? Config().page_size : config.page_size,
         .pages = config.pages},
        made->cpp));
    *cache = made.release();
    return {};
  });
}

void multihead_cache_destroy(multihead_cache* cache) { delete cache; }

multihead_code multihead_cache_append(multihead_cache* cache, const multihead_tensor* k,
                                      const multihead_tensor* v, multihead_ints counts,
                                      multihead_context* context, multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("cache", cache));
    multihead::ConstAnyTensor keys, values;
    std::span<const int32_t> tokens;
    MULTIHEAD_TRY(view("k", k, keys));
    MULTIHEAD_TRY(view("v", v, values));
    MULTIHEAD_TRY(view("counts", counts, tokens));
    return cache->cpp.append(keys, values, tokens, context == nullptr ? nullptr : &context->cpp);
  });
}

multihead_code multihead_cache_attend(const multihead_cache* cache, const multihead_tensor* q,
                                      const multihead_attention_options* options,
                                      const multihead_attention_outputs* outputs,
                                      multihead_context* context, multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("cache", cache));
    MULTIHEAD_TRY(need("context", context));
    multihead::Forward of;
    multihead::AttentionOutputs to;
    MULTIHEAD_TRY(convert(q, nullptr, nullptr, options, of));
    MULTIHEAD_TRY(convert(outputs, to));
    return cache->cpp.attend(of.q, of.options, to, context->cpp);
  });
}

multihead_code multihead_cache_truncate(multihead_cache* cache, int64_t entry, int64_t length,
                                        multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("cache", cache));
    return cache->cpp.truncate(entry, length);
  });
}

int64_t multihead_cache_length(const multihead_cache* cache, int64_t entry) {
  return cache == nullptr ? 0 : cache->cpp.length(entry);
}

multihead_code multihead_rotate(multihead_context* context, const multihead_tensor* x,
                                multihead_ints positions, const multihead_rope* rope,
                                const multihead_tensor* y, multihead_error* error) {
  return call(error, [&]() -> Status {
    MULTIHEAD_TRY(need("context", context));
    multihead::ConstTensor from;
    multihead::Tensor to;
    std::span<const int32_t> at;
    multihead::Rope how;
    MULTIHEAD_TRY(view("x", x, from));
    MULTIHEAD_TRY(view("positions", positions, at));
    MULTIHEAD_TRY(convert(rope, how));
    MULTIHEAD_TRY(view("y", y, to));
    return multihead::rotate(from, at, how, to, context->cpp);
  });
}
