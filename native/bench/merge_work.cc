// Benchmark of merge_attention().
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "inputs.h"
#include "multihead/attention.h"
#include "work.h"

namespace multihead::bench {
namespace {

// Merges the same result again and again into another: the work does not depend on the numbers.
class MergeWork : public Work {
 public:
  explicit MergeWork(const Case& which)
      : shape_{which.shape.batch, which.shape.heads, which.shape.queries, which.shape.width},
        rows_{shape_[0], shape_[1], shape_[2]},
        out_a_(random_floats(shape_.elements(), kQuerySeed)),
        lse_a_(random_floats(rows_.elements(), kKeySeed)),
        out_b_(random_floats(shape_.elements(), kValueSeed)),
        lse_b_(random_floats(rows_.elements(), kGradientSeed)) {}

  Status run(Context& context) override { return merge_into(out_a_, lse_a_, &context); }

  std::span<const float> output() const override { return out_a_; }

  double operations() const override { return 0; }

  // Reads both outputs and writes one.
  double bytes() const override { return 3.0 * static_cast<double>(out_a_.size() * sizeof(float)); }

  double error() const override {
    std::vector<float> out = out_a_, lse = lse_a_;
    if (!merge_into(out, lse, nullptr).ok()) return INFINITY;
    const auto width = static_cast<size_t>(shape_[3]);
    double largest = 0;
    for (size_t row = 0; row < lse.size(); ++row) {
      const double of_a = std::exp(static_cast<double>(lse_a_[row]));
      const double of_b = std::exp(static_cast<double>(lse_b_[row]));
      for (size_t at = row * width; at < (row + 1) * width; ++at) {
        const double expected =
            (of_a * static_cast<double>(out_a_[at]) + of_b * static_cast<double>(out_b_[at])) /
            (of_a + of_b);
        largest = std::max(largest, std::abs(static_cast<double>(out[at]) - expected));
      }
    }
    return largest;
  }

 private:
  Status merge_into(std::vector<float>& out, std::vector<float>& lse, Context* context) const {
    return merge_attention({out.data(), shape_}, {lse.data(), rows_}, {out_b_.data(), shape_},
                           {lse_b_.data(), rows_}, context);
  }

  Dims shape_, rows_;
  std::vector<float> out_a_, lse_a_, out_b_, lse_b_;
};

}  // namespace

std::unique_ptr<Work> make_merge(const Case& which) { return std::make_unique<MergeWork>(which); }

}  // namespace multihead::bench
