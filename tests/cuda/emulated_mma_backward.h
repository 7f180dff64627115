// Runs a call of the mma.sync backward kernels in the emulator.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/backward_params.h"
#include "cuda/emulated_forward.h"
#include "cuda/kernels.h"
#include "reference/reference_attention.h"
#include "rules/attention_params.h"

namespace multihead::cuda::testing {

// Rows of floats with a gap after each row, mapped for the duration of a call.
class GradientRows {
 public:
  GradientRows(const Dims& shape, int64_t gap)
      : shape_(shape),
        strides_{shape[1] * shape[2] * (shape[3] + gap), shape[2] * (shape[3] + gap),
                 shape[3] + gap},
        data_(static_cast<size_t>(shape[0] * strides_[0]), kUnwritten) {}

  rules::Rows<float> rows() { return {data_.data(), strides_}; }
  void map(Mapped& memory, const char* name) {
    memory.map(data_.data(), data_.size() * sizeof(float), Use::kOutput, name);
  }
  // Returns the rows without their gaps, and checks that the gaps are unchanged.
  std::vector<float> values() const {
    std::vector<float> result;
    const int64_t row = strides_[2];
    for (size_t i = 0; i < data_.size(); ++i) {
      if (static_cast<int64_t>(i) % row < shape_[3]) {
        result.push_back(data_[i]);
      } else {
        EXPECT_EQ(data_[i], kUnwritten);
      }
    }
    return result;
  }

 private:
  static constexpr float kUnwritten = 12345.0F;
  Dims shape_;
  std::array<int64_t, 3> strides_;
  std::vector<float> data_;
};

struct MmaGradients {
  std::vector<float> d_q, d_k, d_v;
};

inline double scale_of(const RandomCase& c) {
  const auto width = static_cast<double>(c.q.shape[3]);
  return static_cast<double>(c.options.scale.value_or(static_cast<float>(1.0 / std::sqrt(width))));
}

// The sum of out * d_out over each row.
inline std::vector<float> deltas(const RandomCase& c, const ConstAnyTensor& d_out,
                                 const reference::ReferenceOutputs& exact) {
  std::vector<float> result;
  const int64_t width = c.out_shape[3], rows = c.lse_shape.elements();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t query = row % c.out_shape[2], head = row / c.out_shape[2];
    const int64_t batch = head / c.out_shape[1];
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = batch * d_out.strides[0] + head % c.out_shape[1] * d_out.strides[1] +
                         query * d_out.strides[2] + i;
      sum += exact.out[static_cast<size_t>(row * width + i)] *
             static_cast<double>(multihead::testing::element(d_out, at));
    }
    result.push_back(static_cast<float>(sum));
  }
  return result;
}

using BackwardLaunch = int (*)(const BackwardParams&, const Device&, StreamHandle);

// `gap`: number of floats after each row of a gradient. `first_key`: of a shard, for dropout.
inline MmaGradients run_backward_mma(const RandomCase& c, const ConstAnyTensor& d_out,
                                     const reference::ReferenceOutputs& exact, int64_t gap,
                                     int64_t first_key = 0,
                                     BackwardLaunch launch = launch_backward_mma) {
  engine::AttentionShape shape;
  std::vector<float> unused(static_cast<size_t>(c.out_shape.elements()));
  const AttentionOutputs outputs{.out = Tensor(unused.data(), c.out_shape)};
  const Status status = engine::validate_call({c.q, c.k, c.v, c.options, outputs}, shape);
  EXPECT_TRUE(status.ok()) << status.message();
  BackwardParams params{};
  rules::AttentionParams& call = params.forward.call;
  call = engine::plan_forward({c.q, c.k, c.v, c.options, outputs}, shape).params;
  call.out = {};
  call.first.key = first_key;
  params.d_out = engine::stored_rows(d_out);
  params.scale = static_cast<float>(scale_of(c));

  std::vector<float> delta = deltas(c, d_out, exact), reference;
  for (const double lse : exact.lse) {
    reference.push_back(static_cast<float>(lse / static_cast<double>(call.scale.softmax)));
  }
  const rules::RowStrides of_rows{call.heads * call.queries, call.queries, 1};
  params.delta = {delta.data(), of_rows};
  params.reference = {reference.data(), of_rows};
  GradientRows d_q(c.q.shape, gap), d_k(c.k.shape, gap), d_v(c.v.shape, gap);
  params.d_q = d_q.rows();
  params.d_k = d_k.rows();
  params.d_v = d_v.rows();
  {
    Mapped memory;
    memory.map_rows(call.q, call.heads, call.batch, call.queries, call.head_dim, "q");
    memory.map_rows(call.k, call.kv_heads, call.batch, call.keys, call.head_dim, "k");
    memory.map_rows(call.v, call.kv_heads, call.batch, call.keys, call.value_dim, "v");
    memory.map_rows(params.d_out, call.heads, call.batch, call.queries, call.value_dim, "d_out");
    memory.map_input(delta, "delta");
    memory.map_input(reference, "reference");
    memory.map_scores(call.mask, c.weights_shape, "mask");
    memory.map_scores(call.bias, c.weights_shape, "bias");
    memory.map_input(c.options.kv_lengths, "kv_lengths");
    memory.map_input(c.options.alibi_slopes, "alibi_slopes");
    d_q.map(memory, "d_q");
    d_k.map(memory, "d_k");
    d_v.map(memory, "d_v");
    EXPECT_EQ(launch(params, kDevice, nullptr), 0);
  }
  EXPECT_EQ(device().take_findings(), std::vector<std::string>());
  return {d_q.values(), d_k.values(), d_v.values()};
}

}  // namespace multihead::cuda::testing
