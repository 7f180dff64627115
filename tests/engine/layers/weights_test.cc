// quantize(), dequantize() and linear() with weights of every type, compared with the definitions
// in double, on every SIMD target of the machine.
#include "multihead/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "rules/element.h"
#include "support/allocations.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/special_values.h"

namespace multihead {
namespace {

using testing::Random;

constexpr WeightType kWeightTypes[] = {WeightType::kF32, WeightType::kF16, WeightType::kBF16,
                                       WeightType::kInt8, WeightType::kInt4};
constexpr WeightType kBlockWeightTypes[] = {WeightType::kInt8, WeightType::kInt4};
// Types that quantize() does not make.
constexpr WeightType kFileTypes[] = {WeightType::kQ5_0, WeightType::kQ4_1, WeightType::kQ5_1,
                                     WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K};
constexpr WeightType kAllTypes[] = {WeightType::kF32,  WeightType::kF16,  WeightType::kBF16,
                                    WeightType::kInt8, WeightType::kInt4, WeightType::kQ5_0,
                                    WeightType::kQ4_1, WeightType::kQ5_1, WeightType::kQ4_K,
                                    WeightType::kQ5_K, WeightType::kQ6_K};

// The memory of a matrix, with bytes behind it that must not be written. Its address is no multiple
// of more than 4.
class StoredWeights {
 public:
  StoredWeights(WeightType type, int64_t rows, int64_t columns)
      : type_(type), rows_(rows), columns_(columns), words_(2 + size() / 2 + kSpare, 0xABAB) {
    first_ = std::bit_cast<uintptr_t>(words_.data()) % 8 == 0 ? 2 : 0;
  }
  void* data() { return words_.data() + first_; }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(&words_[first_]); }
  WeightMatrix matrix() const { return {&words_[first_], type_, rows_, columns_}; }
  bool is_intact_behind() const {
    return std::all_of(words_.end() - static_cast<ptrdiff_t>(kSpare), words_.end(),
                       [](uint16_t word) { return word == 0xABAB; });
  }
  bool is_untouched() const {
    return std::ranges::all_of(words_, [](uint16_t word) { return word == 0xABAB; });
  }

 private:
  size_t size() const { return static_cast<size_t>(weight_bytes(type_, rows_, columns_)); }

  static constexpr size_t kSpare = 40;
  WeightType type_;
  int64_t rows_, columns_;
  std::vector<uint16_t> words_;
  size_t first_;
};

StoredWeights stored_weights(const std::vector<float>& numbers, WeightType type, int64_t rows,
                             int64_t columns) {
  StoredWeights stored(type, rows, columns);
  Context context(1);
  const Status status =
      quantize(ConstTensor(numbers.data(), {rows, columns}), type, stored.data(), context);
  EXPECT_TRUE(status.ok()) << status.message();
  return stored;
}

// A row of a type of files, and its numbers by the definition in the header.
class FileRow {
 public:
  FileRow(WeightType type, int64_t columns, std::byte* row)
      : name_(name_of(type)),
        blocks_(static_cast<size_t>((columns + 31) / 32)),
        scales_(k_ ? (blocks_ + 7) / 8 : blocks_),
        factors_((has_e_ ? 4 : 2) * scales_),
        bits_(factors_ + (k_ ? 2 * blocks_ : 0)),
        numbers_(bits_ + 4 * high_ * blocks_),
        row_(row) {}

  void fill(Random& random, float size) {
    for (size_t at = factors_; at < numbers_ + 16 * blocks_; ++at)
      row_[at] = static_cast<std::byte>(random.integer(0, 255));
    if (k_ && has_e_) {
      for (size_t at = factors_; at < bits_; ++at) row_[at] &= std::byte{63};
    }
    for (size_t at = 0; at < factors_ / 2; ++at) {
      // Scales may be negative; what blocks subtract is about half of their numbers.
      const float most = at < scales_ ? size : 8 * size;
      const Float16 half = rules::to_float16(random.floats(1, -most, most)[0]);
      std::memcpy(row_ + 2 * at, &half, sizeof(half));
    }
  }

