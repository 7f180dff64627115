// PreparedAttention compared with attention(), bit for bit, and the allocations of both.
#include "multihead/prepared_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpu/target.h"
#include "support/allocations.h"
#include "support/call_outputs.h"
#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead {
namespace {

using testing::allocations;
using testing::Bytes;
using testing::CallOutputs;
using testing::Random;
using testing::random_case;
using testing::RandomCase;
using testing::without_data;

// Returns the size of a tensor's memory, including gaps between its rows.
size_t bytes_spanned(const ConstAnyTensor& tensor) {
  if (tensor.shape.elements() == 0) return 0;
  int64_t last = 0;
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) {
    last += (tensor.shape[axis] - 1) * tensor.strides[axis];
  }
  return static_cast<size_t>((last + 1) * bytes_of(tensor.dtype));
}

// Copies the tensor's data into new memory, shifted by `elements`.
Bytes moved_on(const ConstAnyTensor& tensor, size_t elements) {
  Bytes bytes(bytes_spanned(tensor));
  if (bytes.empty()) return bytes;
  std::memcpy(bytes.data(), tensor.data, bytes.size());
  const size_t by = elements * static_cast<size_t>(bytes_of(tensor.dtype)) % bytes.size();
  std::rotate(bytes.begin(), bytes.begin() + static_cast<int64_t>(by), bytes.end());
  return bytes;
}

class PreparedOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
};

// Changes everything that the header allows to change between runs: data and addresses of q, k, v
// and the outputs, and the arrays that the options point to.
void change_what_may_change(Random& random, RandomCase& c) {
  const auto change_floats = [&](std::span<const float> values, float low, float high) {
    for (const float& value : values) const_cast<float&>(value) = random.uniform(low, high);
  };
  const AttentionOptions& o = c.options;
  change_floats(o.alibi_slopes, 0, 0.5F);
  change_floats(o.sinks, -3, 3);
  change_floats(o.qk_norm.q_gain, 0.5F, 1.5F);
  change_floats(o.qk_norm.k_gain, 0.5F, 1.5F);
  if (o.bias.given()) {
    change_floats({o.bias.data, static_cast<size_t>(o.bias.shape.elements())}, -2, 2);
  }
  for (int64_t i = 0; o.mask.given() && i < o.mask.shape.elements(); ++i) {
    const_cast<uint8_t&>(o.mask.data[i]) = random.chance(0.8) ? 1 : 0;
  }
  const int64_t keys = c.k.shape[2];
  for (const int32_t& length : o.kv_lengths) {
    const_cast<int32_t&>(length) =
        static_cast<int32_t>(random.chance(0.3) ? keys : random.integer(0, keys));
  }
  for (const std::span<const int32_t> positions : {o.rope.q_positions, o.rope.k_positions}) {
    for (const int32_t& position : positions) {
      const_cast<int32_t&>(position) = static_cast<int32_t>(random.integer(0, 5000));
    }
  }
}

// Prepares a call without data, then runs it on several tensors, alternating with attention() on
// the same context. Includes the decode path: few queries over many keys, with changing lengths.
TEST_P(PreparedOnTarget, FollowsEverythingThatMayChangeBetweenRuns) {
  Context context(2);
  for (const uint64_t seed : testing::random_seeds(100)) {
    Random random(seed + 1000);
    const bool decodes = random.chance(0.5);
    RandomCase c = random_case(
        seed, {.max_queries = decodes ? 3 : 30, .max_keys = decodes ? 3000 : 200, .max_width = 24});
    SCOPED_TRACE(c.description);
    CallOutputs got(c), expected(c);
    PreparedAttention op;
    Status status = PreparedAttention::create(c.q, c.k, c.v, c.options, got.outputs(), context, op);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t round = 0; round < 4; ++round) {
      change_what_may_change(random, c);
      const Bytes q = moved_on(c.q, round), k = moved_on(c.k, 2 * round), v = moved_on(c.v, round);
      got.spoil();
      expected.spoil();
      const int64_t before = allocations();
      status = op.run(q.data(), k.data(), v.data(), got.outputs().out.data, got.outputs().lse.data);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(allocations(), before);
      const auto of = [](ConstAnyTensor tensor, const Bytes& data) {
        tensor.data = data.data();
        return tensor;
      };
      status =
          attention(of(c.q, q), of(c.k, k), of(c.v, v), c.options, expected.outputs(), context);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(got.bytes(), expected.bytes()) << "round " << round;
    }
  }
}

