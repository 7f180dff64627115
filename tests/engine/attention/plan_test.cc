// Tests path selection, and shards of a problem, whose results must equal the whole problem's.
#include "engine/attention/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "cpu/target.h"
#include "engine/attention/run.h"
#include "engine/attention/tile_scheduler.h"
#include "multihead/attention.h"
#include "support/random_case.h"
#include "support/tile_model.h"

namespace multihead::engine {
namespace {

using testing::Random;

// A call with q (1, heads, queries, width), kv_heads <= heads, and no options.
struct Call {
  int64_t heads, kv_heads, queries, keys, width;
  DType type = DType::kF32;
  AttentionOptions options = {};
  std::vector<float> memory =
      std::vector<float>(static_cast<size_t>(heads * width * std::max(queries, keys)));
  AttentionOutputs outputs = {};

  ForwardPlan plan() {
    const Dims q_shape{1, heads, queries, width}, k_shape{1, kv_heads, keys, width};
    const ConstAnyTensor q(memory.data(), type, q_shape, contiguous_strides(q_shape));
    const ConstAnyTensor k(memory.data(), type, k_shape, contiguous_strides(k_shape));
    outputs.out = {memory.data(), q_shape};
    AttentionShape shape;
    const Status status = validate_call({q, k, k, options, outputs}, shape);
    EXPECT_TRUE(status.ok()) << status.message();
    ForwardPlan plan = plan_forward({q, k, k, options, outputs}, shape);
    finish_plan(plan, 1);
    return plan;
  }
};

TEST(Plan, TakesTheFirstPathThatServesTheCall) {
  EXPECT_EQ((Call{4, 4, 32, 32, 64}.plan().choice.kernel), Kernel::kShortHeads);
  EXPECT_EQ((Call{4, 4, 128, 128, 64}.plan().choice.kernel), Kernel::kBlocks);
  EXPECT_EQ((Call{4, 1, 3, 4096, 64}.plan().choice.kernel),
            Kernel::kDecode);  // 12 rows per key/value head
  EXPECT_EQ((Call{4, 1, 4, 4096, 64}.plan().choice.kernel), Kernel::kBlocks);
  Call bf16{4, 4, 128, 128, 64, DType::kBF16};
  EXPECT_EQ(bf16.plan().choice.kernel, Kernel::kBlocks);
  bf16.options.precision = Precision::kBf16;
  const ForwardPlan plan = bf16.plan();
  EXPECT_EQ(plan.choice.kernel, plan.choice.not_amx == Unsupported::kNone    ? Kernel::kAmxBlocks
                                : plan.choice.not_bf16 != Unsupported::kNone ? Kernel::kBlocks
                                                                             : Kernel::kBf16Blocks);
}

// With the model of the tile instructions, plans count AMX as present.
TEST(Plan, TakesAmxForFloatsAndBf16) {
  const testing::UseTileModel model;
  const bool tiles = cpu::target_traits().bf16_tiles;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Call call{4, 2, 128, 300, 63, type};
    EXPECT_EQ(call.plan().choice.not_amx, Unsupported::kNotAsked);
    call.options.precision = Precision::kBf16;
    const ForwardPlan plan = call.plan();
    EXPECT_EQ(plan.choice.kernel,
              tiles && type != DType::kF16 ? Kernel::kAmxBlocks : Kernel::kBlocks);
    EXPECT_EQ(plan.choice.not_amx, !tiles                ? Unsupported::kNoInstruction
                                   : type == DType::kF16 ? Unsupported::kNotFloats
                                                         : Unsupported::kNone);
    EXPECT_NE(explain(plan.choice).find("AMX"), std::string::npos) << explain(plan.choice);
  }
  Call decode{4, 4, 1, 300, 64, DType::kBF16};
  decode.options.precision = Precision::kBf16;
  EXPECT_EQ(decode.plan().choice.kernel, Kernel::kDecode);
}

TEST(Context, SaysWhichKernelComputedTheLastCall) {
  const testing::UseTileModel model;
  Context context(1);
  EXPECT_EQ(context.last_kernel(), "");
  const Dims shape{1, 2, 40, 16};
  const std::vector<float> x(static_cast<size_t>(shape.elements()), 0.5F);
  std::vector<float> out(x.size());
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    const ConstTensor tensor(x.data(), shape);
    const Status status = attention(tensor, tensor, tensor, {.precision = precision},
                                    {.out = Tensor(out.data(), shape)}, context);
    ASSERT_TRUE(status.ok()) << status.message();
    const bool amx = precision == Precision::kBf16 && cpu::target_traits().bf16_tiles;
    EXPECT_EQ(context.last_kernel().find("on AMX") != std::string::npos, amx)
        << context.last_kernel();
    EXPECT_EQ(context.last_kernel().find("not AMX, since") != std::string::npos, !amx)
        << context.last_kernel();
  }
}

