// What plans share: operands, arrays and scratch memory, with their limits, and dispatches.
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

inline constexpr uint32_t kNone = NONE;       // "not given" in blocks
inline constexpr uint32_t kUnreadWords = 64;  // of an output that nobody reads

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

// Collects the dispatches of a plan; remembers the first error. Buffers have numbers: operands,
// then scratch(), and kData for the arrays of the call. finish() gives scratch buffers that are not
// in use at the same time the same memory. No dispatch may have a buffer both to read and to write,
// wherever the bindings begin: that is WebGPU's rule.
class Planner {
 public:
  static constexpr uint32_t kData = kNone - 1;

  // Has Device::operands operands, the tensors of a call. Too much work is blamed on `argument`.
  explicit Planner(const Device& device, const char* argument = "q")
      : Planner(device, argument, std::vector<uint64_t>(device.operands)) {}

  // The plan. Errors: the first one; kOption, for a buffer that is longer than a binding.
  Status finish(Plan& plan);

  // ---- Arrays of the call, of numbers of 32 bits. ----

  // Returns the first word in Plan::data, a multiple of 64.
  uint32_t data(const auto& numbers) {
    align();
    const auto first = static_cast<uint32_t>(plan_.data.size());
    put(numbers);
    return first;
  }
  // Those that are put() from here on lie in data(), in this order.
  void begin_data() {
    align();
    first_data_ = static_cast<uint32_t>(plan_.data.size());
  }
  Binding data() const { return {kData, first_data_, 0}; }
  // Returns the word in data().
  uint32_t put(const auto& numbers) {
    const auto at = static_cast<uint32_t>(plan_.data.size()) - first_data_;
    for (const auto number : numbers) plan_.data.push_back(std::bit_cast<uint32_t>(number));
    return at;
  }
  uint32_t put_given(const auto& numbers) { return numbers.empty() ? kNone : put(numbers); }

  // ---- Memory between dispatches. ----

  uint32_t scratch(uint64_t words);
  Binding scratch(const char* argument, double words);
  GpuRows scratch_rows(const char* argument, const Extents& e) {
    return {.binding = scratch(argument, product({e[0], e[1], e[2], e[3]})),
            .stride = {e[0] == 1 ? 0 : e[1] * e[2] * e[3], e[2] * e[3], e[3]}};
  }
  // A place for an output that is not wanted; each of a dispatch has its own.
  Binding unread(uint32_t slot) {
    if (unread_.words == 0) unread_ = scratch("out", 3.0 * kUnreadWords);
    return {unread_.buffer, slot * kUnreadWords, kUnreadWords};
  }

  // ---- Tensors of a call, whose `data` is 1 + the number of an operand. ----

  // A buffer from a word on, which is a multiple of 64.
  struct Place {
    uint32_t buffer = 0, first = 0;
  };
  // The operands of the next calls; without this, operand i is buffer i.
  void bind(std::vector<Place> operands) { places_ = std::move(operands); }

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
    for (size_t axis = 0; axis < kAxes; ++axis) last += product({extents[axis] - 1, strides[axis]});
    const double bytes = last * static_cast<double>(element);
    check_bytes(argument, bytes);
    if (!status_.ok()) return {};
    const auto number = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(tensor) - 1);
    const Place place = places_.empty() ? Place{number, 0} : places_[number];
    return {place.buffer, place.first, static_cast<uint32_t>(std::ceil(bytes / 4))};
  }
  GpuRows rows(const char* argument, const void* data, DType type, const rules::RowStrides& stride,
               const Extents& e) {
    GpuRows rows{.binding = {}, .stride = stride, .type = type};
    rows.binding =
        operand<3>(argument, data, {e[0], e[1], e[2]}, rows.stride, e[3], bytes_of(type));
    return rows;
  }

  // ---- Dispatches. ----

  // Workgroups along two axes: kernels count them as y * num_workgroups.x + x, and leave out those
  // beyond the last.
  template <class Block>
  void dispatch(Kernel kernel, std::array<uint32_t, Dispatch::kConstants> constants, double groups,
                std::vector<Binding> bindings, const Block& block, uint32_t z = 1) {
    plan_.dispatches.push_back(
        {kernel, constants, folded(groups, z), std::move(bindings), words_of(block)});
  }

  struct Move {
    GpuRows from, to;
  };
  // Reads, converts and places rows: the block has strides, types and extents from here. As many
  // rows of RowsBlock::width2 may move in the same dispatch.
  void move_rows(const Move& rows, const Extents& e, RowsBlock block, const Move* more = nullptr);

  const Device& device() const { return device_; }
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 protected:
  // With the words of each operand, for operations that bind whole buffers.
  Planner(const Device& device, const char* argument, std::span<const uint64_t> operands)
      : device_(device),
        argument_(argument),
        buffers_(operands.begin(), operands.end()),
        operands_(static_cast<uint32_t>(operands.size())) {}

  Binding whole(uint32_t buffer) const {
    if (buffer == kData) return {kData, 0, 0};
    return {buffer, 0, static_cast<uint32_t>(buffers_[buffer])};
  }

 private:
  std::array<uint32_t, 3> folded(double groups, uint32_t z);
  void align() { plan_.data.resize((plan_.data.size() + 63) / 64 * 64); }
  void check_bytes(const char* argument, double bytes);

  Device device_;
  const char* argument_;
  std::vector<uint64_t> buffers_;  // words
  uint32_t operands_;
  std::vector<Place> places_;
  uint32_t first_data_ = 0;
  Plan plan_;  // with the numbers of buffers_, and no scratch yet
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
Status plan_problem(const Problem& of, Planner& to);

constexpr Extents extents_of(const engine::AttentionShape& shape, bool of_queries) {
  if (of_queries) return {shape.batch, shape.heads, shape.queries, shape.head_dim};
  return {shape.batch, shape.kv_heads, shape.keys, shape.head_dim};
}

}  // namespace multihead::webgpu