  float weight(size_t column) const {
    const size_t b = column / 32, i = column % 32, half = i / 16;
    const int pair = byte(numbers_ + 16 * b + i % 16);
    int q = half == 0 ? pair % 16 : pair / 16;
    for (size_t place = 0; place < high_; ++place) {
      const size_t at = bits_ + (2 * place + half) * 2 * blocks_ + 2 * b + i % 16 / 8;
      q += (16 << place) * (byte(at) >> (i % 8) & 1);
    }
    if (!has_e_) q -= 8 << high_;
    float d = scale(k_ ? b / 8 : b);
    if (k_)
      d *= static_cast<float>(
          static_cast<int8_t>(byte(factors_ + b + (has_e_ ? 0 : half * blocks_))));
    const float product = d * static_cast<float>(q);
    if (!has_e_) return product;
    const float e = scale(scales_ + (k_ ? b / 8 : b));
    if (!k_) return product + e;
    const float least = e * static_cast<float>(byte(factors_ + blocks_ + b));
    return product - least;
  }

 private:
  int byte(size_t at) const { return static_cast<int>(row_[at]); }
  float scale(size_t index) const {
    Float16 value;
    std::memcpy(&value, row_ + 2 * index, sizeof(value));
    return rules::to_float(value);
  }

  std::string name_;
  bool k_ = name_.ends_with("_k"), has_e_ = name_.ends_with("_1") || (k_ && name_ != "q6_k");
  size_t high_ = name_ == "q6_k" ? 2 : name_.starts_with("q5") ? 1 : 0;
  size_t blocks_, scales_, factors_, bits_, numbers_;
  std::byte* row_;
};

StoredWeights file_weights(Random& random, WeightType type, int64_t rows, int64_t columns,
                           float size = 1.0F) {
  StoredWeights stored(type, rows, columns);
  for (int64_t row = 0; row < rows && columns > 0; ++row) {
    auto* const at = static_cast<std::byte*>(stored.data()) + row * weight_row_bytes(type, columns);
    FileRow(type, columns, at).fill(random, size);
  }
  return stored;
}

std::vector<float> weights_as_floats(const WeightMatrix& weight) {
  std::vector<int32_t> rows(static_cast<size_t>(weight.rows));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> floats(rows.size() * static_cast<size_t>(weight.columns));
  const Status status = dequantize(weight, rows, {floats.data(), {weight.rows, weight.columns}});
  EXPECT_TRUE(status.ok()) << status.message();
  return floats;
}

// One block by the definitions in the header.
std::vector<float> block_by_definition(const std::vector<float>& block, WeightType type) {
  float extreme = 0.0F;
  for (const float w : block) {
    if (std::abs(w) > std::abs(extreme)) extreme = w;
  }
  const bool wide = type == WeightType::kInt8;
  const float most = wide ? 127.0F : -8.0F;
  Float16 rounded = rules::to_float16((wide ? std::abs(extreme) : extreme) / most);
  // Rounds away from zero if the extreme would not fit otherwise.
  if (std::abs(extreme) > std::abs(rules::to_float(rounded)) * (std::abs(most) + 0.25F)) {
    ++rounded.bits;
  }
  const float scale = rules::to_float(rounded);
  const float inverse = scale == 0.0F ? 0.0F : 1.0F / scale;
  std::vector<float> result;
  for (const float w : block) {
    const float scaled = w * inverse;
    result.push_back(scale * (wide ? std::nearbyint(scaled)
                                   : std::min(15.0F, std::floor(scaled + 8.5F)) - 8.0F));
  }
  return result;
}

// The bound of the header; `largest`: the largest magnitude of the weight's block.
double weight_error_bound(WeightType type, double weight, double largest) {
  switch (type) {
    case WeightType::kF32:
      return 0;
    case WeightType::kF16:
      return std::abs(weight) * 0x1p-11 + 0x1p-25;
    case WeightType::kBF16:
      return std::abs(weight) * 0x1p-8 + 0x1p-134;
    case WeightType::kInt8:
      return largest * 0.00396 + 0x1p-24;
    default:
      break;
  }
  return largest * 0.1255 + 0x1p-22;
}

// Numbers whose magnitudes differ from block to block.
std::vector<float> weights_of_many_sizes(Random& random, int64_t rows, int64_t columns) {
  std::vector<float> numbers = random.floats(rows * columns);
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] *= std::ldexp(1.0F, static_cast<int>(i / 32 % 29) - 18);
  }
  return numbers;
}