// Decodes over tensors of fixed size: one query, and a length that grows with every step.
TEST_P(PreparedOnTarget, DecodesAGrowingLength) {
  constexpr int64_t kKeys = 4096;
  const Dims q_shape{1, 2, 1, 16}, kv_shape{1, 1, kKeys, 16};
  Random random(3);
  const std::vector<float> q = random.floats(q_shape.elements());
  const std::vector<float> k = random.floats(kv_shape.elements());
  const std::vector<float> v = random.floats(kv_shape.elements());
  std::vector<float> out(q.size()), expected(q.size());
  std::vector<int32_t> lengths{100};
  Context context(2);
  PreparedAttention op;
  const AttentionOptions options{.kv_lengths = lengths};
  ASSERT_TRUE(PreparedAttention::create({nullptr, q_shape}, {nullptr, kv_shape},
                                        {nullptr, kv_shape}, options, {.out = {nullptr, q_shape}},
                                        context, op)
                  .ok());
  const size_t scratch = context.scratch_bytes();
  for (const int32_t length : {100, 4096, 1, 513, 0, 2047}) {
    lengths[0] = length;
    ASSERT_TRUE(op.run(q.data(), k.data(), v.data(), out.data()).ok());
    EXPECT_EQ(context.scratch_bytes(), scratch);
    ASSERT_TRUE(attention({q.data(), q_shape}, {k.data(), kv_shape}, {v.data(), kv_shape}, options,
                          {.out = {expected.data(), q_shape}}, context)
                    .ok());
    EXPECT_EQ(out, expected) << "length " << length;
  }
}

INSTANTIATE_TEST_SUITE_P(SimdTargets, PreparedOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()), [](const auto& target) {
                           return testing::simd_target_name(target.param);
                         });

// q, k and v with their outputs.
struct Call {
  explicit Call(const Dims& of_each, uint64_t seed = 1) : shape(of_each) {
    Random random(seed);
    for (std::vector<float>* data : {&q, &k, &v}) *data = random.floats(shape.elements());
    out.assign(q.size(), 7.0F);
    lse.assign(static_cast<size_t>(lse_shape().elements()), 7.0F);
  }
  Dims lse_shape() const { return {shape[0], shape[1], shape[2]}; }

  ConstAnyTensor tensor(const std::vector<float>& data) const { return {data.data(), shape}; }
  AttentionOutputs outputs() {
    return {.out = {out.data(), shape}, .lse = {lse.data(), lse_shape()}};
  }
  Status attend(const AttentionOptions& options, Context& context) {
    return attention(tensor(q), tensor(k), tensor(v), options, outputs(), context);
  }
  Status prepare(const AttentionOptions& options, Context& context, PreparedAttention& op) {
    return PreparedAttention::create(tensor(q), tensor(k), tensor(v), options, outputs(), context,
                                     op);
  }
  Status run(PreparedAttention& op) { return op.run(q.data(), k.data(), v.data(), out.data()); }
  bool untouched() const {
    const auto seven = [](float value) { return value == 7.0F; };
    return std::all_of(out.begin(), out.end(), seven) && std::all_of(lse.begin(), lse.end(), seven);
  }

  Dims shape;
  std::vector<float> q, k, v, out, lse;
};

constexpr Dims kTiny{1, 4, 32, 16};

// All options that point to memory.
struct AllOptions {
  explicit AllOptions(const Dims& shape)
      : mask(static_cast<size_t>(shape[2] * shape[2]), 1),
        bias(mask.size(), 0.5F),
        slopes(static_cast<size_t>(shape[1]), 0.25F),
        gain(static_cast<size_t>(shape[3]), 1.5F),
        lengths(static_cast<size_t>(shape[0]), static_cast<int32_t>(shape[2] - 3)),
        positions(static_cast<size_t>(shape[2]), 5) {
    const Dims scores{shape[2], shape[2]};
    options = {.causal = Causal::bottom_right_of_length(),
               .window = {.left = 20},
               .mask = {mask.data(), scores},
               .bias = {bias.data(), scores},
               .kv_lengths = lengths,
               .alibi_slopes = slopes,
               .softcap = 5.0F,
               .sinks = slopes,
               .qk_norm = {.q_gain = gain, .k_gain = gain, .enabled = true},
               .rope = {.style = Rope::Style::kHalf, .q_positions = positions},
               .dropout = {.probability = 0.25F, .seed = 3}};
  }

