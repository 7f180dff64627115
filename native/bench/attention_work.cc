// Benchmarks of attention() on tensors: forward and decode.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eigen_peer.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "inputs.h"
#include "multihead/cuda.h"
#include "oracle_error.h"
#include "work.h"

namespace multihead::bench {
namespace {

// Strides of a tensor viewed as (B, H, N, d). `tokens_first`: it is stored as (B, N, H, d).
Dims strides_of(const Dims& shape, bool tokens_first) {
  if (!tokens_first) return contiguous_strides(shape);
  const int64_t heads = shape[1], tokens = shape[2], width = shape[3];
  return {tokens * heads * width, width, heads * width, 1};
}

std::array<int64_t, 3> outer(const Dims& strides) { return {strides[0], strides[1], strides[2]}; }

class AttentionWork : public Work {
 public:
  explicit AttentionWork(const Case& which)
      : shape_(which.shape),
        mask_kind_(which.mask),
        q_shape_{shape_.batch, shape_.heads, shape_.queries, shape_.width},
        k_shape_{shape_.batch, shape_.kv_heads, shape_.keys, shape_.width},
        q_strides_(strides_of(q_shape_, shape_.tokens_first)),
        k_strides_(strides_of(k_shape_, shape_.tokens_first)),
        q_(q_shape_.elements(), kQuerySeed, dtype_of(which.dtype)),
        k_(k_shape_.elements(), kKeySeed, dtype_of(which.dtype)),
        v_(k_shape_.elements(), kValueSeed, dtype_of(which.dtype)),
        mask_(shape_, which.mask),
        options_(mask_.options()),
        out_(q_.floats.size()) {
    options_.precision = precision_of(which.dtype);
    if (mask_kind_ == Mask::kWeights) {
      weights_.resize(
          static_cast<size_t>(shape_.batch * shape_.heads * shape_.queries * shape_.keys));
    }
  }

  Status run(Context& context) override {
    return attention(q(), k(), v(), options_, outputs(), context);
  }

  std::string explanation() override {
    engine::AttentionShape shape;
    const Status status = engine::validate_call({q(), k(), v(), options_, outputs()}, shape);
    if (!status.ok()) return status.message();
    engine::ForwardPlan plan = engine::plan_forward({q(), k(), v(), options_, outputs()}, shape);
    engine::finish_plan(plan, 1);
    const std::string on_cpu = engine::explain(plan.choice);
    const std::string on_gpu = cuda::explain(q(), k(), v(), options_, outputs());
    return on_gpu.empty() ? on_cpu : on_cpu + "; on a GPU: " + on_gpu;
  }

  std::span<const float> output() const override { return out_; }

  double operations() const override {
    return 4.0 * static_cast<double>(shape_.batch * shape_.heads * shape_.width) *
           mask_.visible_pairs();
  }

  double bytes() const override {
    if (shape_.queries > 1) return 0;
    return static_cast<double>(2 * k_shape_.elements() * bytes_of(k_.dtype));
  }

  double error() const override {
    return error_on_sample(q(), k(), v(), options_, {out_.data(), q_shape_, q_strides_});
  }

  // Eigen has no counterpart of bf16 products or of returned weights.
  std::vector<Peer> peers() override {
    if (mask_kind_ == Mask::kWeights || options_.precision != Precision::kF32) return {};
    additive_ = mask_.additive();
    return {{"eigen", [this](float* out) { run_eigen(out); }}};
  }

 private:
  void run_eigen(float* out) const {
    const auto pairs = static_cast<size_t>(shape_.queries * shape_.keys);
    eigen_attention(
        {.q = q_.floats.data(),
         .k = k_.floats.data(),
         .v = v_.floats.data(),
         .out = out,
         .batch = shape_.batch,
         .heads = shape_.heads,
         .kv_heads = shape_.kv_heads,
         .queries = shape_.queries,
         .keys = shape_.keys,
         .width = shape_.width,
         .q_strides = outer(q_strides_),
         .k_strides = outer(k_strides_),
         .causal = is_causal(mask_kind_),
         .additive = additive_.empty() ? nullptr : additive_.data(),
         .additive_head_stride = additive_.size() > pairs ? static_cast<int64_t>(pairs) : 0});
  }

  ConstAnyTensor q() const { return q_.view(q_shape_, q_strides_); }
  ConstAnyTensor k() const { return k_.view(k_shape_, k_strides_); }
  ConstAnyTensor v() const { return v_.view(k_shape_, k_strides_); }

  AttentionOutputs outputs() {
    AttentionOutputs outputs{.out = Tensor{out_.data(), q_shape_, q_strides_}};
    if (!weights_.empty()) {
      outputs.weights = {weights_.data(),
                         {shape_.batch, shape_.heads, shape_.queries, shape_.keys}};
    }
    return outputs;
  }

  Shape shape_;
  Mask mask_kind_;
  Dims q_shape_, k_shape_, q_strides_, k_strides_;
  Numbers q_, k_, v_;
  MaskInputs mask_;
  AttentionOptions options_;
  std::vector<float> out_, weights_, additive_;
};

}  // namespace

std::unique_ptr<Work> make_attention(const Case& which) {
  return std::make_unique<AttentionWork>(which);
}

}  // namespace multihead::bench