TEST(Weights, BytesOfAMatrix) {
  EXPECT_EQ(weight_bytes(WeightType::kF32, 3, 5), 60);
  EXPECT_EQ(weight_bytes(WeightType::kF16, 3, 5), 30);
  EXPECT_EQ(weight_bytes(WeightType::kBF16, 3, 5), 30);
  EXPECT_EQ(weight_bytes(WeightType::kInt8, 3, 64), 3 * 2 * 34);
  EXPECT_EQ(weight_bytes(WeightType::kInt8, 3, 65), 3 * 3 * 34);
  EXPECT_EQ(weight_bytes(WeightType::kInt4, 3, 64), 3 * 2 * 18);
  EXPECT_EQ(weight_bytes(WeightType::kInt4, 49152, 576), 49152 * 18 * 18);
  EXPECT_EQ(weight_bytes(WeightType::kQ5_0, 3, 65), 3 * 3 * 22);
  EXPECT_EQ(weight_bytes(WeightType::kQ4_1, 3, 65), 3 * 3 * 20);
  EXPECT_EQ(weight_bytes(WeightType::kQ5_1, 3, 65), 3 * 3 * 24);
  EXPECT_EQ(weight_bytes(WeightType::kQ4_K, 3, 512), 3 * 2 * 148);
  EXPECT_EQ(weight_bytes(WeightType::kQ6_K, 3, 512), 3 * 2 * 210);
  EXPECT_EQ(weight_bytes(WeightType::kQ5_K, 3, 512), 3 * 2 * 180);
  EXPECT_EQ(weight_bytes(WeightType::kQ5_K, 3, 257), 3 * (9 * 22 + 2 * 4));
}

// A row is its scales, then its numbers.
TEST(Weights, RowInMemory) {
  std::vector<float> numbers(64, 0.0F);
  numbers[0] = -127.0F;
  numbers[1] = 3.0F;
  numbers[33] = 254.0F;
  const StoredWeights wide = stored_weights(numbers, WeightType::kInt8, 1, 64);
  const auto half = [](const std::byte* at) {
    Float16 value;
    std::memcpy(&value, at, sizeof(value));
    return rules::to_float(value);
  };
  EXPECT_EQ(half(wide.bytes()), 1.0F);
  EXPECT_EQ(half(wide.bytes() + 2), 2.0F);
  EXPECT_EQ(static_cast<int8_t>(wide.bytes()[4]), -127);
  EXPECT_EQ(static_cast<int8_t>(wide.bytes()[5]), 3);
  EXPECT_EQ(static_cast<int8_t>(wide.bytes()[4 + 33]), 127);
  numbers.assign(64, 0.0F);
  numbers[0] = -8.0F;
  numbers[16] = 5.0F;
  numbers[32] = 4.0F;
  const StoredWeights narrow = stored_weights(numbers, WeightType::kInt4, 1, 64);
  EXPECT_EQ(half(narrow.bytes()), 1.0F);
  EXPECT_EQ(half(narrow.bytes() + 2), -0.5F);
  EXPECT_EQ(narrow.bytes()[4], std::byte{0xD0});
  EXPECT_EQ(narrow.bytes()[5], std::byte{0x88});
  EXPECT_EQ(narrow.bytes()[4 + 16], std::byte{0x80});
}

class WeightsOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
  Context one_{1};
  Context more_{3};  // a build without threads uses 1
};

TEST_P(WeightsOnTarget, BlocksFollowTheirDefinition) {
  Random random(1);
  constexpr int64_t kRows = 61;
  const std::vector<float> numbers = weights_of_many_sizes(random, kRows, 32);
  for (const WeightType type : kBlockWeightTypes) {
    const std::vector<float> got =
        weights_as_floats(stored_weights(numbers, type, kRows, 32).matrix());
    for (int64_t row = 0; row < kRows; ++row) {
      const auto first = numbers.begin() + row * 32;
      const std::vector<float> expected = block_by_definition({first, first + 32}, type);
      for (int64_t c = 0; c < 32; ++c) {
        ASSERT_EQ(got[static_cast<size_t>(row * 32 + c)], expected[static_cast<size_t>(c)])
            << name_of(type) << ", block " << row << ", column " << c;
      }
    }
  }
}

