// The Hopper forward kernel in the emulator, against the oracle.
#include "cuda/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emulator/memory.h"
#include "cuda/params.h"
#include "engine/plan.h"
#include "engine/validate.h"
#include "multihead/attention.h"
#include "reference/reference_attention.h"
#include "rules/element.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using emulator::device;
using emulator::Use;
using multihead::testing::element;
using multihead::testing::half_bits;
using multihead::testing::Random;
using multihead::testing::random_seeds;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Rows of 16-bit numbers in one of the layouts that callers use, as TMA needs them: strides of
// multiples of 16 bytes.
struct Halves {
  std::vector<uint16_t> storage;  // with space for the alignment
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
  // The row of (batch, head, position) becomes NaN or infinite.
  void spoil(int64_t batch, int64_t head, int64_t position, float value) {
    uint16_t* const row = data + batch * strides[0] + head * strides[1] + position * strides[2];
    for (int64_t c = 0; c < shape[3]; ++c) row[c] = half_bits(value, type);
  }
  ConstAnyTensor view() const { return {data, type, shape, strides}; }
  // Rows first to first + count - 1 of batch entry 0.
  ConstAnyTensor rows(int64_t first, int64_t count) const {
    return {data + first * strides[2], type, {1, shape[1], count, shape[3]}, strides};
  }
};

class Mapped {
 public:
  Mapped(const void* data, size_t bytes, Use use, std::string name) : data_(data) {
    device().map(data, bytes, use, std::move(name));
  }
  ~Mapped() { device().unmap(data_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

 private:
  const void* data_;
};

// Weights are rounded to the type of the values, and so is the output: each time an error of up to
// 2^-8 (bf16) or 2^-11 (f16) of the largest value.
double tolerance(DType type, double largest) {
  return ((type == DType::kBF16 ? 0x1p-7 : 0x1p-10) + 2e-6) * largest;
}

float largest_finite(const Halves& values) {
  float largest = 0.0F;
  for (const uint16_t bits : std::span(values.data, values.bytes() / 2)) {
    const float value = values.type == DType::kF16 ? rules::to_float(Float16{bits})
                                                   : rules::to_float(BFloat16{bits});
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

struct Call {
  DType type, out_type;
  int64_t batch, heads, kv_heads, queries, keys, width;
  AttentionOptions options;
  std::vector<int32_t> lengths, cu_q, cu_k;
  std::vector<float> sinks;
  bool with_lse, hidden_values;
  std::string description;
};

Call random_call(Random& random, bool packed) {
  Call call;
  call.type = random.pick({DType::kBF16, DType::kF16});
  call.out_type = random.chance(0.2) ? DType::kF32 : call.type;
  call.width = random.pick<int64_t>({64, 64, 128, 128, 256});
  // The last one for several turns of the rings, with few heads to save time.
  const int64_t longest = random.pick<int64_t>({3, 70, 70, 300, 900});
  const bool is_long = longest > 70;
  call.batch = random.integer(1, (packed ? 4 : 2) / (is_long ? 2 : 1));
  call.kv_heads = random.integer(1, is_long ? 1 : 2);
  call.heads = call.kv_heads * random.pick<int64_t>({1, 1, 2, is_long ? 1 : 3});
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

// Spoils keys and values that a length hides, and some that only the causal order or the window
// hides from some queries.
void spoil_hidden(Random& random, const Call& call, Halves& k, Halves& v) {
  for (int64_t b = 0; b < call.batch; ++b) {
    const int64_t length = call.lengths.empty() ? call.keys : call.lengths[static_cast<size_t>(b)];
    for (int64_t h = 0; h < call.kv_heads; ++h) {
      for (int64_t j = length; j < call.keys; ++j) {
        k.spoil(b, h, j, kNaN);
        v.spoil(b, h, j, random.pick({kNaN, std::numeric_limits<float>::infinity()}));
      }
      if (call.keys > 0 && random.chance(0.3)) {
        Halves& one = random.chance(0.5) ? k : v;
        one.spoil(b, h, random.integer(0, call.keys - 1), kNaN);
      }
    }
  }
}

void expect_rows(std::span<const float> out, std::span<const float> lse, int64_t first,
                 int64_t rows_of_head, int64_t queries, const Call& call,
                 const reference::ReferenceOutputs& expected, double allowed) {
  for (int64_t bh = 0;
       bh < static_cast<int64_t>(expected.lse.size()) / std::max<int64_t>(queries, 1); ++bh) {
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = bh * rows_of_head + first + i;
      for (int64_t c = 0; c < call.width; ++c) {
        const double want = expected.out[static_cast<size_t>((bh * queries + i) * call.width + c)];
        const float got = out[static_cast<size_t>(row * call.width + c)];
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(got)) << "head " << bh << " query " << i << " column " << c;
        } else {
          ASSERT_NEAR(got, want, allowed) << "head " << bh << " query " << i << " column " << c;
        }
      }
      if (!call.with_lse) continue;
      const double want = expected.lse[static_cast<size_t>(bh * queries + i)];
      const float got = lse[static_cast<size_t>(row)];
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << "lse of head " << bh << " query " << i;
      } else if (std::isinf(want)) {
        ASSERT_EQ(got, want) << "lse of head " << bh << " query " << i;
      } else {
        ASSERT_NEAR(got, want, 1e-4 * std::max(1.0, std::abs(want)))
            << "lse of head " << bh << " query " << i;
      }
    }
  }
}

void check_call(uint64_t seed, bool packed) {
  Random random(seed);
  const Call call = random_call(random, packed);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + call.description);
  const int64_t q_rows = packed ? call.cu_q.back() : call.queries;
  const int64_t k_rows = packed ? call.cu_k.back() : call.keys;
  const int64_t entries = packed ? 1 : call.batch;
  if (q_rows == 0) return;
  Halves q(random, {entries, call.heads, q_rows, call.width}, call.type);
  Halves k(random, {entries, call.kv_heads, k_rows, call.width}, call.type);
  Halves v(random, {entries, call.kv_heads, k_rows, call.width}, call.type);
  if (call.hidden_values && !packed) spoil_hidden(random, call, k, v);

