// Invalid calls: the error names the argument, the expected and the given value; nothing is
// written, and the next call works.
#include "engine/attention/validate.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
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

  // q (2, 4, 5, 8), k (2, 2, 7, 8) and v (2, 2, 7, 6).
  ConstAnyTensor q_ = in({2, 4, 5, 8});
  ConstAnyTensor k_ = in({2, 2, 7, 8});
  ConstAnyTensor v_ = in({2, 2, 7, 6});
  AttentionOptions options_;
  AttentionOutputs outputs_{.out = out({2, 4, 5, 6})};

  ConstTensor in(const Dims& shape) { return {data_.data(), shape}; }
  std::span<const float> floats(size_t count) { return std::span(data_).first(count); }
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

// If elements shared memory, several threads would write it at the same time.
TEST_F(RefusedCall, OutputsWhoseElementsShareAPlace) {
  const Dims shared_heads{30, 0, 6, 1};
  outputs_.out.strides = shared_heads;
  expect_refused(StatusCode::kShape, "out", {"stride 0", "axis 1"});
  outputs_.out = out({2, 4, 5, 6});
  outputs_.lse = {out_.data(), {2, 4, 5}, {0, 5, 1}};
  expect_refused(StatusCode::kShape, "lse", {"stride 0", "axis 0"});
  outputs_.lse = {};
  outputs_.weights = {out_.data(), {2, 4, 5, 7}, {28, 7, 0, 1}};
  expect_refused(StatusCode::kShape, "weights", {"stride 0", "axis 2"});
  outputs_.weights = {};
  const std::vector<ScoreCapture> captures{{.out = {out_.data(), {2, 4, 5, 7}, {0, 35, 7, 1}}}};
  outputs_.captures = captures;
  expect_refused(StatusCode::kShape, "capture.out", {"stride 0", "axis 0"});
  outputs_.captures = {};
  // The stride of an axis of extent 1 does not matter.
  outputs_.out = {out_.data(), {2, 4, 5, 6}, {120, 30, 6, 1}};
  q_ = {data_.data(), {2, 4, 5, 8}, {0, 0, 8, 1}};
  EXPECT_TRUE(attention(q_, k_, v_, options_, outputs_, context_).ok());
}

TEST_F(RefusedCall, OutputsWhoseRowsOverlap) {
  const auto refuses = [&](const Dims& strides, const std::vector<std::string>& words) {
    SCOPED_TRACE(strides.to_string());
    outputs_.out.strides = strides;
    expect_refused(StatusCode::kShape, "out", words);
  };
  refuses({120, 30, 1, 1}, {"stride 1", "axis 2", "span 6"});
  refuses({120, 30, 5, 1}, {"stride 5", "axis 2"});
  refuses({120, 29, 6, 1}, {"stride 29", "axis 1", "span 30"});
  refuses({119, 30, 6, 1}, {"stride 119", "axis 0", "span 120"});
  refuses({120, 6, 23, 1}, {"stride 23", "axis 2", "span 24"});
  refuses({120, 30, -5, 1}, {"stride -5", "axis 2"});
  outputs_.out = out({2, 4, 5, 6});
  outputs_.lse = {out_.data() + 300, {2, 4, 5}, {20, 4, 1}};
  expect_refused(StatusCode::kShape, "lse", {"stride 4", "axis 1", "span 5"});
}

// The product of the nonzero extents would overflow.
TEST_F(RefusedCall, EmptyTensorsBeyondAllSizes) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const Dims shape{kMost, 0, kMost, 80};
  const ConstAnyTensor empty(nullptr, shape);
  std::vector<float> gain(80, kUntouched);
  AttentionOptions options{.qk_norm = {.enabled = true}};
  Status status = attention_backward(empty, empty, empty, options,
                                     {.out = empty, .lse = {nullptr, {kMost, 0, kMost}}}, empty,
                                     {.d_q = {nullptr, shape}, .d_q_gain = gain}, context_);
  EXPECT_EQ(status.code(), StatusCode::kShape);
  EXPECT_EQ(status.argument(), "q") << status.message();
  EXPECT_EQ(gain[0], kUntouched);
  // 2^58 rows of width 0: a loop over them would not end.
  const Dims nothing{1 << 29, 1 << 29, 1, 0};
  status = attention({nullptr, nothing}, {nullptr, nothing}, {nullptr, nothing}, {.scale = 1.0F},
                     {.out = {nullptr, nothing}}, context_);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(RefusedCall, NumbersThatNoEnumeratorHas) {
  options_.causal.alignment = static_cast<Alignment>(5);
  expect_refused(StatusCode::kOption, "causal", {"number 5"});
  options_.causal = {};
  options_.window = {.left = 1, .alignment = static_cast<Alignment>(200)};
  expect_refused(StatusCode::kOption, "window.alignment", {"number 200"});
  options_.window = {};
  options_.rope.style = static_cast<Rope::Style>(3);
  expect_refused(StatusCode::kOption, "rope.style", {"number 3"});
  options_.rope = {};
  q_.dtype = static_cast<DType>(9);
  expect_refused(StatusCode::kShape, "q", {"number 9"});
  q_ = in({2, 4, 5, 8});
  const std::vector<ScoreCapture> captures{
      {.stage = static_cast<ScoreStage>(4), .out = out({2, 4, 5, 7})}};
  outputs_.captures = captures;
  expect_refused(StatusCode::kOption, "capture.stage", {"number 4"});
}

