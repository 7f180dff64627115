// Calls that the Hopper kernels support, and calls that they do not.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/backward_params.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "multihead/tensor.h"
#include "rules/attention_params.h"

namespace multihead::cuda::testing {
namespace {

constexpr Device kH100{.compute_capability = 90, .multiprocessors = 132, .shared_bytes = 227 << 10};

// Batch 2, 4 query and 2 key/value heads, 100 queries, 200 keys, d 64, bf16. Addresses are never
// followed.
ForwardParams fitting_params() {
  ForwardParams params{};
  rules::AttentionParams& call = params.call;
  const auto rows = [](uintptr_t address, int64_t heads, int64_t count) {
    rules::StoredRows result;
    result.data = reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
    result.type = DType::kBF16;
    result.stride = {heads * count * 64, count * 64, 64};
    return result;
  };
  call.q = rows(0x1000, 4, 100);
  call.k = rows(0x2000, 2, 200);
  call.v = rows(0x3000, 2, 200);
  call.out = {reinterpret_cast<void*>(0x4000), DType::kBF16,  // NOLINT(performance-no-int-to-ptr)
              call.q.stride};
  call.batch = 2;
  call.heads = 4;
  call.kv_heads = 2;
  call.queries = call.end_query = 100;
  call.keys = 200;
  call.head_dim = call.value_dim = 64;
  call.scale.queries = 0.125F;
  return params;
}

TEST(HopperFits, TakesAlignedHalvesWithoutOptionsThatChangeScores) {
  EXPECT_EQ(hopper_objection(fitting_params(), kH100), nullptr);
  ForwardParams params = fitting_params();
  params.call.out.type = DType::kF32;
  const std::array<float, 4> sinks{};
  params.call.sinks = sinks.data();
  params.call.visibility.causal = true;
  EXPECT_EQ(hopper_objection(params, kH100), nullptr);
  // An axis of extent 1 may have any stride.
  params.call.batch = 1;
  params.call.q.stride[0] = 3;
  EXPECT_EQ(hopper_objection(params, kH100), nullptr);
}

TEST(HopperFits, SaysWhyItDoesNotTakeADevice) {
  const auto said = [](const Device& device) {
    return std::string(hopper_objection(fitting_params(), device));
  };
  EXPECT_EQ(said({.compute_capability = 100, .multiprocessors = 148, .shared_bytes = 227 << 10}),
            "the compute capability is not 9.0");
  EXPECT_EQ(said({.compute_capability = 90, .multiprocessors = 132, .shared_bytes = 99 << 10}),
            "a block has less than 227 KB of shared memory");
}

TEST(HopperFits, SaysWhyItDoesNotTakeACall) {
  const std::vector<std::function<void(rules::AttentionParams&)>> changes = {
      [](auto& call) { call.k.type = DType::kF16; },
      [](auto& call) { call.q.type = call.k.type = call.v.type = DType::kF32; },
      [](auto& call) { call.k.page_size = 16, call.k.pages = reinterpret_cast<int32_t*>(16); },
      [](auto& call) { call.head_dim = call.value_dim = 96; },
      [](auto& call) { call.value_dim = 128; },
      [](auto& call) { call.out.data = nullptr; },
      [](auto& call) { call.out.type = DType::kF16; },
      [](auto& call) { call.dropout.threshold = 1; },
      [](auto& call) { call.scale.queries = -0.125F; },
      [](auto& call) { call.scale.queries = 0.0F; },
      [](auto& call) { call.k.stride[1] = 0; },
      [](auto& call) { call.v.stride[2] = 65; },
      [](auto& call) { call.q.data = static_cast<const char*>(call.q.data) + 2; },
      [](auto& call) { call.out.stride[2] = 66; },
      [](auto& call) { call.queries = int64_t{1} << 31; },
      [](auto& call) { call.batch = int64_t{1} << 29; },  // 4 heads: 2^31 tiles
      [](auto& call) { call.batch = int64_t{1} << 31; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    ForwardParams params = fitting_params();
    changes[i](params.call);
    EXPECT_NE(hopper_objection(params, kH100), nullptr) << "change " << i;
  }
}

// The gradients of the call of fitting_params().
BackwardParams fitting_gradients() {
  BackwardParams params{};
  params.forward = fitting_params();
  params.forward.call.out = {};
  params.d_out = params.forward.call.q;
  const auto rows = [](uintptr_t address, const rules::RowStrides& stride) {
    return rules::Rows<float>{
        reinterpret_cast<float*>(address),  // NOLINT(performance-no-int-to-ptr)
        stride};
  };
  params.d_q = rows(0x5000, params.d_out.stride);
  params.d_k = rows(0x6000, params.forward.call.k.stride);
  params.d_v = rows(0x7008, params.forward.call.v.stride);
  return params;
}

TEST(HopperFits, TakesMasksAndChangedScoresOfRowsOfUpTo128AndNoGradientsOfThem) {
  const float number = 1.0F;
  const std::array<uint8_t, 1> mask{};
  const std::vector<std::function<void(rules::AttentionParams&)>> changes = {
      [](auto& call) { call.softcap = 1.0F; },
      [&](auto& call) { call.alibi_slopes = &number; },
      [&](auto& call) { call.mask.data = mask.data(); },
      [&](auto& call) { call.bias.data = &number; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    for (const int64_t width : {64, 128, 256}) {
      ForwardParams params = fitting_params();
      changes[i](params.call);
      params.call.head_dim = params.call.value_dim = width;
      EXPECT_EQ(hopper_objection(params, kH100) == nullptr, width <= 128) << "change " << i;
    }
    BackwardParams gradients = fitting_gradients();
    changes[i](gradients.forward.call);
    EXPECT_NE(hopper_backward_objection(gradients, kH100), nullptr) << "change " << i;
  }
}

TEST(HopperFits, TakesGradientsOfTheCallsThatItTakes) {
  EXPECT_EQ(hopper_backward_objection(fitting_gradients(), kH100), nullptr);
  BackwardParams params = fitting_gradients();
  params.d_q = params.d_k = {};
  params.forward.call.head_dim = params.forward.call.value_dim = 256;
  EXPECT_EQ(hopper_backward_objection(params, kH100), nullptr);
}

TEST(HopperFits, SaysWhyItDoesNotTakeGradients) {
  const std::vector<std::function<void(BackwardParams&)>> changes = {
      [](auto& params) { params.forward.call.dropout.threshold = 1; },
      [](auto& params) { params.forward.call.v.stride[2] = 65; },
      [](auto& params) { params.forward.call.keys = int64_t{1} << 31; },
      [](auto& params) { params.d_out.type = DType::kF32; },
      [](auto& params) { params.d_out.stride[2] = 0; },
      [](auto& params) { params.d_out.data = static_cast<const char*>(params.d_out.data) + 2; },
      [](auto& params) { params.d_q.stride[1] = 6401; },
      [](auto& params) { params.d_k.stride[2] = 65; },
      [](auto& params) { ++params.d_v.data; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    BackwardParams params = fitting_gradients();
    changes[i](params);
    EXPECT_NE(hopper_backward_objection(params, kH100), nullptr) << "change " << i;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
