// The uniform blocks of params.inc as C++ structs.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace multihead::webgpu {

using u32 = uint32_t;
using f32 = float;
using vec4u = std::array<uint32_t, 4>;

// NOLINTNEXTLINE(bugprone-macro-parentheses): a type
#define FIELD(type, name) type name{};
#define MULTIHEAD_GPU_SIZE(name, value) inline constexpr uint32_t name = value;
#define MULTIHEAD_GPU_BLOCK(name, ...) \
  struct name {                        \
    __VA_ARGS__                        \
  };
#include "webgpu/params.inc"
#undef FIELD

template <class Block>
std::vector<uint32_t> words_of(const Block& block) {
  static_assert(sizeof(Block) % 16 == 0);  // WGSL's size of a struct with vec4u
  std::vector<uint32_t> words(sizeof(Block) / sizeof(uint32_t));
  std::memcpy(words.data(), &block, sizeof(Block));
  return words;
}

}  // namespace multihead::webgpu