TEST_F(RefusedCall, MaskThatDoesNotBroadcast) {
  for (const Dims& shape : {Dims{7, 5}, Dims{5, 6}, Dims{2, 4, 5, 8}, Dims{4, 1, 5, 7},
                            Dims{1, 3, 5, 7}, Dims{1, 1, 4, 7}}) {
    options_.mask = mask(shape);
    expect_refused(StatusCode::kShape, "mask", {"(2, 4, 5, 7)", shape.to_string()});
  }
}

TEST_F(RefusedCall, MaskOfRankThree) {
  // (H, N, N) and (B, N, N) cannot be distinguished.
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

TEST_F(RefusedCall, ElementTypesThatDoNotFit) {
  v_.dtype = DType::kF16;
  expect_refused(StatusCode::kShape, "v", {"f32", "f16"});
  v_.dtype = k_.dtype = static_cast<DType>(7);
  EXPECT_FALSE(attention(q_, k_, v_, options_, outputs_, context_).ok());
  v_.dtype = k_.dtype = DType::kF32;
  outputs_.out.dtype = static_cast<DType>(7);
  EXPECT_FALSE(attention(q_, k_, v_, options_, outputs_, context_).ok());
}

TEST_F(RefusedCall, LengthsBeyondTheKeys) {
  for (const std::vector<int32_t>& lengths :
       {std::vector<int32_t>{7, 8}, std::vector<int32_t>{-1, 7}}) {
    options_.kv_lengths = lengths;
    expect_refused(StatusCode::kOption, "kv_lengths", {"N_k = 7"});
  }
}

TEST_F(RefusedCall, LengthsOfAnotherCount) {
  const std::vector<int32_t> lengths{7, 7, 7};
  options_.kv_lengths = lengths;
  expect_refused(StatusCode::kShape, "kv_lengths", {"2 values", "3 values"});
}

TEST_F(RefusedCall, BottomRightOfLengthWithoutLengths) {
  options_.causal = Causal::bottom_right_of_length();
  expect_refused(StatusCode::kOption, "causal", {"kv_lengths"});
  options_.causal = {};
  options_.window = {1, 1, Alignment::kBottomRightOfLength};
  EXPECT_FALSE(attention(q_, k_, v_, options_, outputs_, context_).ok());
}

TEST_F(RefusedCall, WindowBelowMinusOne) {
  options_.window = {.left = -2, .right = 0};
  expect_refused(StatusCode::kOption, "window.left", {"-1", "-2"});
  options_.window = {.left = 0, .right = -7};
  expect_refused(StatusCode::kOption, "window.right", {"-1", "-7"});
}

TEST_F(RefusedCall, WindowAgainstTheCausalAlignment) {
  options_.causal = Causal::top_left();
  options_.window = {.left = 1, .right = -1, .alignment = Alignment::kBottomRight};
  expect_refused(StatusCode::kOption, "window.alignment", {"causal"});
  options_.causal = Causal::at_offset(1);
  options_.window = {1, -1, Alignment::kOffset, 2};
  expect_refused(StatusCode::kOption, "window.alignment", {"causal"});
  // Repeating the same alignment is allowed.
  options_.window.offset = 1;
  EXPECT_TRUE(attention(q_, k_, v_, options_, outputs_, context_).ok());
}

TEST_F(RefusedCall, AlignmentOfNoWindow) {
  options_.window.alignment = Alignment::kBottomRight;
  expect_refused(StatusCode::kOption, "window.alignment", {"left or right"});
}

TEST_F(RefusedCall, DropoutOutsideItsRange) {
  for (const float probability : {1.0F, 1.5F, -0.1F, std::numeric_limits<float>::quiet_NaN()}) {
    options_.dropout.probability = probability;
    expect_refused(StatusCode::kOption, "dropout.probability", {"0 <= p < 1"});
  }
}

TEST_F(RefusedCall, DropoutMaskOfTheWrongShape) {
  outputs_.dropout_mask = {bytes_.data(), {2, 4, 7, 5}};
  expect_refused(StatusCode::kShape, "dropout_mask", {"(2, 4, 5, 7)", "(2, 4, 7, 5)"});
  EXPECT_EQ(bytes_, std::vector<uint8_t>(bytes_.size(), 1));
}

TEST_F(RefusedCall, SinksAndSlopesOfTheWrongCount) {
  options_.sinks = floats(2);
  expect_refused(StatusCode::kShape, "sinks", {"4 values", "2 values"});
  options_.sinks = {};
  options_.alibi_slopes = floats(5);
  expect_refused(StatusCode::kShape, "alibi_slopes", {"4 values", "5 values"});
}

TEST_F(RefusedCall, SinksAndSlopesThatAreNotFinite) {
  std::vector<float> values(4, 1.0F);
  values[2] = std::numeric_limits<float>::quiet_NaN();
  options_.sinks = values;
  expect_refused(StatusCode::kOption, "sinks", {"NaN"});
  options_.sinks = {};
  values[2] = std::numeric_limits<float>::infinity();
  options_.alibi_slopes = values;
  expect_refused(StatusCode::kOption, "alibi_slopes", {"infinity"});
}

TEST_F(RefusedCall, Softcap) {
  for (const float softcap :
       {-1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    options_.softcap = softcap;
    expect_refused(StatusCode::kOption, "softcap", {"0 or more"});
  }
}

TEST_F(RefusedCall, NormsThatDoNotFit) {
  options_.qk_norm = {.q_gain = floats(8)};
  expect_refused(StatusCode::kOption, "qk_norm", {"enabled"});
  options_.qk_norm = {.q_gain = floats(7), .enabled = true};
  expect_refused(StatusCode::kShape, "qk_norm.q_gain", {"8 values", "7 values"});
  options_.qk_norm = {.k_gain = floats(9), .enabled = true};
  expect_refused(StatusCode::kShape, "qk_norm.k_gain", {"8 values", "9 values"});
  options_.qk_norm = {.eps = -1.0F, .enabled = true};
  expect_refused(StatusCode::kOption, "qk_norm.eps", {"0 or more"});
}

TEST_F(RefusedCall, RotationsThatDoNotFit) {
  using Style = Rope::Style;
  const std::vector<int32_t> positions(6);
  options_.rope = {.rotary_dim = 4};
  expect_refused(StatusCode::kOption, "rope.style", {"rotary_dim"});
  options_.rope = {.q_positions = positions};
  expect_refused(StatusCode::kOption, "rope.style", {"positions"});
  for (const int64_t rotary_dim : {3, 10, -2}) {
    options_.rope = {.style = Style::kHalf, .rotary_dim = rotary_dim};
    expect_refused(StatusCode::kOption, "rope.rotary_dim",
                   {"even", "d_k = 8", std::to_string(rotary_dim)});
  }
  for (const double base : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()}) {
    options_.rope = {.style = Style::kHalf, .base = base};
    expect_refused(StatusCode::kOption, "rope.base", {"above 0"});
  }
  options_.rope = {.style = Style::kInterleaved, .q_positions = positions};
  expect_refused(StatusCode::kShape, "rope.q_positions", {"5 values", "10", "6 values"});
  options_.rope = {.style = Style::kInterleaved, .k_positions = positions};
  expect_refused(StatusCode::kShape, "rope.k_positions", {"7 values", "14", "6 values"});
}

TEST_F(RefusedCall, OddWidthWithoutRotaryDim) {
  q_ = in({2, 4, 5, 7});
  k_ = in({2, 2, 7, 7});
  options_.rope.style = Rope::Style::kHalf;
  expect_refused(StatusCode::kOption, "rope.rotary_dim", {"even", "7"});
}

TEST_F(RefusedCall, Captures) {
  ScoreCapture capture;
  outputs_.captures = {&capture, 1};
  std::vector<float> scores(4096, kUntouched);
  const auto to = [&](const Dims& shape) { return Tensor{scores.data(), shape}; };
  expect_refused(StatusCode::kShape, "capture.out", {"rank 4"});
  capture.out = to({2, 4, 5, 8});
  expect_refused(StatusCode::kShape, "capture.out", {"(2, 4, 5, 7)", "(2, 4, 5, 8)"});
  const std::vector<int32_t> beyond{0, 4}, negative{-1}, twice{2, 1, 2};
  capture = {.out = to({2, 4, 5, 7}), .heads = beyond};
  expect_refused(StatusCode::kShape, "capture.out", {"(2, 2, 5, 7)", "(2, 4, 5, 7)"});
  capture = {.out = to({2, 2, 5, 7}), .heads = beyond};
  expect_refused(StatusCode::kOption, "capture.heads", {"0 to 3", "4"});
  capture = {.out = to({2, 1, 5, 7}), .heads = negative};
  expect_refused(StatusCode::kOption, "capture.heads", {"-1"});
  capture = {.out = to({2, 3, 5, 7}), .heads = twice};
  expect_refused(StatusCode::kOption, "capture.heads", {"2 twice"});
  capture = {.out = to({2, 4, 3, 7}), .first_row = 3};
  expect_refused(StatusCode::kOption, "capture.first_row", {"N_q = 5", "3 rows from 3"});
  capture = {.out = to({2, 4, 3, 7}), .first_row = -1};
  expect_refused(StatusCode::kOption, "capture.first_row", {"-1"});
  capture = {.out = to({2, 4, 0, 7}), .first_row = std::numeric_limits<int64_t>::max()};
  expect_refused(StatusCode::kOption, "capture.first_row", {"N_q = 5"});
  capture.out = {nullptr, {2, 4, 5, 7}};
  capture.first_row = 0;
  expect_refused(StatusCode::kShape, "capture.out", {"null"});
  EXPECT_EQ(scores, std::vector<float>(scores.size(), kUntouched));
}

TEST_F(RefusedCall, ScoresAlone) {
  const auto argument = [&](const ScoreCapture& capture) {
    const Status status = attention_scores(q_, k_, options_, capture, context_);
    EXPECT_FALSE(status.ok());
    for (const float value : out_) EXPECT_EQ(value, kUntouched);
    return status.argument();
  };
  EXPECT_EQ(argument({}), "capture.out");
  EXPECT_EQ(argument({.out = out({2, 4, 6, 7})}), "capture.first_row");
  k_ = in({2, 3, 7, 8});
  EXPECT_EQ(argument({.out = out({2, 4, 5, 7})}), "k");
  k_ = in({2, 7, 8});
  EXPECT_EQ(argument({.out = out({2, 4, 5, 7})}), "k");
  k_ = in({2, 2, 7, 8});
  options_.softcap = -1.0F;
  EXPECT_EQ(argument({.out = out({2, 4, 5, 7})}), "softcap");
}

TEST_F(RefusedCall, PackedSequences) {
  const ConstAnyTensor q = in({9, 4, 8}), k = in({11, 2, 8}), v = in({11, 2, 6});
  const AttentionOutputs good{.out = out({9, 4, 6})};
  const std::vector<int32_t> cu_q{0, 4, 9}, cu_k{0, 5, 11};
  const auto argument = [&](const ConstAnyTensor& q_given, std::span<const int32_t> of_q,
                            std::span<const int32_t> of_k, const AttentionOptions& options,
                            const AttentionOutputs& outputs) {
    const Status status = attention_varlen(q_given, k, v, of_q, of_k, options, outputs, context_);
    EXPECT_FALSE(status.ok());
    for (const float value : out_) EXPECT_EQ(value, kUntouched);
    return status.argument();
  };
  const auto of_lengths = [&](const std::vector<int32_t>& cu) {
    return argument(q, cu, cu_k, {}, good);
  };
  EXPECT_EQ(argument(in({2, 4, 5, 8}), cu_q, cu_k, {}, good), "q");
  // Regression test: a last axis with gaps was once read as contiguous.
  ConstAnyTensor gaps = in({9, 4, 8});
  gaps.strides[2] = 2;
  EXPECT_EQ(argument(gaps, cu_q, cu_k, {}, good), "q");
  EXPECT_EQ(of_lengths({}), "cu_q");
  EXPECT_EQ(of_lengths({1, 4, 9}), "cu_q");
  EXPECT_EQ(of_lengths({0, 4, 8}), "cu_q");
  EXPECT_EQ(of_lengths({0, 4, 10}), "cu_q");
  EXPECT_EQ(of_lengths({0, 5, 4, 9}), "cu_q");
  EXPECT_EQ(of_lengths({0, 10, 9}), "cu_q");
  EXPECT_EQ(argument(q, cu_q, std::vector<int32_t>{0, 11}, {}, good), "cu_k");
  EXPECT_EQ(argument(q, cu_q, std::vector<int32_t>{0, 5, 12}, {}, good), "cu_k");
  EXPECT_EQ(argument(q, cu_q, cu_k, {.mask = mask({5, 7})}, good), "mask");
  EXPECT_EQ(argument(q, cu_q, cu_k, {.bias = in({5, 7})}, good), "bias");
  EXPECT_EQ(argument(q, cu_q, cu_k, {.kv_lengths = cu_q}, good), "kv_lengths");
  EXPECT_EQ(
      argument(q, cu_q, cu_k, {.rope = {.style = Rope::Style::kHalf, .q_positions = cu_q}}, good),
      "rope.q_positions");
  EXPECT_EQ(argument(q, cu_q, cu_k, {.scale = std::numeric_limits<float>::quiet_NaN()}, good),
            "scale");
  EXPECT_EQ(argument(q, cu_q, cu_k, {}, {.out = out({9, 4, 8})}), "out");
  EXPECT_EQ(argument(q, cu_q, cu_k, {}, {.out = out({9, 4, 6}), .lse = out({9, 4})}), "lse");
  EXPECT_EQ(argument(q, cu_q, cu_k, {}, {.out = out({9, 4, 6}), .weights = out({1, 4, 9, 11})}),
            "weights");
  EXPECT_EQ(argument(in({9, 3, 8}), cu_q, cu_k, {}, {.out = out({9, 3, 6})}), "k");
}

TEST_F(RefusedCall, Merging) {
  const auto argument = [&](const Dims& out_a, const Dims& lse_a, const Dims& out_b,
                            const Dims& lse_b) {
    const Status status = merge_attention(out(out_a), out(lse_a), in(out_b), in(lse_b));
    EXPECT_EQ(status.code(), StatusCode::kShape);
    for (const float value : out_) EXPECT_EQ(value, kUntouched);
    return status.argument();
  };
  const Dims good{1, 2, 3, 4}, lse{1, 2, 3};
  EXPECT_EQ(argument({2, 3, 4}, lse, good, lse), "out_a");
  EXPECT_EQ(argument(good, {1, 3, 2}, good, lse), "lse_a");
  EXPECT_EQ(argument(good, lse, {1, 2, 3, 5}, lse), "out_b");
  EXPECT_EQ(argument(good, lse, good, {2, 3}), "lse_b");
}

TEST_F(RefusedCall, GradientsOfWhatTheCallHasNot) {
  const Dims shape{1, 2, 3, 8};
  const ConstTensor x = in(shape);
  const auto refused = [&](const AttentionGradients& gradients) {
    const Status status =
        attention_backward(x, x, x, options_, {.out = x, .lse = in({1, 2, 3}), .check_lse = false},
                           x, gradients, context_);
    EXPECT_EQ(status.code(), StatusCode::kOption) << status.message();
    for (const float value : out_) EXPECT_EQ(value, kUntouched);
    return status.argument();
  };
  const std::span<float> row = std::span(out_).last(8);
  EXPECT_EQ(refused({.d_bias = out({1, 2, 3, 3})}), "d_bias");
  EXPECT_EQ(refused({.d_sinks = row.first(2)}), "d_sinks");
  EXPECT_EQ(refused({.d_q = out(shape), .d_q_gain = row}), "d_q_gain");
  EXPECT_EQ(refused({.d_k = out(shape), .d_k_gain = row}), "d_k_gain");
}

TEST_F(RefusedCall, Rotating) {
  const std::vector<int32_t> positions{0, 1, 2, 3, 4}, short_of{0, 1};
  const auto argument = [&](const Dims& x, const Dims& y, std::span<const int32_t> at,
                            const Rope& rope) {
    const Status status = rotate(in(x), at, rope, out(y), context_);
    EXPECT_FALSE(status.ok());
    for (const float value : out_) EXPECT_EQ(value, kUntouched);
    return status.argument();
  };
  const Dims good{2, 4, 5, 8};
  const Rope half{.style = Rope::Style::kHalf};
  EXPECT_EQ(argument({4, 5, 8}, good, positions, half), "x");
  EXPECT_EQ(argument(good, {2, 4, 5, 6}, positions, half), "y");
  EXPECT_EQ(argument(good, good, short_of, half), "positions");
  EXPECT_EQ(argument(good, good, {}, half), "positions");
  EXPECT_EQ(argument(good, good, positions, {}), "rope.style");
  EXPECT_EQ(argument(good, good, positions, {.style = Rope::Style::kHalf, .rotary_dim = 5}),
            "rope.rotary_dim");
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