  // Outputs in f32 of the exact size; those of 16 bits apart.
  const int64_t rows = entries * call.heads * q_rows;
  std::vector<float> lse(static_cast<size_t>(rows)), out(static_cast<size_t>(rows * call.width));
  std::vector<uint16_t> halves(out.size());
  const bool is_f32 = call.out_type == DType::kF32;
  const Dims shape{entries, call.heads, q_rows, call.width};
  AttentionOutputs outputs;
  void* const to = is_f32 ? static_cast<void*>(out.data()) : halves.data();
  outputs.out = {to, call.out_type, shape, contiguous_strides(shape)};
  if (call.with_lse) outputs.lse = {lse.data(), {entries, call.heads, q_rows}};

  ForwardParams params;
  const engine::AttentionShape sizes{.batch = call.batch,
                                     .heads = call.heads,
                                     .kv_heads = call.kv_heads,
                                     .queries = call.queries,
                                     .keys = call.keys,
                                     .key_width = call.width,
                                     .value_width = call.width};
  params.call =
      engine::plan_call(q.view(), k.view(), v.view(), sizes, call.options, outputs).plan.params;
  params.call.captures = {};
  if (packed) {
    params.cu_q = call.cu_q.data();
    params.cu_k = call.cu_k.data();
    params.packed_queries = q_rows;
    params.packed_keys = k_rows;
  }

  device().set_seed(seed);
  device().take_findings();
  const Mapped map_q(q.data, q.bytes(), Use::kInput, "q"),
      map_k(k.data, k.bytes(), Use::kInput, "k"), map_v(v.data, v.bytes(), Use::kInput, "v"),
      map_lse(lse.data(), lse.size() * sizeof(float), Use::kOutput, "lse"),
      map_out(to, out.size() * (is_f32 ? 4 : 2), Use::kOutput, "out"),
      map_lengths(call.lengths.data(), call.lengths.size() * 4, Use::kInput, "kv_lengths"),
      map_sinks(call.sinks.data(), call.sinks.size() * 4, Use::kInput, "sinks"),
      map_cu_q(call.cu_q.data(), call.cu_q.size() * 4, Use::kInput, "cu_q"),
      map_cu_k(call.cu_k.data(), call.cu_k.size() * 4, Use::kInput, "cu_k");
  ASSERT_EQ(
      launch_forward_hopper(params, {.compute_capability = 90, .multiprocessors = 132}, nullptr),
      0);
  const std::vector<std::string> findings = device().take_findings();
  ASSERT_TRUE(findings.empty()) << findings[0];
  if (!is_f32) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = call.type == DType::kF16 ? rules::to_float(Float16{halves[i]})
                                        : rules::to_float(BFloat16{halves[i]});
    }
  }

  const double allowed = tolerance(call.type, std::max(1e-3F, largest_finite(v)));
  if (!packed) {
    expect_rows(out, lse, 0, q_rows, call.queries, call,
                reference::attention(q.view(), k.view(), v.view(), call.options), allowed);
    return;
  }
  for (size_t s = 0; s + 1 < call.cu_q.size(); ++s) {
    const int64_t count = call.cu_q[s + 1] - call.cu_q[s];
    if (count == 0) continue;
    const int64_t keys = call.cu_k[s + 1] - call.cu_k[s];
    expect_rows(out, lse, call.cu_q[s], q_rows, count, call,
                reference::attention(q.rows(call.cu_q[s], count), k.rows(call.cu_k[s], keys),
                                     v.rows(call.cu_k[s], keys), call.options),
                allowed);
  }
}

TEST(ForwardHopper, AgreesWithTheOracleOnRandomCalls) {
  for (const uint64_t seed : random_seeds(250)) {
    check_call(seed, /*packed=*/false);
    if (HasFatalFailure()) return;
  }
}

TEST(ForwardHopper, AgreesWithTheOracleOnRandomPackedSequences) {
  for (const uint64_t seed : random_seeds(250)) {
    check_call(seed, /*packed=*/true);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
