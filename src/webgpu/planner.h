// What plans of attention share: the bindings of operands and scratch memory, with their limits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "rules/attention_params.h"
#include "webgpu/params.h"
#include "webgpu/plan.h"

namespace multihead::webgpu {

inline constexpr uint32_t kNone = UINT32_MAX;  // "not given" in blocks
inline constexpr uint32_t kUnreadWords = 64;   // of an output that nobody reads

constexpr uint32_t word(int64_t number) { return static_cast<uint32_t>(number); }

// In double, which does not overflow.
inline double product(std::initializer_list<int64_t> factors) {
  double result = 1;
  for (const int64_t factor : factors) result *= static_cast<double>(factor);
  return result;
}

// Rows (B, H, N, width) in a buffer.
struct GpuRows {
  Binding binding;
  rules::RowStrides stride{};
  DType type = DType::kF32;

  vec4u block() const {
    return {word(stride[0]), word(stride[1]), word(stride[2]), static_cast<uint32_t>(type)};
  }
  // Four numbers of every row are at a multiple of their size.
  bool in_fours() const {
    return std::all_of(stride.begin(), stride.end(), [](int64_t s) { return s % 4 == 0; });
  }
};

// Extents (B, H, N, width) of rows in memory: packed sequences have one batch entry.
using Extents = std::array<int64_t, 4>;

// Makes the dispatches of one plan; remembers the first error.
class Planner {
 public:
  Planner(const Device& device, Plan& plan) : device_(device), plan_(plan) {}

  // Returns the place of numbers of 32 bits in Plan::data.
  uint32_t put(const auto& numbers) {
    const auto at = static_cast<uint32_t>(plan_.data.size());
    for (const auto number : numbers) plan_.data.push_back(std::bit_cast<uint32_t>(number));
    return at;
  }
  uint32_t put_given(const auto& numbers) { return numbers.empty() ? kNone : put(numbers); }

  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  // The whole Plan::data, which also stands for tensors that are not given.
  Binding data() const { return {device_.operands, 0, 0}; }

  Binding scratch(const char* argument, double words) {
    check_bytes(argument, 4 * words);
    if (!status_.ok()) return {};
    plan_.scratch.push_back(static_cast<uint32_t>(std::max(words, 16.0)));
    return {device_.operands + static_cast<uint32_t>(plan_.scratch.size()), 0,
            plan_.scratch.back()};
  }
  GpuRows scratch_rows(const char* argument, const Extents& e) {
    return {.binding = scratch(argument, product({e[0], e[1], e[2], e[3]})),
            .stride = {e[0] == 1 ? 0 : e[1] * e[2] * e[3], e[2] * e[3], e[3]}};
  }
  // A place for an output that is not wanted; each of a dispatch has its own.
  Binding unread(uint32_t slot) {
    if (unread_.words == 0) unread_ = scratch("out", 3.0 * kUnreadWords);
    return {unread_.buffer, slot * kUnreadWords, kUnreadWords};
  }

  // The part of an operand from its first to its last element. Strides along axes of one element
  // are set to 0. No elements: data() stands for it.
  template <size_t kAxes>
  Binding operand(const char* argument, const void* tensor,
                  const std::array<int64_t, kAxes>& extents, std::array<int64_t, kAxes>& strides,
                  int64_t width, int64_t element) {
    double last = static_cast<double>(width);
    for (size_t axis = 0; axis < kAxes; ++axis) {
      if (extents[axis] == 0) last = 0;
      if (extents[axis] <= 1) strides[axis] = 0;
      if (strides[axis] < 0) {
        fail({StatusCode::kShape, argument, "strides of 0 or more on a GPU",
              std::to_string(strides[axis])});
      }
    }
    if (last == 0 || tensor == nullptr) {
      strides = {};
      return data();
    }
    for (size_t axis = 0; axis < kAxes; ++axis) {
      last += product({extents[axis] - 1, strides[axis]});
    }
    const double bytes = last * static_cast<double>(element);
    check_bytes(argument, bytes);
    if (!status_.ok()) return {};
    return {static_cast<uint32_t>(reinterpret_cast<uintptr_t>(tensor) - 1), 0,
            static_cast<uint32_t>(std::ceil(bytes / 4))};
  }
  GpuRows rows(const char* argument, const void* data, DType type, const rules::RowStrides& stride,
               const Extents& e) {
    GpuRows rows{.binding = {}, .stride = stride, .type = type};
    rows.binding =
        operand<3>(argument, data, {e[0], e[1], e[2]}, rows.stride, e[3], bytes_of(type));
    return rows;
  }

  template <class Block>
  void dispatch(Kernel kernel, std::array<uint32_t, Dispatch::kConstants> constants, double groups,
                std::vector<Binding> bindings, const Block& block) {
    Dispatch made{.kernel = kernel,
                  .constants = constants,
                  .bindings = std::move(bindings),
                  .parameters = words_of(block)};
    fail(fold("q", static_cast<uint64_t>(std::min(groups, 0x1p62)), device_, made.groups));
    plan_.dispatches.push_back(std::move(made));
  }

  // Completes the plan.
  Status finish() {
    check_bytes("options", 4 * static_cast<double>(plan_.data.size()));
    for (Dispatch& dispatch : plan_.dispatches) {
      for (Binding& binding : dispatch.bindings) {
        if (binding.words == 0) binding.words = static_cast<uint32_t>(plan_.data.size());
      }
    }
    return status_;
  }

  // Reads, converts and places rows: the block has strides, types and extents from here.
  void move_rows(const GpuRows& from, const GpuRows& to, const Extents& e, RowsBlock block) {
    const double count = product({e[0], e[1], e[2]});
    if (count == 0 || e[3] == 0) return;
    block.x = from.block();
    block.y = to.block();
    block.count = static_cast<uint32_t>(count);
    block.heads = word(e[1]);
    block.rows = word(e[2]);
    block.width = word(e[3]);
    dispatch(Kernel::kRows, {}, count, {from.binding, data(), to.binding}, block);
  }

  const Device& device() const { return device_; }
  bool ok() const { return status_.ok(); }

 private:
  void check_bytes(const char* argument, double bytes) {
    const double most = std::min(static_cast<double>(device_.binding_bytes), 0x1p32 - 4);
    if (bytes <= most) return;
    fail({StatusCode::kOption, argument,
          "at most " + std::to_string(static_cast<int64_t>(most)) +
              " bytes, the longest binding of this GPU",
          std::to_string(static_cast<int64_t>(std::min(bytes, 0x1p62))) +
              ": cut the batch or the heads into several calls"});
  }

  const Device& device_;
  Plan& plan_;
  Status status_;
  Binding unread_;
};

// A block that only converts and places.
inline RowsBlock as_they_are() {
  RowsBlock block;
  block.gain = block.targets = kNone;
  return block;
}

// A checked call of attention on its way to plan_problem().
struct Problem {
  rules::AttentionParams params;
  const AttentionOptions& options;
  Extents q, k;                                   // of rows in memory, with width d_k
  std::span<const int32_t> cu_q = {}, cu_k = {};  // packed sequences
};

// Plans out, LSE and captures. Errors: what only the CPU computes, and limits of the GPU.
Status plan_problem(const Problem& of, const Device& device, Plan& plan);

constexpr Extents extents_of(const engine::AttentionShape& shape, bool of_queries) {
  if (of_queries) return {shape.batch, shape.heads, shape.queries, shape.head_dim};
  return {shape.batch, shape.kv_heads, shape.keys, shape.head_dim};
}

}  // namespace multihead::webgpu