// With scales of usual size, of subnormal halves, and of the largest.
TEST_P(WeightsOnTarget, BlocksOfFilesFollowTheirDefinition) {
  Random random(1);
  for (const WeightType type : kFileTypes) {
    for (const float size : {1e-3F, 0x1p-20F, 8000.0F}) {
      for (const int64_t columns : {1, 31, 32, 100, 256, 257, 576, 1000}) {
        StoredWeights stored = file_weights(random, type, 5, columns, size);
        const std::vector<float> got = weights_as_floats(stored.matrix());
        for (int64_t row = 0; row < 5; ++row) {
          const FileRow expected(
              type, columns,
              static_cast<std::byte*>(stored.data()) + row * weight_row_bytes(type, columns));
          for (int64_t c = 0; c < columns; ++c) {
            ASSERT_EQ(got[static_cast<size_t>(row * columns + c)],
                      expected.weight(static_cast<size_t>(c)))
                << name_of(type) << ", " << columns << " columns, row " << row << ", column " << c;
          }
        }
      }
    }
  }
}

// Halves below 2^-14 are farther apart than those above.
TEST_P(WeightsOnTarget, ScalesBesideTheLeastNormalHalf) {
  Random random(1);
  for (const WeightType type : kBlockWeightTypes) {
    const float most = type == WeightType::kInt8 ? 127.0F : -8.0F;
    for (int step = -12; step <= 12; ++step) {
      const float extreme = most * (0x1p-14F + static_cast<float>(step) * 0x1p-26F);
      std::vector<float> block = random.floats(32, -std::abs(extreme), std::abs(extreme));
      block[17] = extreme;
      EXPECT_EQ(weights_as_floats(stored_weights(block, type, 1, 32).matrix()),
                block_by_definition(block, type))
          << name_of(type) << ", scale 2^-14 + " << step << " * 2^-26";
    }
  }
}

TEST_P(WeightsOnTarget, ErrorsAreWithinTheirBounds) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const int64_t rows = random.integer(0, 7), columns = random.integer(0, 150);
    const int64_t gap = random.integer(0, 3);
    std::vector<float> numbers = weights_of_many_sizes(random, rows, columns + gap);
    testing::RandomCase kept;
    const DType from = random.pick({DType::kF32, DType::kF16, DType::kBF16});
    const ConstAnyTensor source =
        testing::stored(kept, numbers, from, {rows, columns}, {columns + gap, 1});
    for (const WeightType type : kWeightTypes) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + std::to_string(rows) + " x " +
                   std::to_string(columns) + " from " + name_of(from) + " to " + name_of(type));
      StoredWeights target(type, rows, columns);
      StoredWeights same(type, rows, columns);
      ASSERT_TRUE(quantize(source, type, target.data(), one_).ok());
      ASSERT_TRUE(quantize(source, type, same.data(), more_).ok());
      ASSERT_TRUE(target.is_intact_behind());
      ASSERT_EQ(
          std::memcmp(target.bytes(), same.bytes(), static_cast<size_t>(target.matrix().bytes())),
          0);
      const std::vector<float> got = weights_as_floats(target.matrix());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const auto number = [&](int64_t at) {
            return static_cast<double>(testing::element(source, r * (columns + gap) + at));
          };
          double largest = 0;
          for (int64_t i = c / 32 * 32; i < std::min(columns, c / 32 * 32 + 32); ++i) {
            largest = std::max(largest, std::abs(number(i)));
          }
          ASSERT_NEAR(got[static_cast<size_t>(r * columns + c)], number(c),
                      weight_error_bound(type, number(c), largest))
              << "row " << r << ", column " << c;
        }
      }
    }
  }
}

// Blocks of one sign, of zeros, of tiny and of the largest numbers.
TEST_P(WeightsOnTarget, SpecialBlocksAreWithinTheirBounds) {
  for (const float size : {0.0F, 1e-40F, 1e-20F, 1e-7F, 6e-5F, 65519.0F}) {
    for (const WeightType type : kWeightTypes) {
      for (const float sign : {-1.0F, 1.0F}) {
        std::vector<float> numbers(32);
        for (size_t i = 0; i < 32; ++i) {
          numbers[i] = sign * size * static_cast<float>(i + 1) / 32.0F;
        }
        numbers[5] = -numbers[5];
        numbers[30] = sign * -size;
        const std::vector<float> got =
            weights_as_floats(stored_weights(numbers, type, 1, 32).matrix());
        for (size_t i = 0; i < 32; ++i) {
          ASSERT_NEAR(
              got[i], numbers[i],
              weight_error_bound(type, static_cast<double>(numbers[i]), static_cast<double>(size)))
              << name_of(type) << ", size " << size << ", column " << i;
        }
      }
    }
  }
}