TEST(Plan, SaysWhy) {
  EXPECT_EQ(explain(Call{4, 4, 1, 4096, 64}.plan().choice).substr(0, 7), "decode:");
  EXPECT_EQ(explain(Call{4, 4, 0, 4096, 64}.plan().choice), "nothing to compute");

  Call call{4, 4, 128, 64, 64};
  EXPECT_EQ(explain(call.plan().choice).substr(0, 12), "short heads:");
  const std::vector<float> slopes(4, 0.5F);
  call.options.alibi_slopes = slopes;
  const ForwardPlan plan = call.plan();
  EXPECT_EQ(plan.choice.kernel, Kernel::kBlocks);
  EXPECT_EQ(plan.choice.not_decode, Unsupported::kManyRows);
  EXPECT_EQ(plan.choice.not_bf16, Unsupported::kNotAsked);
  EXPECT_EQ(plan.choice.not_short, Unsupported::kOption);
  EXPECT_NE(explain(plan.choice).find("not short heads, since it has an option"), std::string::npos)
      << explain(plan.choice);
}

// While this object exists, plans are made for processors of the given family.
class UseFamily {
 public:
  explicit UseFamily(cpu::ProcessorFamily family) : family_(family) {
    cpu::replace_processor_family(&family_);
  }
  ~UseFamily() { cpu::replace_processor_family(nullptr); }
  UseFamily(const UseFamily&) = delete;
  UseFamily& operator=(const UseFamily&) = delete;

 private:
  const cpu::ProcessorFamily family_;
};

TEST(Plan, WidensBf16WhereItsPairsAreSlow) {
  Call call{4, 4, 128, 128, 64, DType::kBF16};
  call.options.precision = Precision::kBf16;
  const UseFamily intel(cpu::ProcessorFamily::kIntel);
  const ForwardPlan plan = call.plan();
  if (plan.choice.not_amx == Unsupported::kNone ||
      plan.choice.not_bf16 == Unsupported::kNoInstruction)
    return;
  EXPECT_EQ(plan.choice.kernel, Kernel::kBlocks);
  EXPECT_EQ(plan.choice.not_bf16, Unsupported::kSlower);
  EXPECT_NE(explain(plan.choice).find("slower than f32's"), std::string::npos)
      << explain(plan.choice);
}

// On processors with slow loads across cache lines, V is copied if its rows do not start at cache
// lines. The results have the same bits.
TEST(Plan, CopiesValuesThatCrossCacheLines) {
  constexpr int64_t kHeads = 2, kTokens = 128, kWidth = 64;
  const Dims shape{1, kHeads, kTokens, kWidth};
  Random random(7);
  const std::vector<float> memory = random.floats(shape.elements() + 32);
  size_t at_line = 0;
  while (reinterpret_cast<uintptr_t>(&memory[at_line]) % 64 != 0) ++at_line;
  const bool slow_lines = cpu::target_traits().lanes == 16;
  std::vector<float> outs[2];
  for (const size_t first : {at_line, at_line + 4}) {
    for (const auto family : {cpu::ProcessorFamily::kIntel, cpu::ProcessorFamily::kOther}) {
      const UseFamily use(family);
      const bool intel = family == cpu::ProcessorFamily::kIntel;
      const ConstTensor x(&memory[first], shape);
      std::vector<float>& out = outs[intel ? 0 : 1];
      out.assign(static_cast<size_t>(shape.elements()), 0.0F);
      const AttentionOutputs outputs{.out = Tensor(out.data(), shape)};
      AttentionShape validated;
      ASSERT_TRUE(validate_call({x, x, x, {}, outputs}, validated).ok());
      ForwardPlan plan = plan_forward({x, x, x, {}, outputs}, validated);
      finish_plan(plan, 1);
      if (slow_lines) {
        EXPECT_EQ(plan.blocks.copies_values, intel && first != at_line);
      }
      Context context(1);
      ASSERT_TRUE(attention(x, x, x, {}, outputs, context).ok());
    }
    EXPECT_EQ(outs[0], outs[1]);
  }
}