  std::vector<uint8_t> mask;
  std::vector<float> bias, slopes, gain;
  std::vector<int32_t> lengths, positions;
  AttentionOptions options;
};

TEST(PreparedAttention, AllocatesNothingAndNeitherDoesARepeatedCall) {
  Context context(2);
  Call call(kTiny);
  const AllOptions all(kTiny);
  for (const AttentionOptions& options :
       {AttentionOptions{.causal = Causal::top_left()}, all.options}) {
    PreparedAttention op;
    ASSERT_TRUE(call.prepare(options, context, op).ok());
    const size_t scratch = context.scratch_bytes();
    int64_t before = allocations();
    for (int round = 0; round < 10; ++round) ASSERT_TRUE(call.run(op).ok());
    EXPECT_EQ(allocations(), before);
    // Scratch memory does not come from operator new, so it is compared separately.
    EXPECT_EQ(context.scratch_bytes(), scratch);

    before = allocations();
    for (int round = 0; round < 10; ++round) ASSERT_TRUE(call.attend(options, context).ok());
    EXPECT_EQ(allocations(), before);
    EXPECT_EQ(context.scratch_bytes(), scratch);
  }
}

TEST(PreparedAttention, HasTheElementTypeOfShapesWithoutData) {
  constexpr int64_t kRows = 3, kWidth = 8;
  const Dims shape{1, 1, kRows, kWidth};
  const std::vector<BFloat16> ones(kRows * kWidth, BFloat16{0x3F80});
  std::vector<BFloat16> out(ones.size());
  Context context(1);
  PreparedAttention op;
  const ConstAnyTensor bf16{nullptr, DType::kBF16, shape};
  ASSERT_TRUE(PreparedAttention::create(bf16, bf16, bf16, {},
                                        {.out = {nullptr, DType::kBF16, shape}}, context, op)
                  .ok());
  ASSERT_TRUE(op.run(ones.data(), ones.data(), ones.data(), out.data(), nullptr).ok());
  for (const BFloat16 number : out) EXPECT_EQ(number.bits, 0x3F80);
  EXPECT_EQ(bf16.strides, contiguous_strides(shape));
  EXPECT_EQ(ConstAnyTensor(nullptr, shape).dtype, DType::kF32);
}

TEST(PreparedAttention, CountsAllocations) {
  const int64_t before = allocations();
  // Explicit calls, because compilers may remove an unused new-expression.
  ::operator delete(::operator new(1));
  EXPECT_EQ(allocations(), before + 1);
}

TEST(PreparedAttention, ReadsMasksAndLengthsAnew) {
  Context context(1);
  Call call(kTiny), expected(kTiny);
  AllOptions all(kTiny);
  PreparedAttention op;
  ASSERT_TRUE(call.prepare(all.options, context, op).ok());
  Random random(5);
  for (int round = 0; round < 5; ++round) {
    for (uint8_t& allowed : all.mask) allowed = random.chance(0.7) ? 1 : 0;
    for (float& added : all.bias) added = random.uniform(-2, 2);
    for (float& gain : all.gain) gain = random.uniform(0.5F, 2);
    for (int32_t& position : all.positions) position = static_cast<int32_t>(random.integer(0, 99));
    all.lengths[0] = static_cast<int32_t>(random.integer(0, 32));
    ASSERT_TRUE(call.run(op).ok());
    ASSERT_TRUE(expected.attend(all.options, context).ok());
    EXPECT_EQ(call.out, expected.out);
    EXPECT_EQ(call.lse, expected.lse);
  }
}

// On Intel's processors, V's address decides if blocks copy V.
TEST(PreparedAttention, FollowsTheAddressOfTheValuesOnEveryProcessor) {
  const cpu::ProcessorFamily intel = cpu::ProcessorFamily::kIntel;
  cpu::replace_processor_family(&intel);
  const Dims shape{1, 2, 128, 64};
  Random random(7);
  const std::vector<float> memory = random.floats(shape.elements() + 32);
  std::vector<float> out(static_cast<size_t>(shape.elements())), expected(out.size());
  Context context(1), other(1);
  PreparedAttention op;
  Status status = PreparedAttention::create({nullptr, shape}, {nullptr, shape}, {nullptr, shape},
                                            {}, {.out = {nullptr, shape}}, context, op);
  ASSERT_TRUE(status.ok()) << status.message();
  const size_t bytes = context.scratch_bytes();
  for (int64_t moved = 0; moved < 32; ++moved) {
    const ConstTensor x(memory.data() + moved, shape);
    ASSERT_TRUE(op.run(x.data, x.data, x.data, out.data()).ok());
    ASSERT_TRUE(attention(x, x, x, {}, {.out = Tensor(expected.data(), shape)}, other).ok());
    ASSERT_EQ(out, expected);
    ASSERT_EQ(context.scratch_bytes(), bytes);
  }
  cpu::replace_processor_family(nullptr);
}

