// Benchmark of linear(): x times weights, for many rows of x or for one.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eigen_peer.h"
#include "inputs.h"
#include "multihead/linear.h"
#include "openblas_peer.h"
#include "work.h"

namespace multihead::bench {
namespace {

// The case's queries are the rows of x, its keys are the outputs.
class GemmWork : public Work {
 public:
  explicit GemmWork(const Case& which)
      : rows_(which.shape.queries),
        in_(which.shape.width),
        outputs_(which.shape.keys),
        precision_(precision_of(which.dtype)),
        x_(Numbers(rows_ * in_, kQuerySeed, dtype_of(which.dtype)).floats),
        weight_(Numbers(outputs_ * in_, kKeySeed, dtype_of(which.dtype)).floats),
        bias_(random_floats(outputs_, kValueSeed)),
        out_(static_cast<size_t>(rows_ * outputs_)) {}

  Status run(Context& context) override {
    return linear({x_.data(), {rows_, in_}}, {weight_.data(), {outputs_, in_}},
                  {bias_.data(), {outputs_}}, {out_.data(), {rows_, outputs_}}, context,
                  precision_);
  }

  std::string explanation() override {
    Context context(1);
    const Status status = run(context);
    return status.ok() ? context.last_linear_kernel() : status.message();
  }

  std::span<const float> output() const override { return out_; }

  double operations() const override { return 2.0 * static_cast<double>(rows_ * in_ * outputs_); }

  double bytes() const override {
    return rows_ > 1 ? 0 : static_cast<double>(weight_.size() * sizeof(float));
  }

  double error() const override {
    double largest = 0;
    for (const int64_t row : {int64_t{0}, rows_ / 2, rows_ - 1}) {
      for (int64_t o = 0; o < outputs_; ++o) {
        double expected = bias_[static_cast<size_t>(o)];
        for (int64_t k = 0; k < in_; ++k) {
          expected += static_cast<double>(x_[static_cast<size_t>(row * in_ + k)]) *
                      static_cast<double>(weight_[static_cast<size_t>(o * in_ + k)]);
        }
        const double got = out_[static_cast<size_t>(row * outputs_ + o)];
        largest = std::max(largest, std::abs(expected - got));
      }
    }
    return largest;
  }

  std::vector<Peer> peers() override {
    if (precision_ != Precision::kF32) return {};
    std::vector<Peer> peers{{"eigen", [this](float* out) { eigen_linear(problem(out)); }}};
    if (has_openblas()) {
      peers.push_back({"openblas", [this](float* out) { openblas_linear(problem(out)); }});
    }
    return peers;
  }

 private:
  PeerLinear problem(float* out) const {
    return {.x = x_.data(),
            .weight = weight_.data(),
            .bias = bias_.data(),
            .out = out,
            .rows = rows_,
            .in = in_,
            .outputs = outputs_};
  }

  int64_t rows_, in_, outputs_;
  Precision precision_;
  std::vector<float> x_, weight_, bias_;
  std::vector<float> out_;
};

}  // namespace

std::unique_ptr<Work> make_gemm(const Case& which) { return std::make_unique<GemmWork>(which); }

}  // namespace multihead::bench
