// Benchmarks of a training step's attention: attention(), then attention_backward().
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "inputs.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"
#include "oracle_error.h"
#include "work.h"

namespace multihead::bench {
namespace {

class BackwardWork : public Work {
 public:
  explicit BackwardWork(const Case& which)
      : shape_(which.shape),
        q_shape_{shape_.batch, shape_.heads, shape_.queries, shape_.width},
        k_shape_{shape_.batch, shape_.kv_heads, shape_.keys, shape_.width},
        q_(random_floats(q_shape_.elements(), kQuerySeed)),
        k_(random_floats(k_shape_.elements(), kKeySeed)),
        v_(random_floats(k_shape_.elements(), kValueSeed)),
        d_out_(random_floats(q_shape_.elements(), kGradientSeed)),
        mask_(shape_, which.mask),
        out_(q_.size()),
        lse_(static_cast<size_t>(shape_.batch * shape_.heads * shape_.queries)),
        d_q_(q_.size()),
        d_k_(k_.size()),
        d_v_(v_.size()) {}

  Status run(Context& context) override {
    const Tensor out(out_.data(), q_shape_);
    Status status = attention(q(), k(), v(), mask_.options(), {.out = out, .lse = lse()}, context);
    if (!status.ok()) return status;
    return attention_backward(q(), k(), v(), mask_.options(), {.out = out, .lse = lse()}, d_out(),
                              gradients(), context);
  }

  std::string explanation() override {
    const std::string on_gpu = cuda::explain_backward(
        q(), k(), v(), mask_.options(), {.out = ConstTensor(out_.data(), q_shape_), .lse = lse()},
        d_out(), gradients());
    return on_gpu.empty() ? on_gpu : "on a GPU: " + on_gpu;
  }

  std::span<const float> output() const override { return d_q_; }

  // 2 d per product and visible pair: two products in the forward, five in the backward.
  double operations() const override {
    return 14.0 * static_cast<double>(shape_.batch * shape_.heads * shape_.width) *
           mask_.visible_pairs();
  }

  double error() const override {
    return gradient_error_on_sample(q(), k(), v(), mask_.options(), d_out(),
                                    {d_q_.data(), q_shape_});
  }

 private:
  ConstTensor q() const { return {q_.data(), q_shape_}; }
  ConstTensor k() const { return {k_.data(), k_shape_}; }
  ConstTensor v() const { return {v_.data(), k_shape_}; }
  ConstTensor d_out() const { return {d_out_.data(), q_shape_}; }
  Tensor lse() { return {lse_.data(), {shape_.batch, shape_.heads, shape_.queries}}; }
  AttentionGradients gradients() {
    return {.d_q = {d_q_.data(), q_shape_},
            .d_k = {d_k_.data(), k_shape_},
            .d_v = {d_v_.data(), k_shape_}};
  }

  Shape shape_;
  Dims q_shape_, k_shape_;
  std::vector<float> q_, k_, v_, d_out_;
  MaskInputs mask_;
  std::vector<float> out_, lse_, d_q_, d_k_, d_v_;
};

}  // namespace

std::unique_ptr<Work> make_backward(const Case& which) {
  return std::make_unique<BackwardWork>(which);
}

}  // namespace multihead::bench