TEST(PreparedAttention, SharesItsContextWithLargerCallsAndOtherOperations) {
  Context context(2);
  Call small(kTiny), large({2, 3, 150, 40}, 2), expected(kTiny);
  const AllOptions all(kTiny), of_large(large.shape);
  PreparedAttention op, another;
  ASSERT_TRUE(small.prepare(all.options, context, op).ok());
  ASSERT_TRUE(expected.attend(all.options, context).ok());
  ASSERT_TRUE(large.attend(of_large.options, context).ok());
  ASSERT_TRUE(small.run(op).ok());
  EXPECT_EQ(small.out, expected.out);
  ASSERT_TRUE(large.prepare(of_large.options, context, another).ok());
  const std::vector<float> of_call = large.out;
  ASSERT_TRUE(large.run(another).ok());
  EXPECT_EQ(large.out, of_call);
  ASSERT_TRUE(small.run(op).ok());
  EXPECT_EQ(small.out, expected.out);
  EXPECT_EQ(small.lse, expected.lse);
}

TEST(PreparedAttention, WritesTheLogSumExpWhereARunSays) {
  Context context(1);
  Call call(kTiny);
  PreparedAttention op;
  ASSERT_TRUE(call.prepare({}, context, op).ok());
  std::vector<float> elsewhere(call.lse.size());
  ASSERT_TRUE(
      op.run(call.q.data(), call.k.data(), call.v.data(), call.out.data(), elsewhere.data()).ok());
  EXPECT_EQ(call.lse[0], 7.0F);
  ASSERT_TRUE(call.run(op).ok());
  EXPECT_EQ(call.lse, elsewhere);
}

void expect_error(const Status& status, StatusCode code, const std::string& argument) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_EQ(status.argument(), argument);
  EXPECT_FALSE(status.expected().empty());
  EXPECT_FALSE(status.got().empty());
}

TEST(PreparedAttention, RefusesWhatAttentionRefusesAndStaysWhatItWas) {
  Context context(1);
  Call call(kTiny), expected(kTiny);
  ASSERT_TRUE(expected.attend({}, context).ok());
  PreparedAttention op;
  ASSERT_TRUE(call.prepare({}, context, op).ok());
  const std::vector<float> nan(4, std::numeric_limits<float>::quiet_NaN());
  expect_error(call.prepare({.sinks = nan}, context, op), StatusCode::kOption, "sinks");
  const ConstAnyTensor wide(nullptr, {1, 4, 32, 17});
  const ConstAnyTensor q(nullptr, kTiny);
  expect_error(PreparedAttention::create(q, wide, q, {}, call.outputs(), context, op),
               StatusCode::kShape, "k");
  expect_error(PreparedAttention::create(q, q, q, {}, {}, context, op), StatusCode::kShape, "out");
  EXPECT_TRUE(call.untouched());
  ASSERT_TRUE(call.run(op).ok());
  EXPECT_EQ(call.out, expected.out);
}

#if !defined(__EMSCRIPTEN__)  // there the package refuses overlaps
// Memory that create() is given. Tensors without an address are compared with nothing.
TEST(PreparedAttention, RefusesTheOverlapsThatAttentionRefuses) {
  Context context(1);
  const Dims shape{1, 2, 4, 8}, scores{1, 2, 4, 4};
  std::vector<float> x(64, 0.5F), out(64), numbers(32, 0.1F);
  std::vector<uint8_t> mask(32, 1);
  const ScoreCapture capture{.stage = ScoreStage::kRaw, .out = {numbers.data(), scores}};
  const Tensor weights(numbers.data(), scores);
  struct Case {
    AttentionOptions options;
    AttentionOutputs outputs;
    const char* argument;
  };
  const Case cases[] = {
      {{.bias = weights}, {.weights = weights}, "weights"},
      {{}, {.weights = {numbers.data(), scores, {0, 0, 4, 1}}}, "weights"},
      {{}, {.weights = weights, .captures = {&capture, 1}}, "capture.out"},
      {{.mask = {mask.data(), scores}}, {.dropout_mask = {mask.data(), scores}}, "dropout_mask"},
      {{}, {.lse = {numbers.data(), {1, 2, 4}}, .weights = weights}, "weights"}};
  for (const Case& c : cases) {
    AttentionOutputs outputs = c.outputs;
    outputs.out = {out.data(), shape};
    const ConstTensor given(x.data(), shape);
    EXPECT_EQ(attention(given, given, given, c.options, outputs, context).argument(), c.argument);
    outputs.out = {nullptr, shape};
    const ConstAnyTensor q(nullptr, shape);
    PreparedAttention op;
    EXPECT_EQ(PreparedAttention::create(q, q, q, c.options, outputs, context, op).argument(),
              c.argument);
  }
}
#endif