TEST_P(WeightsOnTarget, RefusesNumbersThatAreNotFiniteOrTooLarge) {
  struct Limit {
    WeightType type;
    float most, too_large;
  };
  for (const auto& [type, most, too_large] :
       {Limit{WeightType::kF32, std::numeric_limits<float>::max(), kInf},
        Limit{WeightType::kF16, 65519.0F, 65520.0F},
        Limit{WeightType::kBF16, 0x1.FEFFFEp127F, 0x1.FFp127F},
        Limit{WeightType::kInt8, 8.32e6F, 65520.0F * 127.0F},
        Limit{WeightType::kInt4, 5.24e5F, 65520.0F * 8.0F}}) {
    SCOPED_TRACE(name_of(type));
    std::vector<float> numbers(3 * 37, 1.0F);
    for (const float value : {most, -most}) {
      numbers[80] = value;
      for (const float got : weights_as_floats(stored_weights(numbers, type, 3, 37).matrix())) {
        ASSERT_TRUE(std::isfinite(got));
      }
    }
    for (const float value : {too_large, -too_large, kInf, -kInf, kNaN, -kNaN}) {
      numbers[80] = value;
      StoredWeights target(type, 3, 37);
      const Status status =
          quantize(ConstTensor(numbers.data(), {3, 37}), type, target.data(), more_);
      EXPECT_EQ(status.code(), StatusCode::kOption) << value;
      EXPECT_EQ(status.argument(), "from");
      EXPECT_TRUE(target.is_untouched());
    }
  }
}

struct WeightCase {
  WeightType type;
  int64_t rows, in, out;
  int64_t x_gap = 0, y_gap = 0;  // elements between two rows
  bool with_bias = true;
  float weight_size = 0.01F;  // of scales of files

  std::string description(uint64_t seed) const {
    return "seed " + std::to_string(seed) + ": " + std::to_string(rows) + " x " +
           std::to_string(in) + " -> " + std::to_string(out) + ", gaps " + std::to_string(x_gap) +
           " " + std::to_string(y_gap) + ", " + name_of(type);
  }
};

class WeightInputs {
 public:
  WeightInputs(const WeightCase& which, uint64_t seed)
      : c_(which), random_(seed), stored_(weights()), floats_(weights_as_floats(stored_.matrix())) {
    x_ = random_.floats(c_.rows * (c_.in + c_.x_gap));
    for (int64_t at = 0; at < std::ssize(x_); ++at) {
      if (at % (c_.in + c_.x_gap) >= c_.in) x_[static_cast<size_t>(at)] = kNaN;
    }
    bias_ = random_.floats(c_.out);
  }

  float& x(int64_t row, int64_t k) { return x_[static_cast<size_t>(row * (c_.in + c_.x_gap) + k)]; }

