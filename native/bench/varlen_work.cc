// Benchmarks of packed sequences: attention_varlen(), and its backward.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/varlen/varlen.h"
#include "inputs.h"
#include "multihead/attention_backward.h"
#include "oracle_error.h"
#include "work.h"

namespace multihead::bench {
namespace {

// Returns the starts of all sequences and the end of the last. Lengths go from the shortest to the
// longest in an order that looks random.
std::vector<int32_t> starts_of(const Shape& shape) {
  std::vector<int32_t> starts{0};
  const int64_t lengths = shape.queries - shape.shortest + 1;
  constexpr int64_t kStep = 37;  // a prime, so that every length occurs
  for (int64_t s = 0; s < shape.sequences; ++s) {
    starts.push_back(starts.back() + static_cast<int32_t>(shape.shortest + s * kStep % lengths));
  }
  return starts;
}

class VarlenWork : public Work {
 public:
  explicit VarlenWork(const Case& which)
      : shape_(which.shape),
        backward_(which.op == Op::kBackward),
        starts_(starts_of(shape_)),
        q_shape_{starts_.back(), shape_.heads, shape_.width},
        k_shape_{starts_.back(), shape_.kv_heads, shape_.width},
        q_(random_floats(q_shape_.elements(), kQuerySeed)),
        k_(random_floats(k_shape_.elements(), kKeySeed)),
        v_(random_floats(k_shape_.elements(), kValueSeed)),
        out_(q_.size()) {
    if (is_causal(which.mask)) options_.causal = Causal::bottom_right();
    if (!backward_) return;
    lse_.resize(static_cast<size_t>(shape_.heads * q_shape_[0]));
    d_out_ = random_floats(q_shape_.elements(), kGradientSeed);
    d_q_.resize(q_.size());
    d_k_.resize(k_.size());
    d_v_.resize(v_.size());
  }

  Status run(Context& context) override {
    const ConstTensor q = queries(q_), k(k_.data(), k_shape_), v(v_.data(), k_shape_);
    AttentionOutputs outputs{.out = Tensor(out_.data(), q_shape_)};
    if (backward_) outputs.lse = {lse_.data(), {shape_.heads, q_shape_[0]}};
    Status status = attention_varlen(q, k, v, starts_, starts_, options_, outputs, context);
    if (!status.ok() || !backward_) return status;
    return attention_varlen_backward(q, k, v, starts_, starts_, options_,
                                     {.out = queries(out_), .lse = outputs.lse}, queries(d_out_),
                                     {.d_q = {d_q_.data(), q_shape_},
                                      .d_k = {d_k_.data(), k_shape_},
                                      .d_v = {d_v_.data(), k_shape_}},
                                     context);
  }

  std::span<const float> output() const override { return backward_ ? d_q_ : out_; }

  // 4 d per visible pair, 14 d with the backward. A causal mask counts half of all pairs.
  double operations() const override {
    double pairs = 0;
    for (size_t s = 0; s + 1 < starts_.size(); ++s) {
      const double tokens = starts_[s + 1] - starts_[s];
      pairs += tokens * tokens;
    }
    if (options_.causal.given()) pairs /= 2;
    return (backward_ ? 14.0 : 4.0) * static_cast<double>(shape_.heads * shape_.width) * pairs;
  }

  // Error of the last sequence.
  double error() const override {
    const int32_t first = starts_[starts_.size() - 2], end = starts_.back();
    const auto rows = [&](const std::vector<float>& packed, const Dims& shape) {
      return engine::sequence_of(ConstAnyTensor(ConstTensor(packed.data(), shape)), first, end);
    };
    const auto floats = [](const ConstAnyTensor& tensor) {
      return ConstTensor(static_cast<const float*>(tensor.data), tensor.shape, tensor.strides);
    };
    const ConstAnyTensor q = rows(q_, q_shape_), k = rows(k_, k_shape_), v = rows(v_, k_shape_);
    if (!backward_) return error_on_sample(q, k, v, options_, floats(rows(out_, q_shape_)));
    return gradient_error_on_sample(q, k, v, options_, rows(d_out_, q_shape_),
                                    floats(rows(d_q_, q_shape_)));
  }

 private:
  ConstTensor queries(const std::vector<float>& rows) const { return {rows.data(), q_shape_}; }

  Shape shape_;
  bool backward_;
  std::vector<int32_t> starts_;
  Dims q_shape_, k_shape_;
  std::vector<float> q_, k_, v_, out_, lse_, d_out_, d_q_, d_k_, d_v_;
  AttentionOptions options_;
};

}  // namespace

std::unique_ptr<Work> make_varlen(const Case& which) { return std::make_unique<VarlenWork>(which); }

}  // namespace multihead::bench
