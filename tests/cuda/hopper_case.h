// Random calls that the Hopper kernels support.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "multihead/attention.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {

using multihead::testing::half_bits;
using multihead::testing::Random;

// Rows of 16-bit numbers in a random common layout that TMA can read: strides are multiples of 16
// bytes.
struct Halves {
  std::vector<uint16_t> storage;  // with room for the alignment
  Dims shape, strides;
  DType type;
  uint16_t* data = nullptr;

  Halves(Random& random, const Dims& dims, DType dtype) : shape(dims), type(dtype) {
    const int64_t b = dims[0], h = dims[1], n = dims[2], d = dims[3];
    const int64_t row = d + 8 * (random.chance(0.3) ? random.integer(1, 9) : 0);
    strides = random.chance(0.3) ? Dims{n * h * row, row, h * row, 1}
                                 : Dims{h * n * row, n * row, row, 1};
    const int64_t used = dims.elements() == 0 ? 0 : b * h * n * row - (row - d);
    storage.resize(static_cast<size_t>(used + 8));
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    data = storage.data() + (16 - address % 16) % 16 / 2;
    const float size = random.pick({0.3F, 1.0F, 4.0F});
    const std::vector<float> values = random.floats(used, -size, size);
    for (size_t i = 0; i < values.size(); ++i) data[i] = half_bits(values[i], dtype);
  }
  Halves(const Halves&) = delete;
  Halves& operator=(const Halves&) = delete;

  size_t bytes() const {
    if (shape.elements() == 0) return 0;
    int64_t last = 0;
    for (int axis = 0; axis < 4; ++axis) last += (shape[axis] - 1) * strides[axis];
    return static_cast<size_t>(last + 1) * 2;
  }
  // Sets the row of (batch, head, position) to NaN or infinity.
  void spoil(int64_t batch, int64_t head, int64_t position, float value) {
    uint16_t* const row = data + batch * strides[0] + head * strides[1] + position * strides[2];
    for (int64_t c = 0; c < shape[3]; ++c) row[c] = half_bits(value, type);
  }
  ConstAnyTensor view() const { return {data, type, shape, strides}; }
  // Rows first .. first + count - 1 of batch entry 0.
  ConstAnyTensor rows(int64_t first, int64_t count) const {
    return {data + first * strides[2], type, {1, shape[1], count, shape[3]}, strides};
  }
};

struct HopperCase {
  DType type, out_type;
  int64_t batch, heads, kv_heads, queries, keys, width;
  AttentionOptions options;
  std::vector<int32_t> lengths, cu_q, cu_k;
  std::vector<float> sinks, slopes, bias;
  std::vector<uint8_t> mask;
  bool with_lse, hidden_values;
  std::string description;
};

// Draws what changes scores, and a mask. Packed sequences have no mask or bias here.
inline void draw_terms(Random& random, bool packed, HopperCase& call) {
  AttentionOptions& options = call.options;
  if (random.chance(0.3)) options.softcap = random.uniform(0.5F, 20.0F);
  if (random.chance(0.4)) {
    call.slopes = random.floats(call.heads, -0.2F, 0.5F);
    options.alibi_slopes = call.slopes;
  }
  if (packed || call.keys == 0) return;
  const auto shape = [&] {
    const auto axis = [&](int64_t extent) { return random.chance(0.4) ? 1 : extent; };
    const int64_t b = axis(call.batch), h = axis(call.heads), q = axis(call.queries);
    return Dims{b, h, q, random.chance(0.1) ? 1 : call.keys};
  };
  if (random.chance(0.5)) {
    const Dims dims = shape();
    call.mask.resize(static_cast<size_t>(dims.elements()));
    const float share = random.pick({0.0F, 0.02F, 0.5F, 0.98F});
    for (uint8_t& allowed : call.mask) allowed = random.chance(share) ? 0 : 1;
    options.mask = {call.mask.data(), dims};
  }
  if (random.chance(0.5)) {
    const Dims dims = shape();
    call.bias = random.floats(dims.elements(), -2.0F, 2.0F);
    const float share = random.pick({0.0F, 0.05F, 0.9F, 1.0F});
    // The least float hides keys only from rows that see others, as masks of transformers do.
    const float hidden = random.pick(
        {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::lowest()});
    for (float& bias : call.bias) {
      if (random.chance(share)) bias = hidden;
    }
    options.bias = {call.bias.data(), dims};
  }
  call.description += std::string(call.mask.empty() ? "" : ", mask ") +
                      (call.mask.empty() ? "" : options.mask.shape.to_string()) +
                      (call.bias.empty() ? "" : ", bias " + options.bias.shape.to_string());
}

