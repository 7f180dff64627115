// The Hopper forward kernel in the emulator, compared with the oracle.
#include "cuda/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/emulator/memory.h"
#include "cuda/hopper_case.h"
#include "cuda/mapped_case.h"
#include "cuda/params.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "reference/reference_attention.h"
#include "rules/element.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using emulator::device;
using emulator::Use;
using multihead::testing::random_seeds;

// Allows two roundings to `type`, of the weights and of the output. Each has an error of up to 2^-8
// (bf16) or 2^-11 (f16) of the largest value.
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

void expect_rows(std::span<const float> out, std::span<const float> lse, int64_t first,
                 int64_t rows_of_head, int64_t queries, const HopperCase& call,
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

void check_call(uint64_t seed, bool packed, bool with_terms = false) {
  Random random(seed);
  HopperCase call =
      random_hopper_case(random, packed, {3, 70, 70, 300, 900});  // uses ring slots again
  if (with_terms) {
    if (call.width > 128) return;
    draw_terms(random, packed, call);
  }
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + call.description);
  const int64_t q_rows = packed ? call.cu_q.back() : call.queries;
  const int64_t k_rows = packed ? call.cu_k.back() : call.keys;
  const int64_t entries = packed ? 1 : call.batch;
  if (q_rows == 0) return;
  Halves q(random, {entries, call.heads, q_rows, call.width}, call.type);
  Halves k(random, {entries, call.kv_heads, k_rows, call.width}, call.type);
  Halves v(random, {entries, call.kv_heads, k_rows, call.width}, call.type);
  if (call.hidden_values && !packed) spoil_hidden(random, call, k, v);

  // f32 outputs have exactly the size of the tensor; 16-bit outputs have their own array.
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
                                     .head_dim = call.width,
                                     .value_dim = call.width};
  params.call =
      engine::plan_forward({q.view(), k.view(), v.view(), call.options, outputs}, sizes).params;
  params.call.captures = {};
  if (packed) {
    params.cu_q = call.cu_q.data();
    params.cu_k = call.cu_k.data();
    params.packed_queries = q_rows;
    params.packed_keys = k_rows;
  }

  device().set_seed(seed);
  device().take_findings();
  Mapping memory;
  memory.add(q.data, q.bytes(), Use::kInput, "q");
  memory.add(k.data, k.bytes(), Use::kInput, "k");
  memory.add(v.data, v.bytes(), Use::kInput, "v");
  memory.add(lse, Use::kOutput, "lse");
  memory.add(to, out.size() * (is_f32 ? 4 : 2), Use::kOutput, "out");
  memory.add(call.lengths, Use::kInput, "kv_lengths");
  memory.add(call.sinks, Use::kInput, "sinks");
  memory.add(call.slopes, Use::kInput, "alibi_slopes");
  memory.add(call.mask, Use::kInput, "mask");
  memory.add(call.bias, Use::kInput, "bias");
  memory.add(call.cu_q, Use::kInput, "cu_q");
  memory.add(call.cu_k, Use::kInput, "cu_k");
  ASSERT_EQ(
      launch_forward_hopper(
          params, {.compute_capability = 90, .multiprocessors = static_cast<int>(seed % 4 + 1)},
          nullptr),
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

TEST(ForwardHopper, AgreesWithTheOracleOnRandomMasksBiasesAlibiAndSoftcap) {
  for (const uint64_t seed : random_seeds(250)) {
    check_call(seed, /*packed=*/seed % 4 == 0, /*with_terms=*/true);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