// A prepared call is planned before its data exist: each run decides by its own data.
TEST(Plan, CopiesValuesByTheAddressOfARun) {
  const UseFamily intel(cpu::ProcessorFamily::kIntel);
  const bool slow_lines = cpu::target_traits().lanes == 16;
  const Dims shape{1, 2, 128, 64};
  Random random(7);
  const std::vector<float> memory = random.floats(shape.elements() + 32);
  const float* at_line = memory.data();
  while (reinterpret_cast<uintptr_t>(at_line) % 64 != 0) ++at_line;
  std::vector<float> out(static_cast<size_t>(shape.elements())), expected(out.size());
  for (const int64_t planned : {0, 4}) {
    const ConstTensor x(at_line + planned, shape);
    const AttentionOutputs outputs{.out = Tensor(out.data(), shape)};
    AttentionShape validated;
    ASSERT_TRUE(validate_call({x, x, x, {}, outputs}, validated).ok());
    ForwardPlan plan = plan_forward({x, x, x, {}, outputs}, validated);
    const uint64_t bytes = plan.scratch_bytes;
    for (const int64_t moved : {4, 0, 4}) {
      const ConstTensor y(at_line + moved, shape);
      plan.set_queries(y.data);
      plan.set_keys(y.data);
      plan.set_values(y.data);
      finish_plan(plan, 1);
      if (slow_lines) {
        EXPECT_EQ(plan.blocks.copies_values, moved != 0);
      }
      ForwardPlan fresh = plan_forward({y, y, y, {}, outputs}, validated);
      finish_plan(fresh, 1);
      EXPECT_EQ(plan.blocks.copies_values, fresh.blocks.copies_values);
      EXPECT_EQ(fresh.scratch_bytes, bytes);
      Context context(1);
      ASSERT_TRUE(reserve_scratch(plan, context).ok());
      ASSERT_TRUE(run(plan, context).ok());
      ASSERT_TRUE(attention(y, y, y, {}, {.out = Tensor(expected.data(), shape)}, context).ok());
      EXPECT_EQ(out, expected);
    }
  }
}

// Blocks are divided panel by panel for many threads, unless there are enough blocks.
TEST(Plan, ManyThreadsGetSmallerBlocks) {
  const cpu::TargetTraits target = cpu::target_traits();
  for (const int64_t heads : {1, 4, 12}) {
    const ForwardPlan plan = Call{heads, heads, 8192, 8192, 16}.plan();
    for (const int threads : {1, 2, 32, 96}) {
      const rules::BlockTiling g = divide_for_threads(plan.params, plan.blocks, threads);
      EXPECT_EQ(g.jobs, heads * g.row_parts);
      EXPECT_EQ(g.row_parts, (8192 + g.rows - 1) / g.rows);
      EXPECT_TRUE(g.rows == plan.blocks.rows || g.rows % target.panel_lanes == 0);
      EXPECT_LE(g.rows, plan.blocks.rows);
      if (threads == 1) {
        EXPECT_EQ(g.jobs, plan.blocks.jobs);
      }
      const int64_t panels = heads * (8192 / target.panel_lanes);
      if (threads > 1) {
        EXPECT_GE(g.jobs, std::min<int64_t>(8 * threads, panels)) << threads;
      }
    }
  }
}