  // Multiplies rows first to first + count - 1. Returns y including its gaps, which must not be
  // written.
  std::vector<float> run(Context& context, int64_t first, int64_t count) const {
    std::vector<float> y(static_cast<size_t>(count * (c_.out + c_.y_gap)), kUntouched);
    const Status status =
        linear({x_.data() + first * (c_.in + c_.x_gap), {count, c_.in}, {c_.in + c_.x_gap, 1}},
               stored_.matrix(), c_.with_bias ? ConstTensor(bias_.data(), {c_.out}) : ConstTensor(),
               {y.data(), {count, c_.out}, {c_.out + c_.y_gap, 1}}, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }
  std::vector<float> run(Context& context) const { return run(context, 0, c_.rows); }

  void expect_product(const std::vector<float>& y) {
    const bool rounds_x = c_.type >= WeightType::kInt8 && c_.rows <= kFewWeightRows;
    constexpr double kUnit = 1.0 / (1 << 24);
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int64_t o = 0; o < c_.out + c_.y_gap; ++o) {
        const float got = y[static_cast<size_t>(r * (c_.out + c_.y_gap) + o)];
        if (o >= c_.out) {
          ASSERT_EQ(got, kUntouched) << "written past row " << r;
          continue;
        }
        double expected = c_.with_bias ? static_cast<double>(bias_[static_cast<size_t>(o)]) : 0.0;
        double magnitude = std::abs(expected), bound = 0;
        for (int64_t first = 0; first < c_.in; first += 32) {
          const int64_t end = std::min(c_.in, first + 32);
          double largest = 0, largest_weight = 0, weights = 0;
          for (int64_t k = first; k < end; ++k) {
            const auto number = static_cast<double>(x(r, k));
            const auto weight = static_cast<double>(floats_[static_cast<size_t>(o * c_.in + k)]);
            expected += number * weight;
            largest = std::max(largest, std::abs(number));
            largest_weight = std::max(largest_weight, std::abs(weight));
            weights += std::abs(weight);
          }
          // Kernels may add multiples of x to make weights positive.
          magnitude += 32 * largest * 2.1 * largest_weight;
          if (rounds_x) bound += weights * (largest / 254 * 1.0001 + 0x1p-120);
        }
        bound += 2 * kUnit * (static_cast<double>(c_.in) + 2) * magnitude;
        ASSERT_NEAR(got, expected, bound) << "row " << r << ", column " << o;
      }
    }
  }

 private:
  StoredWeights weights() {
    if (c_.type > WeightType::kInt4)
      return file_weights(random_, c_.type, c_.out, c_.in, c_.weight_size);
    std::vector<float> numbers = random_.floats(c_.out * c_.in);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] *= 1.0F + static_cast<float>(i / 32 % 3);
    return stored_weights(numbers, c_.type, c_.out, c_.in);
  }

  WeightCase c_;
  Random random_;
  StoredWeights stored_;
  std::vector<float> floats_, x_, bias_;
};

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  return std::ranges::equal(a, b, {}, bits, bits);
}

TEST_P(WeightsOnTarget, ProductsEqualThoseInDouble) {
  for (uint64_t seed = 1; seed <= 330; ++seed) {
    Random random(seed);
    const WeightCase which{.type = kAllTypes[random.integer(0, 10)],
                           .rows = random.integer(0, random.chance(0.7) ? 9 : 70),
                           .in = random.integer(0, random.chance(0.5) ? 70 : 300),
                           .out = random.integer(0, random.chance(0.5) ? 20 : 150),
                           .x_gap = random.integer(0, 3),
                           .y_gap = random.integer(0, 3),
                           .with_bias = random.chance(0.5)};
    SCOPED_TRACE(which.description(seed));
    WeightInputs inputs(which, seed);
    const std::vector<float> y = inputs.run(one_);
    inputs.expect_product(y);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(equal_bits(y, inputs.run(more_))) << "other bits with more threads";
  }
}

// Shapes beyond the blocks of the kernels, and enough work for several threads.
TEST_P(WeightsOnTarget, LargeProductsEqualThoseInDouble) {
  for (const WeightType type : kAllTypes) {
    for (const WeightCase& which : {WeightCase{type, 1, 1536, 577}, WeightCase{type, 3, 2177, 90},
                                    WeightCase{type, 8, 96, 515}, WeightCase{type, 50, 1601, 70}}) {
      SCOPED_TRACE(which.description(1));
      WeightInputs inputs(which, 1);
      const std::vector<float> y = inputs.run(one_);
      inputs.expect_product(y);
      if (HasFatalFailure()) return;
      ASSERT_TRUE(equal_bits(y, inputs.run(more_))) << "other bits with more threads";
    }
  }
}

// The bits of a row do not depend on the rows beside it.
TEST_P(WeightsOnTarget, FewRowsAreIndependent) {
  for (const WeightType type : kAllTypes) {
    if (type < WeightType::kInt8) continue;
    const WeightInputs inputs({.type = type, .rows = kFewWeightRows, .in = 205, .out = 83}, 1);
    const std::vector<float> all = inputs.run(one_);
    for (int64_t first = 0; first < kFewWeightRows; ++first) {
      for (int64_t count = 1; first + count <= kFewWeightRows; ++count) {
        const std::vector<float> some = inputs.run(one_, first, count);
        const auto begin = all.begin() + first * 83;
        ASSERT_TRUE(equal_bits(some, {begin, begin + count * 83}))
            << name_of(type) << ", rows " << first << " to " << first + count - 1;
      }
    }
  }
}

