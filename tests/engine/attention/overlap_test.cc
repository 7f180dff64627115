// Compares validate_apart() with a comparison of the bytes themselves.
#include "engine/attention/overlap.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "support/random_case.h"

namespace multihead::engine {
namespace {

using testing::Random;

constexpr int64_t kBytes = 4096;

std::set<const std::byte*> bytes_of(const Operand& of) {
  std::set<const std::byte*> bytes;
  for (int64_t i = 0; i < of.shape.elements(); ++i) {
    int64_t rest = i, at = 0;
    for (int axis = of.shape.rank(); axis-- > 0;) {
      at += rest % of.shape[axis] * of.strides[axis];
      rest /= of.shape[axis];
    }
    const auto* const first = static_cast<const std::byte*>(of.data) + at * of.element_bytes;
    for (int64_t byte = 0; byte < of.element_bytes; ++byte) bytes.insert(first + byte);
  }
  return bytes;
}

bool share_a_byte(const Operand& a, const Operand& b) {
  const std::set<const std::byte*> of_a = bytes_of(a), of_b = bytes_of(b);
  for (const std::byte* byte : of_b) {
    if (of_a.contains(byte)) return true;
  }
  return false;
}

// Random strides, including overlapping rows and shared axes.
ConstAnyTensor random_view(Random& random, const std::byte* memory) {
  Dims shape, strides;
  const auto rank = static_cast<int>(random.integer(1, 4));
  for (int axis = 0; axis < rank; ++axis) {
    shape.push_back(random.integer(random.chance(0.05) ? 0 : 1, 4));
    strides.push_back(random.integer(-2, 20));
  }
  if (random.chance(0.5)) strides[rank - 1] = 1;
  // Rows of one matrix have the same stride.
  if (rank > 1 && random.chance(0.5)) strides[rank - 2] = 12;
  const auto type = random.pick({DType::kF32, DType::kF16});
  return {memory + kBytes / 2 + 2 * random.integer(0, 60), type, shape, strides};
}

TEST(Overlap, IsThatOfTheBytes) {
  const std::vector<std::byte> memory(kBytes);
  int shared = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    Random random(seed);
    const ConstAnyTensor a = random_view(random, memory.data());
    const ConstAnyTensor b = random_view(random, memory.data());
    const Operand input(Name::kQ, a), output(Name::kOut, b);
    const Status status = validate_apart({input}, {output});
    const bool expected = share_a_byte(input, output);
    shared += expected;
    ASSERT_EQ(!status.ok(), expected)
        << "seed " << seed << ": " << a.shape.to_string() << a.strides.to_string() << " and "
        << b.shape.to_string() << b.strides.to_string();
    ASSERT_EQ(validate_apart({output}, {input}).ok(), status.ok()) << "seed " << seed;
  }
  EXPECT_GT(shared, 500);
  EXPECT_LT(shared, 3500);
}

TEST(Overlap, NamesBothTensors) {
  const std::vector<float> memory(64);
  const ConstTensor x(memory.data(), {64}), y(memory.data() + 63, {1}), none;
  const Status status = validate_apart({{Name::kX, x}}, {{Name::kBias, none}, {Name::kY, y}});
  EXPECT_EQ(status.code(), StatusCode::kShape);
  EXPECT_EQ(status.message(), "y: expected memory of its own, got memory of x");
  EXPECT_TRUE(validate_apart({{Name::kX, x}, {Name::kWeight, x}}, {}).ok());
  const Status outputs = validate_apart({}, {{Name::kX, x}, {Name::kY, y}});
  EXPECT_EQ(outputs.argument(), "y");
}

// Strides larger than any memory, and more indices than can be tried.
TEST(Overlap, DecidesAnyStrides) {
  constexpr int64_t kMost = INT64_MAX, kExtent = INT32_MAX;
  const std::vector<float> memory(64);
  const ConstTensor far(memory.data(), {kExtent, kExtent, 4}, {kMost, -kMost, 1});
  const ConstTensor also(memory.data(), {kExtent, kExtent, 4}, {INT64_MIN, 3, 1});
  const ConstTensor near(memory.data(), {8, 8});
  EXPECT_FALSE(validate_apart({{Name::kX, near}}, {{Name::kY, near}}).ok());
  for (const ConstTensor& other : {far, also, near}) {
    // Either answer is right, because such tensors cannot exist. The call must return in finite
    // time.
    (void)validate_apart({{Name::kX, far}}, {{Name::kY, other}}).ok();
    (void)validate_apart({{Name::kX, also}}, {{Name::kY, other}}).ok();
  }
}

}  // namespace
}  // namespace multihead::engine