// Among short sequences, one long sequence is split as if it were alone.
TEST(Plan, RaggedLengthsAreSplitBySum) {
  constexpr int64_t kBatch = 32, kKeys = 32768;
  std::vector<int32_t> lengths(kBatch, 64);
  const auto splits = [&] {
    const Dims q_shape{kBatch, 4, 1, 16}, k_shape{kBatch, 4, kKeys, 16};
    static const float kNothing = 0.0F;  // a plan reads no numbers
    const ConstAnyTensor q(&kNothing, DType::kF32, q_shape, contiguous_strides(q_shape));
    const ConstAnyTensor k(&kNothing, DType::kF32, k_shape, contiguous_strides(k_shape));
    float out = 0;
    AttentionShape shape;
    const AttentionOptions options{.kv_lengths = lengths};
    const AttentionOutputs outputs{.out = Tensor(&out, q_shape)};
    EXPECT_TRUE(validate_call({q, k, k, options, outputs}, shape).ok());
    ForwardPlan plan = plan_forward({q, k, k, options, outputs}, shape);
    finish_plan(plan, 1);
    return plan.splits;
  };
  EXPECT_EQ(splits().splits, 1);
  lengths[7] = kKeys;
  const rules::SplitTiling ragged = splits();
  EXPECT_GE(ragged.splits, 8);
  EXPECT_LE(ragged.splits, ragged.most_splits);
  lengths.assign(kBatch, kKeys);
  EXPECT_EQ(splits().splits, 1);  // 128 heads of equal length
}

// A problem whose options depend on the positions of queries and keys.
struct Problem {
  int64_t batch = 2, heads = 4, kv_heads = 2, queries, keys, width = 16;
  std::vector<float> q, k, v, slopes, bias;
  std::vector<int32_t> lengths;
  AttentionOptions options;

  explicit Problem(uint64_t seed) {
    Random random(seed);
    queries = random.chance(0.3) ? random.integer(1, 8) : random.integer(9, 60);
    keys = random.integer(2, 300);
    q = random.floats(batch * heads * queries * width);
    k = random.floats(batch * kv_heads * keys * width);
    v = random.floats(batch * kv_heads * keys * width);
    if (random.chance(0.5)) {
      slopes.resize(static_cast<size_t>(heads));
      alibi_slopes(slopes);
    }
    if (random.chance(0.5)) {
      for (int64_t b = 0; b < batch; ++b) {
        lengths.push_back(static_cast<int32_t>(random.integer(0, keys)));
      }
      options.kv_lengths = lengths;
    }
    if (random.chance(0.7)) {
      options.causal = random.pick({Causal::top_left(), Causal::bottom_right(),
                                    Causal::at_offset(random.integer(-20, 200))});
    }
    if (random.chance(0.5)) options.window.left = random.integer(0, 100);
    if (random.chance(0.3)) options.window.right = random.integer(0, 50);
    if (random.chance(0.5)) {
      options.dropout = {.probability = 0.3F, .seed = static_cast<uint64_t>(seed) * 77};
    }
  }
};

struct Part {
  int64_t first, end;
};

// Cuts [0, count) into two parts; one may be empty.
std::vector<Part> two_parts(Random& random, int64_t count, int64_t unit) {
  const int64_t cut = random.integer(0, count / unit) * unit;
  return {{0, cut}, {cut, count}};
}

struct PlanResult {
  std::vector<float> out, lse;
};

// Computes the shard's queries over the shard's keys.
void run_shard(const Problem& p, const Part& batch, const Part& heads, const Part& queries,
               const Part& keys, const AnyTensor& out, const Tensor& lse, Context& context) {
  const int64_t group = p.heads / p.kv_heads;
  const auto part_of = [&](const std::vector<float>& data, int64_t all_heads, int64_t first_head,
                           int64_t head_count, int64_t rows, const Part& part) {
    const int64_t at = ((batch.first * all_heads + first_head) * rows + part.first) * p.width;
    return ConstAnyTensor(ConstTensor(
        data.data() + at, {batch.end - batch.first, head_count, part.end - part.first, p.width},
        {all_heads * rows * p.width, rows * p.width, p.width, 1}));
  };
  const ConstAnyTensor q =
      part_of(p.q, p.heads, heads.first, heads.end - heads.first, p.queries, queries);
  const int64_t kv_heads = (heads.end - heads.first) / group;
  const ConstAnyTensor k = part_of(p.k, p.kv_heads, heads.first / group, kv_heads, p.keys, keys);
  const ConstAnyTensor v = part_of(p.v, p.kv_heads, heads.first / group, kv_heads, p.keys, keys);
  AttentionOptions options = p.options;
  if (!p.slopes.empty()) {
    options.alibi_slopes = std::span(p.slopes).subspan(
        static_cast<size_t>(heads.first), static_cast<size_t>(heads.end - heads.first));
  }
  if (!p.lengths.empty()) {
    options.kv_lengths = std::span(p.lengths).subspan(static_cast<size_t>(batch.first));
  }
  const AttentionShape shape{.batch = q.shape[0],
                             .heads = q.shape[1],
                             .kv_heads = kv_heads,
                             .queries = q.shape[2],
                             .keys = k.shape[2],
                             .head_dim = p.width,
                             .value_dim = p.width};
  const Shard shard{.first = {.batch = batch.first,
                              .head = heads.first,
                              .query = queries.first,
                              .key = keys.first},
                    .queries = p.queries,
                    .keys = p.keys};
  ForwardPlan plan = plan_forward({.q = stored_rows(q), .k = stored_rows(k), .v = stored_rows(v)},
                                  shape, options, {.out = out, .lse = lse}, &shard);
  ASSERT_TRUE(run(plan, context).ok());
}