// A number that is not finite makes all results of its own row not finite, and no others.
TEST_P(WeightsOnTarget, NonFiniteNumbersStayInTheirRow) {
  for (const WeightType type : kAllTypes) {
    for (const int64_t rows : {1, 3, 8, 41}) {
      for (const float value : {kNaN, kInf, -kInf}) {
        SCOPED_TRACE(std::string(name_of(type)) + ", rows " + std::to_string(rows));
        WeightInputs inputs({.type = type, .rows = rows, .in = 100, .out = 75}, 1);
        const std::vector<float> before = inputs.run(one_);
        const int64_t bad = rows / 2;
        inputs.x(bad, 70) = value;
        const std::vector<float> y = inputs.run(one_);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t o = 0; o < 75; ++o) {
            const float got = y[static_cast<size_t>(r * 75 + o)];
            if (r != bad) {
              ASSERT_EQ(got, before[static_cast<size_t>(r * 75 + o)]);
            } else {
              ASSERT_FALSE(std::isfinite(got));
            }
          }
        }
      }
    }
  }
}

// The largest and the smallest rows of x; rows of zeros.
TEST_P(WeightsOnTarget, RowsOfAnySize) {
  for (const WeightType type : kAllTypes) {
    if (type < WeightType::kInt8) continue;
    for (const float size : {0.0F, 1e-42F, 1e-37F, 1e-30F, 1e30F}) {
      WeightInputs inputs({.type = type, .rows = 2, .in = 70, .out = 9, .with_bias = false}, 1);
      for (int64_t k = 0; k < 70; ++k) {
        inputs.x(0, k) *= size;
        inputs.x(1, k) *= k < 32 ? size : 1.0F;
      }
      inputs.expect_product(inputs.run(one_));
      if (HasFatalFailure()) return;
    }
  }
}

