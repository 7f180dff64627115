// What a call is given: numbers in a block, written by arguments.ts and read here in the same
// order. (As Embind's value objects they cost 15 us a call, and a ninth of the module.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <type_traits>

#include "multihead/multihead.h"

namespace multihead::bindings {

// Raise it in arguments.ts too with every change of what is written, read or returned: a module of
// another version is refused before it runs.
#define MULTIHEAD_WIRE_VERSION "3"

// How many numbers the call writes, and then these: room for twice the longest call.
inline double argument_block[256];

template <class T>
T* pointer(uint32_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

inline uint32_t address_of(const void* pointer) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer));
}

// Reads the block from its beginning. What one statement reads with several calls it reads
// between braces, where their order is that of the text. Behind the numbers written it reads zeros,
// and never beyond the block; complete() tells.
class Arguments {
 public:
  // True once as many numbers have been read as were written.
  bool complete() const { return read_ == written_; }

  double number() {
    const size_t index = ++read_;
    return index <= written_ && index < std::size(argument_block) ? argument_block[index] : 0;
  }
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

  // Its rank, -1 for a scalar, and unless that is 0, which is "not given": address, dtype, extents.
  // Without gaps.
  template <class Void>
  AnyTensorView<Void> any_tensor() {
    const int32_t rank = integer();
    if (rank == 0) return {};
    Void* const data = pointer<Void>(word());
    const auto dtype = choice<DType>();
    Dims shape;
    for (int32_t axis = 0; axis < std::min(rank, Dims::kMaxRank); ++axis) {
      shape.push_back(integer());
    }
    return {data, dtype, shape, contiguous_strides(shape)};
  }
  ConstAnyTensor input() { return any_tensor<const void>(); }
  AnyTensor output() { return any_tensor<void>(); }
  // Of a type that the caller knows.
  template <class T>
  TensorView<T> tensor() {
    using Void = std::conditional_t<std::is_const_v<T>, const void, void>;
    const AnyTensorView<Void> any = any_tensor<Void>();
    return {static_cast<T*>(any.data), any.shape, any.strides};
  }

  AttentionOptions options() {
    AttentionOptions options;
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
    options.dropout.seed = seed();
    return options;
  }

  MultiHeadAttentionConfig module_config() {
    MultiHeadAttentionConfig config;
    for (int64_t* extent :
         {&config.embed_dim, &config.num_heads, &config.head_dim, &config.num_kv_heads,
          &config.value_dim, &config.kdim, &config.vdim, &config.out_dim}) {
      *extent = integer();
    }
    for (bool* option : {&config.bias, &config.out_proj, &config.add_bias_kv, &config.add_zero_attn,
                         &config.batch_first, &config.sinks, &config.qk_norm}) {
      *option = flag();
    }
    config.qk_norm_eps = real();
    config.softcap = real();
    config.window = {integer(), integer()};
    config.rope = rotation();
    config.dropout = real();
    config.kv_latent_dim = integer();
    config.q_latent_dim = integer();
    config.rope_head_dim = integer();
    config.latent_norm_eps = real();
    return config;
  }

  TransformerBlockConfig block_config() {
    return {module_config(), integer(), choice<Activation>(), flag(), flag(), choice<Norm>(),
            flag(),          real()};
  }

  TransformerConfig transformer_config() {
    return {block_config(), integer(), integer(), integer(), flag(), flag(), flag()};
  }

  MultiHeadAttentionOptions module_options() {
    MultiHeadAttentionOptions options;
    options.attention = this->options();
    options.attn_mask_blocked = tensor<const uint8_t>();
    options.key_padding_blocked = tensor<const uint8_t>();
    options.key_padding_bias = tensor<const float>();
    options.training = flag();
    options.dropout_seed = seed();
    options.heads.head_scales = span<float>();
    options.heads.skip_out_proj = flag();
    options.heads.temperature = real();
    options.heads.scale_by_embed_dim = flag();
    return options;
  }

  MultiHeadAttentionOutputs module_outputs() {
    return {tensor<float>(), tensor<float>(), tensor<float>()};
  }

  KVCacheConfig cache_config() {
    KVCacheConfig config;
    for (int64_t* extent : {&config.batch, &config.kv_heads, &config.key_width, &config.value_width,
                            &config.capacity}) {
      *extent = integer();
    }
    config.layout = choice<KVCacheConfig::Layout>();
    config.type = choice<KVCacheConfig::Type>();
    config.page_size = integer();
    config.pages = integer();
    return config;
  }

  // Without positions.
  Rope rotation() { return {choice<Rope::Style>(), number(), integer(), {}, {}}; }

  // Captures are pushed before the call.
  AttentionOutputs outputs(std::span<const ScoreCapture> captures = {}) {
    return {output(), tensor<float>(), tensor<float>(), captures, tensor<uint8_t>()};
  }

 private:
  int64_t whole() { return static_cast<int64_t>(number()); }
  uint64_t seed() {
    const uint32_t low = word();
    return static_cast<uint64_t>(word()) << 32U | low;
  }

  size_t written_ = static_cast<size_t>(argument_block[0]);
  size_t read_ = 0;
};

}  // namespace multihead::bindings
