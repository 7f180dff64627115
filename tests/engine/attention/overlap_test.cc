// Which outputs share memory, compared with the bytes themselves.
#include "engine/attention/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "multihead/elementwise.h"
#include "multihead/kv_cache.h"
#include "multihead/linear.h"
#include "multihead/rope.h"
#include "multihead/weights.h"
#include "support/random_backward.h"
#include "support/random_case.h"

namespace multihead::engine {
namespace {

using testing::Random;

constexpr int64_t kBytes = 4096;

std::set<const std::byte*> bytes_of(const Operand& of) {
  std::set<const std::byte*> bytes;
  for (int64_t i = 0; i < of.shape.elements(); ++i) {
    int64_t rest = i, at = 0;
    for (int axis = of.shape.rank(); axis-- > 0;) {
      at += rest % of.shape[axis] * of.strides[axis];
      rest /= of.shape[axis];
    }
    const auto* const first = static_cast<const std::byte*>(of.data) + at * of.element_bytes;
    for (int64_t byte = 0; byte < of.element_bytes; ++byte) bytes.insert(first + byte);
  }
  return bytes;
}

bool share_a_byte(const Operand& a, const Operand& b) {
  const std::set<const std::byte*> of_a = bytes_of(a), of_b = bytes_of(b);
  for (const std::byte* byte : of_b) {
    if (of_a.contains(byte)) return true;
  }
  return false;
}

// Any strides, also of rows that overlap and of axes that are shared.
ConstAnyTensor random_view(Random& random, const std::byte* memory) {
  Dims shape, strides;
  const auto rank = static_cast<int>(random.integer(1, 4));
  for (int axis = 0; axis < rank; ++axis) {
    shape.push_back(random.integer(random.chance(0.05) ? 0 : 1, 4));
    strides.push_back(random.integer(-2, 20));
  }
  if (random.chance(0.5)) strides[rank - 1] = 1;
  // Rows of one matrix have the same stride.
  if (rank > 1 && random.chance(0.5)) strides[rank - 2] = 12;
  const auto type = random.pick({DType::kF32, DType::kF16});
  return {memory + kBytes / 2 + 2 * random.integer(0, 60), type, shape, strides};
}

TEST(Overlap, IsThatOfTheBytes) {
  const std::vector<std::byte> memory(kBytes);
  int shared = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    Random random(seed);
    const ConstAnyTensor a = random_view(random, memory.data());
    const ConstAnyTensor b = random_view(random, memory.data());
    const Operand input(Name::kQ, a), output(Name::kOut, b);
    const Status status = validate_apart({input}, {output});
    const bool expected = share_a_byte(input, output);
    shared += expected;
    ASSERT_EQ(!status.ok(), expected)
        << "seed " << seed << ": " << a.shape.to_string() << a.strides.to_string() << " and "
        << b.shape.to_string() << b.strides.to_string();
    ASSERT_EQ(validate_apart({output}, {input}).ok(), status.ok()) << "seed " << seed;
  }
  EXPECT_GT(shared, 500);
  EXPECT_LT(shared, 3500);
}

TEST(Overlap, NamesBothTensors) {
  const std::vector<float> memory(64);
  const ConstTensor x(memory.data(), {64}), y(memory.data() + 63, {1}), none;
  const Status status = validate_apart({{Name::kX, x}}, {{Name::kBias, none}, {Name::kY, y}});
  EXPECT_EQ(status.code(), StatusCode::kShape);
  EXPECT_EQ(status.message(), "y: expected memory of its own, got memory of x");
  EXPECT_TRUE(validate_apart({{Name::kX, x}, {Name::kWeight, x}}, {}).ok());
  const Status outputs = validate_apart({}, {{Name::kX, x}, {Name::kY, y}});
  EXPECT_EQ(outputs.argument(), "y");
}

// Strides that no memory has, and more indices than can be tried.
TEST(Overlap, DecidesAnyStrides) {
  constexpr int64_t kMost = INT64_MAX, kExtent = INT32_MAX;
  const std::vector<float> memory(64);
  const ConstTensor far(memory.data(), {kExtent, kExtent, 4}, {kMost, -kMost, 1});
  const ConstTensor also(memory.data(), {kExtent, kExtent, 4}, {INT64_MIN, 3, 1});
  const ConstTensor near(memory.data(), {8, 8});
  EXPECT_FALSE(validate_apart({{Name::kX, near}}, {{Name::kY, near}}).ok());
  for (const ConstTensor& other : {far, also, near}) {
    // Either answer is right: such tensors do not exist. The call must come to an end.
    (void)validate_apart({{Name::kX, far}}, {{Name::kY, other}}).ok();
    (void)validate_apart({{Name::kX, also}}, {{Name::kY, other}}).ok();
  }
}

// Calls with outputs of 42 that must stay.
class OverlapInCalls : public ::testing::Test {
 protected:
  static constexpr float kUntouched = 42.0F;

  ConstTensor in(const Dims& shape) { return {data_.data(), shape}; }
  Tensor out(const Dims& shape, int64_t first = 0) { return {out_.data() + first, shape}; }