// Scales of subnormal halves and of the largest.
TEST_P(WeightsOnTarget, ProductsWithScalesOfAnySize) {
  for (const WeightType type : kFileTypes) {
    for (const float size : {0.0F, 0x1p-20F, 8000.0F}) {
      for (int64_t rows = 1; rows <= kFewWeightRows; ++rows) {
        WeightInputs inputs({.type = type, .rows = rows, .in = 300, .out = 17, .weight_size = size},
                            1);
        inputs.expect_product(inputs.run(one_));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(WeightsOnTarget, AllocatesNothingOnceItsScratchIsThere) {
  for (const WeightType type : kWeightTypes) {
    for (const int64_t rows : {1, 40}) {
      const StoredWeights weight = stored_weights(std::vector<float>(64 * 64, 0.5F), type, 64, 64);
      std::vector<float> x(static_cast<size_t>(rows * 64), 1.0F), y(x.size());
      const auto call = [&] {
        return linear({x.data(), {rows, 64}}, weight.matrix(), {}, {y.data(), {rows, 64}}, one_)
            .ok();
      };
      ASSERT_TRUE(call());
      const int64_t before = testing::allocations();
      EXPECT_TRUE(call());
      EXPECT_EQ(testing::allocations(), before);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, WeightsOnTarget, ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

TEST_P(WeightsOnTarget, SameBitsOnAnyNumberOfThreads) {
  Random random(5);
  const int64_t out = 600, in = 260;
  const std::vector<float> weights = random.floats(out * in);
  for (const WeightType type : {WeightType::kBF16, WeightType::kInt8, WeightType::kInt4}) {
    const StoredWeights stored = stored_weights(weights, type, out, in);
    for (const int64_t rows : {1, 5, 40}) {
      const std::vector<float> x = random.floats(rows * in);
      std::vector<std::vector<float>> y;
      for (const int threads : {1, 2, 5}) {
        Context context(threads);
        y.emplace_back(static_cast<size_t>(rows * out));
        ASSERT_TRUE(linear({x.data(), {rows, in}}, stored.matrix(), {},
                           {y.back().data(), {rows, out}}, context)
                        .ok());
        ASSERT_EQ(y.back(), y.front()) << name_of(type) << ", " << threads << " threads";
      }
    }
  }
}

TEST(Weights, PartsOfAMatrix) {
  Random random(1);
  const std::vector<float> numbers = random.floats(9 * 40);
  for (const WeightType type : kAllTypes) {
    const StoredWeights stored = type > WeightType::kInt4 ? file_weights(random, type, 9, 40)
                                                          : stored_weights(numbers, type, 9, 40);
    const std::vector<float> all = weights_as_floats(stored.matrix());
    const std::vector<float> some = weights_as_floats(stored.matrix().part(2, 3));
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 2 * 40)) << name_of(type);
    EXPECT_EQ(some.size(), 3U * 40U);
  }
}

TEST(Weights, ReadsListedRows) {
  Random random(1);
  const std::vector<float> numbers = random.floats(9 * 40);
  for (const WeightType type : kWeightTypes) {
    const StoredWeights stored = stored_weights(numbers, type, 9, 40);
    const std::vector<float> all = weights_as_floats(stored.matrix());
    std::vector<float> got(4 * 43, kUntouched);
    const std::vector<int32_t> rows{8, 0, 8, 3};
    ASSERT_TRUE(dequantize(stored.matrix(), rows, {got.data(), {4, 40}, {43, 1}}).ok());
    for (size_t i = 0; i < 4; ++i) {
      for (size_t c = 0; c < 43; ++c) {
        EXPECT_EQ(got[i * 43 + c],
                  c < 40 ? all[static_cast<size_t>(rows[i]) * 40 + c] : kUntouched);
      }
    }
  }
}

TEST(Weights, RefusesWrongArguments) {
  Context context(1);
  std::vector<float> floats(400, 1.0F), results(400, kUntouched);
  const StoredWeights stored = stored_weights(floats, WeightType::kInt8, 4, 40);
  const WeightMatrix weight = stored.matrix();
  const auto wrong_type = static_cast<WeightType>(11);
  const auto multiply = [&](const Dims& x, const WeightMatrix& matrix, const Dims& bias,
                            const Dims& y) {
    return linear({floats.data(), x}, matrix,
                  bias.rank() == 0 ? ConstTensor() : ConstTensor(floats.data(), bias),
                  {results.data(), y}, context)
        .argument();
  };
  EXPECT_EQ(multiply({2, 40}, weight, {4}, {2, 4}), "");
  EXPECT_EQ(multiply({1, 2, 40}, weight, {}, {2, 4}), "x");
  EXPECT_EQ(multiply({2, 39}, weight, {}, {2, 4}), "weight");
  EXPECT_EQ(multiply({2, 40}, {nullptr, WeightType::kInt8, 4, 40}, {}, {2, 4}), "weight");
  EXPECT_EQ(multiply({2, 40}, {weight.data, WeightType::kInt8, -4, 40}, {}, {2, 4}), "weight");
  EXPECT_EQ(multiply({2, 40}, {weight.data, wrong_type, 4, 40}, {}, {2, 4}), "type");
  EXPECT_EQ(multiply({2, 40}, weight, {3}, {2, 4}), "bias");
  EXPECT_EQ(multiply({2, 40}, weight, {}, {4, 2}), "y");

  const auto store = [&](const Dims& from, WeightType type, void* to) {
    return quantize(ConstTensor(floats.data(), from), type, to, context).argument();
  };
  EXPECT_EQ(store({4, 40}, WeightType::kInt4, results.data()), "");
  EXPECT_EQ(store({40}, WeightType::kInt4, results.data()), "from");
  EXPECT_EQ(store({4, 40}, wrong_type, results.data()), "type");
  EXPECT_EQ(store({4, 40}, WeightType::kQ5_0, results.data()), "type");
  EXPECT_EQ(store({4, 40}, WeightType::kInt4, nullptr), "to");

  const auto read = [&](const WeightMatrix& matrix, const std::vector<int32_t>& rows,
                        const Dims& to) {
    return dequantize(matrix, rows, {results.data(), to}).argument();
  };
  EXPECT_EQ(read(weight, {0, 3}, {2, 40}), "");
  EXPECT_EQ(read(weight, {0, 4}, {2, 40}), "rows");
  EXPECT_EQ(read(weight, {-1}, {1, 40}), "rows");
  EXPECT_EQ(read(weight, {0, 3}, {1, 40}), "to");
  EXPECT_EQ(read({weight.data, wrong_type, 4, 40}, {0}, {1, 40}), "type");
  EXPECT_EQ(read({nullptr, WeightType::kInt4, 4, 40}, {0}, {1, 40}), "weight");
}

}  // namespace
}  // namespace multihead
