// Split-KV decoding in the emulator, compared with the oracle.
#include "cuda/splits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/cache_case.h"
#include "cuda/hopper_case.h"
#include "cuda/kernels.h"
#include "cuda/mapped_case.h"
#include "engine/attention/plan.h"
#include "multihead/cuda.h"
#include "multihead/kv_cache.h"
#include "reference/reference_attention.h"
#include "rules/element.h"
#include "support/closeness.h"

namespace multihead::cuda::testing {
namespace {

using multihead::testing::excess;
using multihead::testing::largest_difference;
using multihead::testing::Random;
using multihead::testing::random_case;
using multihead::testing::random_seeds;
using multihead::testing::tolerance;

SplitParams params_of(const RandomCase& c, const AttentionOutputs& outputs) {
  SplitParams params;
  params.forward.call = engine::attention_params(
      {.q = engine::stored_rows(c.q), .k = engine::stored_rows(c.k), .v = engine::stored_rows(c.v)},
      {.batch = c.q.shape[0],
       .heads = c.q.shape[1],
       .kv_heads = c.k.shape[1],
       .queries = c.q.shape[2],
       .keys = c.k.shape[2],
       .head_dim = c.q.shape[3],
       .value_dim = c.v.shape[3]},
      c.options, outputs);
  return params;
}

TEST(CudaDecode, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : random_seeds(500)) {
    RandomCase c = random_case(seed, {.max_queries = 9, .max_keys = 400, .max_width = 70});
    SCOPED_TRACE(c.description);
    c.options.qk_norm = {};
    c.options.rope = {};
    if (c.lse_shape.elements() == 0) continue;
    CallOutputs outputs(c);
    SplitParams params = params_of(c, outputs.outputs());
    Random random(seed);
    cut_keys(params, {.compute_capability = 80,
                      .multiprocessors = static_cast<int>(random.integer(1, 16)),
                      .shared_bytes = 0});
    const SplitMemory memory(params);
    Mapping mapping;
    mapping.add_inputs(c);
    mapping.add_outputs(outputs);
    emulator::device().set_seed(seed);
    ASSERT_EQ(launch_decode(params, nullptr), 0);
    expect_no_findings();
    const auto expected = reference::attention(c.q, c.k, c.v, c.options, true);
    const double survivor = 1.0 / (1.0 - static_cast<double>(c.options.dropout.probability));
    const double allowed = tolerance(c, expected);
    ASSERT_LE(
        excess(floats_of(outputs.outputs().out), expected.out, c.out_type, allowed * survivor),
        0.0);
    ASSERT_LE(largest_difference(floats_of(outputs.outputs().lse), expected.lse), 2 * allowed);
  }
}

TEST(CudaDecode, OverEveryCacheEqualsOracleOnRandomCalls) {
  const std::vector<uint64_t> seeds = random_seeds(500);
  size_t through_mma = 0, rounds = 0;
  for (const uint64_t seed : seeds) {
    Random random(seed);
    CacheCase cache(random);
    const KVCacheConfig& config = cache.view().config;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int64_t heads = config.num_kv_heads * random.integer(1, 3),
                  queries = random.integer(1, 4);
    const Dims q_shape{config.batch, heads, queries, config.head_dim};
    const Dims out_shape{config.batch, heads, queries, config.value_dim};
    const Dims lse_shape{config.batch, heads, queries};
    const std::vector<float> floats = random.floats(q_shape.elements());
    const Halves halves(random, q_shape, config.type == DType::kF16 ? DType::kF16 : DType::kBF16);
    const bool in_f32 = random.chance(0.4);
    const ConstAnyTensor q = in_f32 ? ConstAnyTensor(floats.data(), q_shape) : halves.view();
    std::vector<float> slopes, sinks;
    const AttentionOptions options = random_decode_options(random, heads, slopes, sinks);
    std::vector<float> out(static_cast<size_t>(out_shape.elements()));
    std::vector<float> lse(static_cast<size_t>(lse_shape.elements()));
    const AttentionOutputs outputs{.out = {out.data(), out_shape}, .lse = {lse.data(), lse_shape}};
    Mapping mapping;
    cache.for_each_array(
        [&](const auto& array) { mapping.add(array, emulator::Use::kInput, "cache"); });
    mapping.add(floats, emulator::Use::kInput, "q");
    mapping.add(halves.storage, emulator::Use::kInput, "q");
    mapping.add(slopes, emulator::Use::kInput, "slopes");
    mapping.add(sinks, emulator::Use::kInput, "sinks");
    mapping.add(out, emulator::Use::kOutput, "out");
    mapping.add(lse, emulator::Use::kOutput, "lse");
    emulator::device().set_seed(seed);
    const std::string kernel = explain_decode(q, cache.view(), options, outputs);
    const bool half = kernel.starts_with("decode, mma.sync");
    if (half) ++through_mma;
    // The oracle gets the rounded queries, which the kernel multiplies.
    std::vector<float> rounded = floats;
    if (half && in_f32) {
      ++rounds;
      for (float& value : rounded) value = rules::to_float(rules::to_bfloat16(value));
    }
    uint64_t bytes = 0;
    Status status = decode_workspace(q, cache.view(), options, outputs, bytes);
    ASSERT_TRUE(status.ok()) << status.message();
    const MappedWorkspace workspace(bytes);
    status = decode(q, cache.view(), options, outputs, workspace.get(), nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_no_findings();

    for (int64_t b = 0; b < config.batch; ++b) {
      const int64_t length = cache.length(b);
      std::vector<uint8_t> kept(static_cast<size_t>(length), 1);
      std::fill_n(kept.begin(), cache.first(b), uint8_t{0});
      AttentionOptions of_entry = options;
      // An entry without keys needs no mask.
      if (length > 0) of_entry.mask = {kept.data(), {1, 1, 1, length}};
      const int64_t rows = heads * queries;
      ConstAnyTensor q_of_entry = q;
      q_of_entry.shape[0] = 1;
      const void* const all = in_f32 ? static_cast<const void*>(rounded.data()) : q.data;
      q_of_entry.data = static_cast<const std::byte*>(all) + b * q.strides[0] * bytes_of(q.dtype);
      const auto expected =
          reference::attention(q_of_entry, cache.keys_of(b), cache.values_of(b), of_entry);
      const auto from_out = out.begin() + b * rows * config.value_dim;
      const auto from_lse = lse.begin() + b * rows;
      // The error is absolute: values are at most 1, and weights are rounded.
      // For int8, the scales of the values are a factor of the weights that are rounded.
      const double rounding = !half                         ? 0.0
                              : config.type == DType::kF16  ? 0x1p-12
                              : config.type == DType::kInt8 ? 0x1.1p-8
                                                            : 0x1p-9;
      ASSERT_LE(largest_difference({from_out, from_out + rows * config.value_dim}, expected.out),
                2e-5 + rounding)
          << kernel;
      ASSERT_LE(largest_difference({from_lse, from_lse + rows}, expected.lse), 2e-5);
    }
  }
  EXPECT_GE(through_mma, seeds.size() / 20);
  EXPECT_GE(rounds, seeds.size() / 100);
}

}  // namespace
}  // namespace multihead::cuda::testing