TEST(Plan, ShardsAreTogetherTheWhole) {
  Context context(2);
  for (const uint64_t seed : testing::random_seeds(150)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Problem p(seed);
    if (!p.slopes.empty()) p.options.alibi_slopes = p.slopes;
    const auto rows = static_cast<size_t>(p.batch * p.heads * p.queries);
    const Dims q_shape{p.batch, p.heads, p.queries, p.width};
    const Dims k_shape{p.batch, p.kv_heads, p.keys, p.width};
    const Dims lse_shape{p.batch, p.heads, p.queries};
    PlanResult whole{std::vector<float>(rows * static_cast<size_t>(p.width)),
                     std::vector<float>(rows)};
    ASSERT_TRUE(
        attention({p.q.data(), q_shape}, {p.k.data(), k_shape}, {p.v.data(), k_shape}, p.options,
                  {.out = {whole.out.data(), q_shape}, .lse = {whole.lse.data(), lse_shape}},
                  context)
            .ok());

    Random random(seed + 1000000);
    PlanResult joined{std::vector<float>(whole.out.size(), std::numeric_limits<float>::quiet_NaN()),
                      std::vector<float>(rows)};
    PlanResult second = joined;
    const std::vector<Part> key_parts = two_parts(random, p.keys, 1);
    for (const Part& batch : two_parts(random, p.batch, 1)) {
      for (const Part& heads : two_parts(random, p.heads, p.heads / p.kv_heads)) {
        for (const Part& queries : two_parts(random, p.queries, 1)) {
          const Dims shape{batch.end - batch.first, heads.end - heads.first,
                           queries.end - queries.first, p.width};
          if (shape.elements() == 0) continue;
          const int64_t row = (batch.first * p.heads + heads.first) * p.queries + queries.first;
          const Dims out_strides = contiguous_strides(q_shape);
          const Dims lse_strides = contiguous_strides(lse_shape);
          const auto out_of = [&](PlanResult& r) {
            return Tensor(r.out.data() + row * p.width, shape, out_strides);
          };
          const auto lse_of = [&](PlanResult& r) {
            return Tensor(r.lse.data() + row, {shape[0], shape[1], shape[2]}, lse_strides);
          };
          run_shard(p, batch, heads, queries, key_parts[0], out_of(joined), lse_of(joined),
                    context);
          run_shard(p, batch, heads, queries, key_parts[1], out_of(second), lse_of(second),
                    context);
          ASSERT_TRUE(
              merge_attention(out_of(joined), lse_of(joined), out_of(second), lse_of(second)).ok());
        }
      }
    }
    for (size_t i = 0; i < whole.out.size(); ++i) {
      ASSERT_NEAR(joined.out[i], whole.out[i], 4e-6F) << "element " << i;
    }
    for (size_t i = 0; i < rows; ++i) {
      if (joined.lse[i] == whole.lse[i]) continue;  // both -inf
      ASSERT_NEAR(joined.lse[i], whole.lse[i], 4e-6F) << "row " << i;
    }
  }
}

}  // namespace
}  // namespace multihead::engine
