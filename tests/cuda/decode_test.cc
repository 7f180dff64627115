// Split-KV decoding in the emulator, compared with the oracle.
#include "cuda/decode.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/mapped_case.h"
#include "engine/plan.h"
#include "reference/reference_attention.h"
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
       .key_width = c.q.shape[3],
       .value_width = c.v.shape[3]},
      c.options, outputs);
  return params;
}

TEST(CudaDecode, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : random_seeds(120)) {
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
    std::vector<float> partials(partial_bytes(params) / sizeof(float));
    params.partials = partials.data();
    Mapping mapping;
    mapping.add_inputs(c);
    mapping.add_outputs(outputs);
    mapping.add(partials, emulator::Use::kWorkspace, "partials");
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

}  // namespace
}  // namespace multihead::cuda::testing