  // (2, 4, 5, 8) queries over (2, 2, 7, 8) keys and (2, 2, 7, 6) values.
  void reset() {
    q_ = in({2, 4, 5, 8});
    k_ = in({2, 2, 7, 8});
    v_ = in({2, 2, 7, 6});
    outputs_ = {.out = out({2, 4, 5, 6})};
  }
  Status call() { return attention(q_, k_, v_, {}, outputs_, context_); }
  void expect_refused(const std::string& argument, const std::string& other) {
    const Status status = call();
    EXPECT_EQ(status.code(), StatusCode::kShape);
    EXPECT_EQ(status.message(), argument + ": expected memory of its own, got memory of " + other);
    for (const float value : out_) ASSERT_EQ(value, kUntouched);
    reset();
  }

  std::vector<float> data_ = std::vector<float>(1000, 0.5F);
  std::vector<float> out_ = std::vector<float>(2000, kUntouched);
  Context context_{1};
  ConstAnyTensor q_ = in({2, 4, 5, 8}), k_ = in({2, 2, 7, 8}), v_ = in({2, 2, 7, 6});
  AttentionOutputs outputs_{.out = out({2, 4, 5, 6})};
};

TEST_F(OverlapInCalls, OfAttentionIsRefused) {
  q_ = out({2, 4, 5, 8}, 239);
  expect_refused("out", "q");
  k_ = out({2, 2, 7, 8});
  expect_refused("out", "k");
  v_ = out({2, 2, 7, 6}, 100);
  expect_refused("out", "v");
  outputs_.lse = out({2, 4, 5}, 239);
  expect_refused("lse", "out");
  outputs_.weights = out({2, 4, 5, 7}, 239);
  expect_refused("weights", "out");
  const std::vector<ScoreCapture> captures{{.out = out({2, 4, 5, 7}, 400)},
                                           {.out = out({2, 4, 5, 7}, 679)}};
  outputs_.captures = captures;
  expect_refused("capture.out", "capture.out");
  outputs_.out = {reinterpret_cast<Float16*>(out_.data()), {2, 4, 5, 6}};
  q_ = out({2, 4, 5, 8}, 119);
  expect_refused("out", "q");
  EXPECT_TRUE(call().ok());
}

TEST_F(OverlapInCalls, RowsMayLieBetweenOthers) {
  // q | out of each token, with the heads side by side; behind the tokens of a batch entry its LSE.
  constexpr int64_t kQ = 4 * 8, kToken = kQ + 4 * 6, kEntry = 5 * kToken + 4 * 5;
  const auto out_at = [&](int64_t first) {
    return Tensor(out_.data() + first, {2, 4, 5, 6}, {kEntry, 6, kToken, 1});
  };
  q_ = ConstTensor(out_.data(), {2, 4, 5, 8}, {kEntry, 8, kToken, 1});
  outputs_.out = out_at(kQ);
  outputs_.lse = {out_.data() + 5 * kToken, {2, 4, 5}, {kEntry, 5, 1}};
  const Status status = call();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(out_[2 * kEntry], kUntouched);
  outputs_.lse.data -= 1;
  EXPECT_EQ(call().argument(), "lse");
  outputs_.lse.data += 1;
  for (const int64_t moved : {kQ - 1, kQ + 1}) {
    outputs_.out = out_at(moved);
    EXPECT_EQ(call().argument(), "out") << moved;
  }
  // Rows from the last to the first.
  q_ = in({2, 4, 5, 8});
  outputs_ = {.out = Tensor(out_.data() + 24, {2, 4, 5, 6}, {120, 30, -6, 1})};
  EXPECT_TRUE(call().ok());
}

TEST_F(OverlapInCalls, OfOtherCallsIsRefused) {
  EXPECT_EQ(attention_scores(out({1, 1, 4, 8}), in({1, 1, 7, 8}), {},
                             {.out = out({1, 1, 4, 7}, 31)}, context_)
                .argument(),
            "capture.out");
  const std::vector<int32_t> cu{0, 2, 5};
  EXPECT_EQ(attention_varlen(in({5, 2, 8}), out({5, 2, 8}), in({5, 2, 6}), cu, cu, {},
                             {.out = out({5, 2, 6})}, context_)
                .argument(),
            "out");
  KVCache cache;
  ASSERT_TRUE(
      KVCache::create({.num_kv_heads = 1, .head_dim = 8, .value_dim = 6, .capacity = 4}, cache)
          .ok());
  EXPECT_EQ(cache.attend(out({1, 1, 1, 8}), {}, {.out = out({1, 1, 1, 6}, 7)}, context_).argument(),
            "out");
  const Dims x{2, 3}, weight{4, 3}, bias{4}, y{2, 4};
  EXPECT_EQ(linear(out(x), in(weight), in(bias), out(y), context_).argument(), "y");
  EXPECT_EQ(linear(in(x), out(weight), in(bias), out(y), context_).argument(), "y");
  EXPECT_EQ(linear(in(x), in(weight), out(bias), out(y), context_).argument(), "y");
  const WeightMatrix halves{out(weight).data, WeightType::kBF16, 4, 3};
  EXPECT_EQ(linear(in(x), halves, in(bias), out(y), context_).argument(), "y");
  EXPECT_EQ(quantize(out(weight), WeightType::kInt8, out(weight).data, context_).argument(), "to");
  EXPECT_EQ(dequantize(halves, std::vector<int32_t>{0}, out({1, 3})).argument(), "to");
  const auto merged = [&](const Tensor& out_b, const Tensor& lse_b) {
    const Tensor out_a = out({1, 1, 4, 6}), lse_a = out({1, 1, 4}, 24);
    return merge_attention(out_a, lse_a, out_b, lse_b).argument();
  };
  EXPECT_EQ(merged(out({1, 1, 4, 6}), out({1, 1, 4}, 60)), "out_a");
  EXPECT_EQ(merged(out({1, 1, 4, 6}, 30), out({1, 1, 4}, 27)), "lse_a");
  for (const float value : out_) ASSERT_EQ(value, kUntouched);
  EXPECT_EQ(merged(out({1, 1, 4, 6}, 30), out({1, 1, 4}, 60)), "");
}

// Functions of single rows may write their input, but nothing beside it.
TEST_F(OverlapInCalls, RowsMayBeWrittenInPlace) {
  const std::vector<int32_t> positions{5, 7};
  const Dims heads{1, 2, 2, 6}, rows{4, 6};
  const auto rotated = [&](const ConstTensor& x, const Tensor& y) {
    return rotate(x, positions, {.style = Rope::Style::kHalf}, y, context_).argument();
  };
  EXPECT_EQ(rotated(out(heads), out(heads, 1)), "y");
  EXPECT_EQ(rotated(out(heads), {out_.data(), heads, {24, 6, 12, 1}}), "y");
  const Tensor x = out(rows), weight = out({6}, 3);
  EXPECT_EQ(layer_norm(x, {}, {}, 1e-5F, out(rows, 6), context_).argument(), "y");
  EXPECT_EQ(layer_norm(in(rows), {}, weight, 1e-5F, x, context_).argument(), "y");
  EXPECT_EQ(rms_norm(in(rows), weight, 1e-5F, x, context_).argument(), "y");
  EXPECT_EQ(activate(x, Activation::kRelu, out(rows, 1), context_).argument(), "y");
  EXPECT_EQ(activate_gated(x, in(rows), Activation::kRelu, out(rows, 6), context_).argument(), "y");
  EXPECT_EQ(activate_gated(in(rows), x, Activation::kRelu, out(rows, 6), context_).argument(), "y");
  for (const float value : out_) ASSERT_EQ(value, kUntouched);

  const auto expect_same_in_place = [&](const Dims& shape, const auto& call) {
    const ConstTensor given = in(shape);
    const auto count = static_cast<size_t>(shape.elements());
    const Tensor apart = out(shape), same = out(shape, static_cast<int64_t>(count));
    std::copy_n(given.data, count, same.data);
    EXPECT_TRUE(call(given, apart).ok());
    EXPECT_TRUE(call(same, same).ok());
    EXPECT_EQ(std::vector<float>(apart.data, apart.data + count),
              std::vector<float>(same.data, same.data + count));
  };
  for (const Rope::Style style : {Rope::Style::kHalf, Rope::Style::kInterleaved}) {
    expect_same_in_place(heads, [&](const ConstTensor& from, const Tensor& to) {
      return rotate(from, positions, {.style = style, .rotary_dim = 4}, to, context_);
    });
  }
  expect_same_in_place(rows, [&](const ConstTensor& from, const Tensor& to) {
    return layer_norm(from, {}, {}, 1e-5F, to, context_);
  });
  expect_same_in_place(rows, [&](const ConstTensor& from, const Tensor& to) {
    return activate_gated(from, from, Activation::kGelu, to, context_);
  });
}

TEST_F(OverlapInCalls, OfGradientsIsRefused) {
  const testing::BackwardCall call(1, {.max_queries = 9, .max_keys = 12, .max_width = 20});
  testing::Gradients got = call.empty();
  const auto argument = [&](const AttentionGradients& to) {
    return attention_backward(call.c.q, call.c.k, call.c.v, call.c.options, call.results(),
                              ConstTensor(call.d_out.data(), call.c.out_shape), to, context_)
        .argument();
  };
  AttentionGradients to = call.views(got);
  to.d_k.data = to.d_q.data;
  EXPECT_EQ(argument(to), "d_k");
  to = call.views(got);
  to.d_v.data = const_cast<float*>(call.lse.data());
  EXPECT_EQ(argument(to), "d_v");
  to = call.views(got);
  to.d_q.data = const_cast<float*>(call.d_out.data());
  EXPECT_EQ(argument(to), "d_q");
  EXPECT_TRUE(got.same_as(call.empty()));
  EXPECT_EQ(argument(call.views(got)), "");
}

}  // namespace
}  // namespace multihead::engine
