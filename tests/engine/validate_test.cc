// What is refused, and that a refusal names the argument, what was expected and what came,
// writes nothing, and leaves the next call working.
#include "engine/validate.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace multihead {
namespace {

class RefusedCall : public ::testing::Test {
 protected:
  static constexpr float kUntouched = 42.0F;

  std::vector<float> data_ = std::vector<float>(4096, 0.5F);
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(4096, 1);
  std::vector<float> out_ = std::vector<float>(4096, kUntouched);
  Context context_{1};

  // (2, 4, 5, 8) queries over (2, 2, 7, 8) keys and (2, 2, 7, 6) values.
  ConstTensor q_ = in({2, 4, 5, 8});
  ConstTensor k_ = in({2, 2, 7, 8});
  ConstTensor v_ = in({2, 2, 7, 6});
  AttentionOptions options_;
  AttentionOutputs outputs_{.out = out({2, 4, 5, 6})};

  ConstTensor in(const Dims& shape) { return {data_.data(), shape}; }
  ConstBoolTensor mask(const Dims& shape) { return {bytes_.data(), shape}; }
  Tensor out(const Dims& shape) { return {out_.data(), shape}; }

  void expect_refused(StatusCode code, const std::string& argument,
                      const std::vector<std::string>& words) {
    const Status status = attention(q_, k_, v_, options_, outputs_, context_);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(status.argument(), argument) << status.message();
    for (const std::string& word : words) {
      EXPECT_NE(status.message().find(word), std::string::npos)
          << "no \"" << word << "\" in: " << status.message();
    }
    for (const float value : out_) ASSERT_EQ(value, kUntouched);

    std::vector<float> good(2 * 4 * 5 * 6);
    EXPECT_TRUE(attention(in({2, 4, 5, 8}), in({2, 2, 7, 8}), in({2, 2, 7, 6}), {},
                          {.out = {good.data(), {2, 4, 5, 6}}}, context_)
                    .ok());
  }
};

TEST_F(RefusedCall, WrongRank) {
  q_ = in({4, 5, 8});
  expect_refused(StatusCode::kShape, "q", {"rank 4", "rank 3", "(4, 5, 8)", "(B, H_q, N_q, d_k)"});
}

TEST_F(RefusedCall, RankBeyondWhatIsStored) {
  q_ = in({1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  expect_refused(StatusCode::kShape, "q", {"rank 10"});
}

TEST_F(RefusedCall, KeyWidth) {
  k_ = in({2, 2, 7, 9});
  expect_refused(StatusCode::kShape, "k", {"d_k = 8", "(2, 2, 7, 9)"});
}

TEST_F(RefusedCall, KeyBatch) {
  k_ = in({1, 2, 7, 8});
  expect_refused(StatusCode::kShape, "k", {"B = 2", "(1, 2, 7, 8)"});
}

TEST_F(RefusedCall, ValueLength) {
  v_ = in({2, 2, 6, 6});
  expect_refused(StatusCode::kShape, "v", {"N_k = 7", "(2, 2, 6, 6)"});
}

TEST_F(RefusedCall, HeadsThatDoNotGroup) {
  k_ = in({2, 3, 7, 8});
  v_ = in({2, 3, 7, 6});
  expect_refused(StatusCode::kShape, "k", {"divides H_q = 4", "H_kv = 3"});
}

TEST_F(RefusedCall, NoKeyValueHeads) {
  k_ = in({2, 0, 7, 8});
  v_ = in({2, 0, 7, 6});
  expect_refused(StatusCode::kShape, "k", {"H_kv = 0"});
}

TEST_F(RefusedCall, LastAxisNotContiguous) {
  k_.strides = {112, 56, 1, 7};
  expect_refused(StatusCode::kShape, "k", {"contiguous", "stride 7"});
}

TEST_F(RefusedCall, StridesOfAnotherRank) {
  v_.strides = {6, 1};
  expect_refused(StatusCode::kShape, "v", {"strides"});
}

TEST_F(RefusedCall, NegativeExtent) {
  q_ = in({2, 4, -5, 8});
  expect_refused(StatusCode::kShape, "q", {"-5"});
}

TEST_F(RefusedCall, NullData) {
  v_.data = nullptr;
  expect_refused(StatusCode::kShape, "v", {"null"});
}

TEST_F(RefusedCall, OutputMissing) {
  outputs_.out = {};
  expect_refused(StatusCode::kShape, "out", {"(2, 4, 5, 6)"});
}

TEST_F(RefusedCall, OutputShape) {
  outputs_.out = out({2, 4, 5, 8});
  expect_refused(StatusCode::kShape, "out", {"(2, 4, 5, 6)", "(2, 4, 5, 8)"});
}

TEST_F(RefusedCall, LseShape) {
  outputs_.lse = out({2, 4, 7});
  expect_refused(StatusCode::kShape, "lse", {"(2, 4, 5)", "(2, 4, 7)"});
}

TEST_F(RefusedCall, WeightsShape) {
  outputs_.weights = out({2, 4, 7, 5});
  expect_refused(StatusCode::kShape, "weights", {"(2, 4, 5, 7)", "(2, 4, 7, 5)"});
}

TEST_F(RefusedCall, MaskThatDoesNotBroadcast) {
  for (const Dims& shape : {Dims{7, 5}, Dims{5, 6}, Dims{2, 4, 5, 8}, Dims{4, 1, 5, 7},
                            Dims{1, 3, 5, 7}, Dims{1, 1, 4, 7}}) {
    options_.mask = mask(shape);
    expect_refused(StatusCode::kShape, "mask", {"(2, 4, 5, 7)", shape.to_string()});
  }
}

TEST_F(RefusedCall, MaskOfRankThree) {
  // (H, N, N) and (B, N, N) cannot be told apart.
  options_.mask = mask({4, 5, 7});
  expect_refused(StatusCode::kShape, "mask", {"(4, 5, 7)", "B or H_q"});
}

TEST_F(RefusedCall, BiasOfOtherRanks) {
  options_.bias = in({7});
  expect_refused(StatusCode::kShape, "bias", {"(7)"});
  options_.bias = in({1, 1, 1, 5, 7});
  expect_refused(StatusCode::kShape, "bias", {"(1, 1, 1, 5, 7)"});
}

TEST_F(RefusedCall, ScaleNotFinite) {
  for (const float scale :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    options_.scale = scale;
    expect_refused(StatusCode::kOption, "scale", {"finite"});
  }
}

TEST_F(RefusedCall, NoWidthAndNoScale) {
  q_ = in({2, 4, 5, 0});
  k_ = in({2, 2, 7, 0});
  expect_refused(StatusCode::kOption, "scale", {"d_k = 0"});
}

TEST(AcceptedCall, WidthZeroWithAScaleAveragesTheValues) {
  const std::vector<float> v = {1, 2, 3};
  std::vector<float> out(1);
  Context context(1);
  ASSERT_TRUE(attention({nullptr, {1, 1, 1, 0}}, {nullptr, {1, 1, 3, 0}}, {v.data(), {1, 1, 3, 1}},
                        {.scale = 1.0F}, {.out = {out.data(), {1, 1, 1, 1}}}, context)
                  .ok());
  EXPECT_FLOAT_EQ(out[0], 2.0F);
}

}  // namespace
}  // namespace multihead
