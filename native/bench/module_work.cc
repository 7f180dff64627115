// Benchmark of MultiHeadAttention: four projections around attention.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "eigen_peer.h"
#include "inputs.h"
#include "multihead/multi_head_attention.h"
#include "work.h"

namespace multihead::bench {
namespace {

class ModuleWork : public Work {
 public:
  explicit ModuleWork(const Case& which)
      : shape_(which.shape),
        embed_(shape_.heads * shape_.width),
        precision_(precision_of(which.dtype)),
        x_(random_floats(shape_.queries * embed_, kQuerySeed)),
        out_(x_.size()),
        attended_(which.mask == Mask::kWeights
                      ? static_cast<size_t>(shape_.heads * shape_.queries * shape_.queries)
                      : 0) {
    for (uint32_t i = 0; i < 4; ++i) {
      weights_.push_back(random_floats(embed_ * embed_, kQuerySeed + 1 + i));
      // Scale weights to the size of trained ones, so that the softmax is neither flat nor one-hot.
      for (float& value : weights_.back()) value *= 0.05F;
    }
    const Dims w_shape{embed_, embed_};
    status_ = MultiHeadAttention::create({.embed_dim = embed_, .num_heads = shape_.heads}, module_);
    if (!status_.ok()) return;
    status_ = module_.use_weights({.q_proj = {weights_[0].data(), w_shape},
                                   .k_proj = {weights_[1].data(), w_shape},
                                   .v_proj = {weights_[2].data(), w_shape},
                                   .out_proj = {weights_[3].data(), w_shape}});
  }

  Status run(Context& context) override {
    if (!status_.ok()) return status_;
    const Dims x_shape{1, shape_.queries, embed_};
    MultiHeadAttentionOutputs outputs{.out = {out_.data(), x_shape}};
    if (!attended_.empty()) {
      outputs.weights = {attended_.data(), {1, shape_.heads, shape_.queries, shape_.queries}};
    }
    MultiHeadAttentionOptions options;
    options.attention.precision = precision_;
    return module_.forward({.query = {x_.data(), x_shape}}, options, outputs, nullptr, context);
  }

  std::string explanation() override {
    Context context(1);
    const Status status = run(context);
    if (!status.ok()) return status.message();
    return context.last_kernel() + "; projections: " + context.last_linear_kernel();
  }

  std::span<const float> output() const override { return out_; }

  double operations() const override {
    const auto tokens = static_cast<double>(shape_.queries), embed = static_cast<double>(embed_);
    return 4.0 * 2.0 * tokens * embed * embed + 4.0 * tokens * tokens * embed;
  }

  // Returns the largest error of two rows.
  double error() const override;

  std::vector<Peer> peers() override {
    if (precision_ != Precision::kF32) return {};
    return {{"eigen", [this](float* out) {
               eigen_module({.x = x_.data(),
                             .weights = {weights_[0].data(), weights_[1].data(), weights_[2].data(),
                                         weights_[3].data()},
                             .out = out,
                             .tokens = shape_.queries,
                             .embed = embed_,
                             .heads = shape_.heads});
             }}};
  }

 private:
  Shape shape_;
  int64_t embed_;
  Precision precision_;
  std::vector<float> x_;
  std::vector<std::vector<float>> weights_;
  std::vector<float> out_;
  std::vector<float> attended_;  // the weights (1, H, N, N), if requested
  MultiHeadAttention module_;
  Status status_;
};

double dot(const float* a, const std::vector<double>& b) {
  return std::inner_product(b.begin(), b.end(), a, 0.0);
}

void add(std::vector<double>& sum, double factor, const float* row) {
  for (size_t c = 0; c < sum.size(); ++c) sum[c] += factor * static_cast<double>(row[c]);
}

// Computes one row without projecting the other tokens: q . (W_k x_j) = (W_k^T q) . x_j and sum w_j
// (W_v x_j) = W_v (sum w_j x_j).
double ModuleWork::error() const {
  const auto embed = static_cast<size_t>(embed_), width = static_cast<size_t>(shape_.width);
  const auto tokens = static_cast<size_t>(shape_.queries);
  double largest = 0;
  for (const size_t token : {size_t{0}, tokens - 1}) {
    const std::vector<double> x(x_.data() + token * embed, x_.data() + (token + 1) * embed);
    std::vector<double> merged;
    for (size_t first = 0; first < embed; first += width) {
      std::vector<double> key_side(embed, 0.0), value_side(embed, 0.0), weights;
      for (size_t c = first; c < first + width; ++c) {
        add(key_side, dot(weights_[0].data() + c * embed, x), weights_[1].data() + c * embed);
      }
      for (size_t j = 0; j < tokens; ++j) {
        weights.push_back(
            std::exp(dot(x_.data() + j * embed, key_side) / std::sqrt(static_cast<double>(width))));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (size_t j = 0; j < tokens; ++j) add(value_side, weights[j] / sum, x_.data() + j * embed);
      for (size_t c = first; c < first + width; ++c) {
        merged.push_back(dot(weights_[2].data() + c * embed, value_side));
      }
    }
    for (size_t c = 0; c < embed; ++c) {
      const double expected = dot(weights_[3].data() + c * embed, merged);
      const double got = out_[token * embed + c];
      largest = std::max(largest, std::abs(expected - got));
    }
  }
  return largest;
}

}  // namespace

std::unique_ptr<Work> make_module(const Case& which) { return std::make_unique<ModuleWork>(which); }

}  // namespace multihead::bench
