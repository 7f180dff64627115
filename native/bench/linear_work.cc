// Benchmark of linear() with weights of any type. Calls use copies of the matrix in turns, together
// larger than the caches: a model's step reads every weight from memory.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "inputs.h"
#include "multihead/weights.h"
#include "work.h"

namespace multihead::bench {
namespace {

WeightType weight_type_of(std::string_view name) {
  for (const WeightType type :
       {WeightType::kF16, WeightType::kBF16, WeightType::kInt8, WeightType::kInt4}) {
    if (name == name_of(type)) return type;
  }
  return WeightType::kF32;
}

class LinearWork : public Work {
 public:
  explicit LinearWork(const Case& which)
      : rows_(which.shape.queries),
        x_(random_floats(rows_ * which.shape.width, kQuerySeed)),
        numbers_(random_floats(which.shape.keys * which.shape.width, kKeySeed)),
        weight_{nullptr, weight_type_of(which.dtype), which.shape.keys, which.shape.width},
        out_(static_cast<size_t>(rows_ * which.shape.keys)) {
    constexpr int64_t kCopiedBytes = int64_t{192} << 20;  // several times the third-level cache
    const int64_t bytes = weight_.bytes();
    copies_ = rows_ > kFewWeightRows ? 1 : (kCopiedBytes + bytes - 1) / bytes;
    memory_.resize(static_cast<size_t>(copies_ * bytes));
    Context context(1);
    const Status status = quantize(ConstTensor(numbers_.data(), {weight_.rows, weight_.columns}),
                                   weight_.type, memory_.data(), context);
    if (!status.ok()) throw std::runtime_error(status.message());
    for (int64_t copy = 1; copy < copies_; ++copy) {
      std::memcpy(memory_.data() + copy * bytes, memory_.data(), static_cast<size_t>(bytes));
    }
  }

  Status run(Context& context) override {
    weight_.data = memory_.data() + next_ * weight_.bytes();
    next_ = (next_ + 1) % copies_;
    return linear({x_.data(), {rows_, weight_.columns}}, weight_, {},
                  {out_.data(), {rows_, weight_.rows}}, context);
  }

  std::span<const float> output() const override { return out_; }

  double operations() const override {
    return 2.0 * static_cast<double>(rows_ * weight_.columns * weight_.rows);
  }

  double bytes() const override {
    return rows_ > kFewWeightRows ? 0 : static_cast<double>(weight_.bytes());
  }

  // Compared with the numbers before they were stored as weights.
  double error() const override {
    double largest = 0;
    const int64_t in = weight_.columns;
    for (const int64_t row : {int64_t{0}, rows_ - 1}) {
      for (int64_t o = 0; o < std::min<int64_t>(weight_.rows, 2000); ++o) {
        double expected = 0;
        for (int64_t k = 0; k < in; ++k) {
          expected += static_cast<double>(x_[static_cast<size_t>(row * in + k)]) *
                      static_cast<double>(numbers_[static_cast<size_t>(o * in + k)]);
        }
        const double got = out_[static_cast<size_t>(row * weight_.rows + o)];
        largest = std::max(largest, std::abs(expected - got));
      }
    }
    return largest;
  }

 private:
  int64_t rows_, copies_ = 1, next_ = 0;
  std::vector<float> x_, numbers_;
  WeightMatrix weight_;
  std::vector<float> out_;
  std::vector<std::byte> memory_;
};

}  // namespace

std::unique_ptr<Work> make_linear(const Case& which) { return std::make_unique<LinearWork>(which); }

}  // namespace multihead::bench
