// The conformance pack with every call of attention(), those of modules included, computed by the
// CUDA kernels in the emulator. The linker replaces attention() by wrapped_attention() below.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "conformance.h"
#include "cuda/emulated_forward.h"
#include "cuda/emulator/memory.h"
#include "cuda/kernels.h"
#include "multihead/attention.h"
#include "support/random_case.h"

#define MULTIHEAD_ATTENTION_SYMBOL                                                       \
  "_ZN9multihead9attentionERKNS_13AnyTensorViewIKvEES4_S4_RKNS_16AttentionOptionsERKNS_" \
  "16AttentionOutputsERNS_7ContextE"

namespace multihead::cuda::testing {

// attention() of the library; calls of attention() arrive in the second function.
Status real_attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                      const AttentionOptions& options, const AttentionOutputs& outputs,
                      Context& context) __asm__("__real_" MULTIHEAD_ATTENTION_SYMBOL);
Status wrapped_attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                         const AttentionOptions& options, const AttentionOutputs& outputs,
                         Context& context) __asm__("__wrap_" MULTIHEAD_ATTENTION_SYMBOL);

namespace {

struct Calls {
  bool emulated = false;
  int64_t f32 = 0, half = 0;
} calls;

RandomCase case_of(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                   const AttentionOptions& options) {
  RandomCase c;
  c.q = q;
  c.k = k;
  c.v = v;
  c.options = options;
  c.out_shape = {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  c.lse_shape = {q.shape[0], q.shape[1], q.shape[2]};
  c.weights_shape = {q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
  return c;
}

void write(const std::vector<float>& values, const AnyTensor& to) {
  const Dims& shape = to.shape;
  size_t at = 0;
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t h = 0; h < shape[1]; ++h) {
      for (int64_t i = 0; i < shape[2]; ++i) {
        const int64_t row = b * to.strides[0] + h * to.strides[1] + i * to.strides[2];
        for (int64_t c = 0; c < shape[3]; ++c) static_cast<float*>(to.data)[row + c] = values[at++];
      }
    }
  }
}

// The same call with q, k and v rounded to 16 bits, by the kernels for those.
void try_half(const RandomCase& c) {
  if (c.options.rope.style != Rope::Style::kNone || c.options.qk_norm.enabled) return;
  for (const DType type : {DType::kF16, DType::kBF16}) {
    RandomCase half = case_of(c.q, c.k, c.v, c.options);
    half.out_type = type;
    const auto rounded = [&](const ConstAnyTensor& rows) {
      const Dims& shape = rows.shape;
      const int64_t row = (shape[3] + 7) / 8 * 8;
      const Dims strides{shape[1] * shape[2] * row, shape[2] * row, row, 1};
      std::vector<float> values(static_cast<size_t>(shape[0] * strides[0]));
      for (int64_t b = 0; b < shape[0]; ++b) {
        for (int64_t h = 0; h < shape[1]; ++h) {
          for (int64_t i = 0; i < shape[2]; ++i) {
            for (int64_t d = 0; d < shape[3]; ++d) {
              values[static_cast<size_t>(b * strides[0] + h * strides[1] + i * row + d)] =
                  multihead::testing::element(
                      rows, b * rows.strides[0] + h * rows.strides[1] + i * rows.strides[2] + d);
            }
          }
        }
      }
      return multihead::testing::stored(half, std::move(values), type, shape, strides);
    };
    half.q = rounded(c.q);
    half.k = rounded(c.k);
    half.v = rounded(c.v);
    double largest = 1;
    for (int64_t i = 0; i < half.v.shape[0] * half.v.strides[0]; ++i) {
      const double value = std::abs(static_cast<double>(multihead::testing::element(half.v, i)));
      if (std::isfinite(value)) largest = std::max(largest, value);
    }
    expect_equals_oracle(half, launch_forward_half, rounding_of_weights(half) * largest);
    ++calls.half;
  }
}

TEST(CudaConformance, EveryCasePassesWithEmulatedKernels) {
  Context context(1);
  calls = {.emulated = true};
  const auto results = conformance::run_folder(MULTIHEAD_CONFORMANCE_FOLDER, context);
  calls.emulated = false;
  EXPECT_GE(results.size(), 178U);
  for (const auto& result : results) {
    EXPECT_TRUE(result.passed()) << result.file << "/" << result.name << ": " << result.reason;
  }
  RecordProperty("calls of the f32 kernel", std::to_string(calls.f32));
  RecordProperty("calls of the 16-bit kernels", std::to_string(calls.half));
  EXPECT_GE(calls.f32, 100);
  EXPECT_GE(calls.half, 100);
}

}  // namespace

Status wrapped_attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                         const AttentionOptions& options, const AttentionOutputs& outputs,
                         Context& context) {
  Status status = real_attention(q, k, v, options, outputs, context);
  if (!calls.emulated || !status.ok() || outputs.out.data == nullptr) return status;
  RandomCase c = case_of(q, k, v, options);
  const ForwardResult result = run_forward(c, launch_forward_f32);
  ++calls.f32;
  EXPECT_EQ(outputs.out.dtype, DType::kF32);
  write(result.out, outputs.out);
  if (outputs.lse.data != nullptr) {
    // As rows of one number.
    const Dims& strides = outputs.lse.strides;
    write(result.lse, {outputs.lse.data,
                       DType::kF32,
                       {c.lse_shape[0], c.lse_shape[1], c.lse_shape[2], 1},
                       {strides[0], strides[1], strides[2], 1}});
  }
  try_half(c);
  return status;
}

}  // namespace multihead::cuda::testing