// `lengths`: choices for the largest number of rows of the call. most_of_group: the most query
// heads that share a key/value head.
inline HopperCase random_hopper_case(Random& random, bool packed,
                                     std::initializer_list<int64_t> lengths,
                                     int64_t most_of_group = 64) {
  HopperCase call;
  call.type = random.pick({DType::kBF16, DType::kF16});
  call.out_type = random.chance(0.2) ? DType::kF32 : call.type;
  call.width = random.pick<int64_t>({64, 64, 128, 128, 256});
  const int64_t longest = random.pick(lengths);
  const bool is_long = longest > 70;  // long calls have few heads to save time
  call.batch = random.integer(1, (packed ? 4 : 2) / (is_long ? 2 : 1));
  call.kv_heads = random.integer(1, is_long ? 1 : 2);
  int64_t group = is_long ? random.pick<int64_t>({1, 1, 1, 2, 4, 8})
                          : random.pick<int64_t>({1, 1, 1, 2, 3, 4, 6, 8, 12});
  if (longest == 3 && random.chance(0.2)) group = random.pick<int64_t>({32, 48, 64});
  group = std::min(group, most_of_group);
  call.heads = call.kv_heads * group;
  call.queries = random.integer(1, std::min<int64_t>(longest, 200));
  call.keys =
      random.chance(0.3) ? call.queries : random.integer(random.chance(0.03) ? 0 : 1, longest);
  if (packed) {
    call.cu_q = call.cu_k = {0};
    int64_t most_q = 0, most_k = 0;
    for (int64_t s = 0; s < call.batch; ++s) {
      const int64_t q = random.integer(0, call.queries), k = random.integer(0, call.keys);
      call.cu_q.push_back(call.cu_q.back() + static_cast<int32_t>(q));
      call.cu_k.push_back(call.cu_k.back() + static_cast<int32_t>(k));
      most_q = std::max(most_q, q);
      most_k = std::max(most_k, k);
    }
    call.queries = most_q;
    call.keys = most_k;
  }
  AttentionOptions& options = call.options;
  if (random.chance(0.3)) options.scale = random.uniform(0.01F, 1.5F);
  if (!packed && random.chance(0.4)) {
    call.lengths.resize(static_cast<size_t>(call.batch));
    for (int32_t& length : call.lengths) {
      length = static_cast<int32_t>(random.integer(0, call.keys));
    }
    options.kv_lengths = call.lengths;
  }
  if (random.chance(0.5)) {
    options.causal.alignment = random.pick(
        {Alignment::kTopLeft, Alignment::kBottomRight, Alignment::kOffset,
         call.lengths.empty() ? Alignment::kBottomRight : Alignment::kBottomRightOfLength});
    if (options.causal.alignment == Alignment::kOffset) {
      options.causal.offset = random.integer(-call.queries - 2, call.keys + 2);
      // Positions beyond 32 bits, with a window that ends before them.
      constexpr int64_t kFar = int64_t{1} << 33;
      if (random.chance(0.1)) options.causal.offset += random.pick({kFar, -kFar});
    }
  }
  if (random.chance(0.25)) options.window.left = random.integer(0, call.keys + 1);
  if (random.chance(0.15)) options.window.right = random.integer(0, call.keys + 1);
  if (random.chance(0.2)) {
    call.sinks = random.floats(call.heads, -3.0F, 3.0F);
    options.sinks = call.sinks;
  }
  call.with_lse = random.chance(0.8);
  call.hidden_values = random.chance(0.4);
  call.description = (call.type == DType::kBF16 ? "bf16" : "f16") + std::string(", batch ") +
                     std::to_string(call.batch) + ", heads " + std::to_string(call.heads) + "/" +
                     std::to_string(call.kv_heads) + ", queries " + std::to_string(call.queries) +
                     ", keys " + std::to_string(call.keys) + ", width " +
                     std::to_string(call.width) + (packed ? ", packed" : "") +
                     (call.options.causal.alignment != Alignment::kNone ? ", causal" : "") +
                     (call.options.window.given() ? ", window" : "") +
                     (call.lengths.empty() ? "" : ", lengths") +
                     (call.sinks.empty() ? "" : ", sinks");
  return call;
}

// Spoils keys and values that a length hides, and some that the causal mask or the window hides
// from only some queries.
inline void spoil_hidden(Random& random, const HopperCase& call, Halves& k, Halves& v) {
  for (int64_t b = 0; b < call.batch; ++b) {
    const int64_t length = call.lengths.empty() ? call.keys : call.lengths[static_cast<size_t>(b)];
    for (int64_t h = 0; h < call.kv_heads; ++h) {
      for (int64_t j = length; j < call.keys; ++j) {
        k.spoil(b, h, j, std::numeric_limits<float>::quiet_NaN());
        v.spoil(b, h, j,
                random.pick({std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity()}));
      }
      if (call.keys > 0 && random.chance(0.3)) {
        Halves& one = random.chance(0.5) ? k : v;
        one.spoil(b, h, random.integer(0, call.keys - 1), std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
}

}  // namespace multihead::cuda::testing
