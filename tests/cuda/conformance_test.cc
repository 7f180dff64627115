// The conformance pack on the CUDA kernels in the emulator. The linker replaces attention() and
// attention_backward() by wrapped_attention() and wrapped_backward() below, also for calls inside
// modules.
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
#include "cuda/mapped_case.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"
#include "support/random_case.h"

#define MULTIHEAD_ATTENTION_SYMBOL                                                       \
  "_ZN9multihead9attentionERKNS_13AnyTensorViewIKvEES4_S4_RKNS_16AttentionOptionsERKNS_" \
  "16AttentionOutputsERNS_7ContextE"

#define MULTIHEAD_BACKWARD_SYMBOL                                                                  \
  "_ZN9multihead18attention_backwardERKNS_13AnyTensorViewIKvEES4_S4_RKNS_16AttentionOptionsERKNS_" \
  "16AttentionResultsES4_RKNS_18AttentionGradientsERNS_7ContextE"

namespace multihead::cuda::testing {

// The library's attention(). The linker redirects calls of attention() to wrapped_attention().
Status real_attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                      const AttentionOptions& options, const AttentionOutputs& outputs,
                      Context& context) __asm__("__real_" MULTIHEAD_ATTENTION_SYMBOL);
Status wrapped_attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                         const AttentionOptions& options, const AttentionOutputs& outputs,
                         Context& context) __asm__("__wrap_" MULTIHEAD_ATTENTION_SYMBOL);
Status real_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                     const AttentionOptions& options, const AttentionResults& results,
                     const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                     Context& context) __asm__("__real_" MULTIHEAD_BACKWARD_SYMBOL);
Status wrapped_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        const AttentionOptions& options, const AttentionResults& results,
                        const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                        Context& context) __asm__("__wrap_" MULTIHEAD_BACKWARD_SYMBOL);

namespace {

struct Calls {
  bool emulated = false;
  int64_t f32 = 0, half = 0, backward = 0;
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

// Repeats the call with q, k and v rounded to 16 bits, on the 16-bit kernels.
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
    expect_equals_oracle(half, launch_forward_mma, rounding_of_weights(half) * largest);
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
  RecordProperty("calls of the f32 backward kernels", std::to_string(calls.backward));
  EXPECT_GE(calls.f32, 100);
  EXPECT_GE(calls.backward, 20);
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
    // Write the LSE as rows of one number.
    const Dims& strides = outputs.lse.strides;
    write(result.lse, {outputs.lse.data,
                       DType::kF32,
                       {c.lse_shape[0], c.lse_shape[1], c.lse_shape[2], 1},
                       {strides[0], strides[1], strides[2], 1}});
  }
  try_half(c);
  return status;
}

// Calls the device's entry point, with memory that is mapped during the call.
Status wrapped_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        const AttentionOptions& options, const AttentionResults& results,
                        const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                        Context& context) {
  if (!calls.emulated) {
    return real_backward(q, k, v, options, results, d_out, gradients, context);
  }
  Mapping mapping;
  const auto map = [&](const void* data, size_t bytes, Use use, const char* name) {
    if (data != nullptr) mapping.add(data, bytes, use, name);
  };
  const auto map_tensor = [&](const auto& tensor, Use use, const char* name) {
    if (tensor.shape.elements() == 0) return;
    int64_t last = 0;
    for (int axis = 0; axis < tensor.shape.rank(); ++axis) {
      last += (tensor.shape[axis] - 1) * tensor.strides[axis];
    }
    map(tensor.data, static_cast<size_t>(last + 1) * sizeof(*tensor.data), use, name);
  };
  const auto map_rows = [&](const ConstAnyTensor& rows, const char* name) {
    map_tensor(ConstTensor{static_cast<const float*>(rows.data), rows.shape, rows.strides},
               Use::kInput, name);
  };
  const auto map_array = [&](const auto& array, Use use, const char* name) {
    map(array.data(), array.size_bytes(), use, name);
  };
  for (const auto& [rows, name] : {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}, {&d_out, "d_out"}}) {
    EXPECT_EQ(rows->dtype, DType::kF32);
    map_rows(*rows, name);
  }
  map_rows(results.out, "out");
  map_tensor(results.lse, Use::kInput, "lse");
  map_tensor(options.mask, Use::kInput, "mask");
  map_tensor(options.bias, Use::kInput, "bias");
  map_array(options.kv_lengths, Use::kInput, "kv_lengths");
  map_array(options.alibi_slopes, Use::kInput, "alibi_slopes");
  map_array(options.sinks, Use::kInput, "sinks");
  map_array(options.rope.q_positions, Use::kInput, "q_positions");
  map_array(options.rope.k_positions, Use::kInput, "k_positions");
  map_array(options.qk_norm.q_gain, Use::kInput, "q_gain");
  map_array(options.qk_norm.k_gain, Use::kInput, "k_gain");
  map_tensor(gradients.d_q, Use::kOutput, "d_q");
  map_tensor(gradients.d_k, Use::kOutput, "d_k");
  map_tensor(gradients.d_v, Use::kOutput, "d_v");
  map_tensor(gradients.d_bias, Use::kOutput, "d_bias");
  map_array(gradients.d_sinks, Use::kOutput, "d_sinks");
  map_array(gradients.d_q_gain, Use::kOutput, "d_q_gain");
  map_array(gradients.d_k_gain, Use::kOutput, "d_k_gain");
  uint64_t bytes = 0;
  Status status = attention_backward_workspace(q, k, v, options, results, d_out, gradients, bytes);
  if (!status.ok()) return status;
  const MappedWorkspace workspace(bytes);
  status = attention_backward(q, k, v, options, results, d_out, gradients, workspace.get(),
                              /*stream=*/nullptr);
  expect_no_findings();
  ++calls.backward;
  return status;
}

}  // namespace multihead::cuda::testing