TEST(PreparedAttention, RefusesToRunWithoutDataWritesNothingAndRunsAgain) {
  Context context(1);
  Call call(kTiny), expected(kTiny);
  std::vector<int32_t> lengths{20};
  const AttentionOptions options{.kv_lengths = lengths};
  ASSERT_TRUE(expected.attend(options, context).ok());
  PreparedAttention op;
  ASSERT_TRUE(call.prepare(options, context, op).ok());
  const float *q = call.q.data(), *k = call.k.data(), *v = call.v.data();
  float* const out = call.out.data();
  expect_error(op.run(nullptr, k, v, out), StatusCode::kShape, "q");
  expect_error(op.run(q, nullptr, v, out), StatusCode::kShape, "k");
  expect_error(op.run(q, k, nullptr, out), StatusCode::kShape, "v");
  expect_error(op.run(q, k, v, nullptr), StatusCode::kShape, "out");
  for (const int32_t length : {-1, 33}) {
    lengths[0] = length;
    expect_error(op.run(q, k, v, out), StatusCode::kOption, "kv_lengths");
  }
  EXPECT_TRUE(call.untouched());
  lengths[0] = 20;
  ASSERT_TRUE(op.run(q, k, v, out).ok());
  EXPECT_EQ(call.out, expected.out);
}

TEST(PreparedAttention, WantsALogSumExpWhereOneWasPrepared) {
  Context context(1);
  Call call(kTiny);
  const ConstAnyTensor input(nullptr, kTiny);
  const AnyTensor out(nullptr, kTiny);
  const float *q = call.q.data(), *k = call.k.data(), *v = call.v.data();
  PreparedAttention op;
  ASSERT_TRUE(PreparedAttention::create(input, input, input, {}, {.out = out}, context, op).ok());
  expect_error(op.run(q, k, v, call.out.data(), call.lse.data()), StatusCode::kOption, "lse");
  const Tensor lse(nullptr, call.lse_shape());
  ASSERT_TRUE(
      PreparedAttention::create(input, input, input, {}, {.out = out, .lse = lse}, context, op)
          .ok());
  expect_error(op.run(q, k, v, call.out.data()), StatusCode::kShape, "lse");
  EXPECT_TRUE(call.untouched());
  ASSERT_TRUE(op.run(q, k, v, call.out.data(), call.lse.data()).ok());
  EXPECT_FALSE(call.untouched());
}

TEST(PreparedAttention, RunsOnlyWhereItWasCreated) {
  Context context(1);
  Call call(kTiny);
  PreparedAttention empty;
  expect_error(call.run(empty), StatusCode::kOption, "prepared");
  PreparedAttention op;
  ASSERT_TRUE(call.prepare({}, context, op).ok());
  empty = std::move(op);
  EXPECT_TRUE(call.run(empty).ok());
  EXPECT_FALSE(call.untouched());
}

TEST(PreparedAttention, TakesNoDataWhereThereAreNoElements) {
  Context context(1);
  const Dims none{1, 2, 0, 4}, some{1, 2, 3, 4};
  std::vector<float> q(24, 1.0F), out(24, 7.0F);
  PreparedAttention op;
  ASSERT_TRUE(PreparedAttention::create({nullptr, some}, {nullptr, none}, {nullptr, none}, {},
                                        {.out = {nullptr, some}}, context, op)
                  .ok());
  ASSERT_TRUE(op.run(q.data(), nullptr, nullptr, out.data()).ok());
  EXPECT_EQ(out, std::vector<float>(24, 0.0F));
}

}  // namespace
}  // namespace multihead
