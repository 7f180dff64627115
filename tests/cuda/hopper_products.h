// Operands for the kernels of hopper_kernels.h, and their exact products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/hopper_kernels.h"
#include "multihead/tensor.h"
#include "rules/element.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {

// Random multiples of `step`, up to 16 steps, which both types represent exactly.
inline std::vector<float> exact_numbers(multihead::testing::Random& random, size_t count,
                                        float step) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.integer(-16, 16)) * step;
  return values;
}

inline std::vector<uint16_t> bits_of(const std::vector<float>& values, DType type) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = multihead::testing::half_bits(values[i], type);
  return bits;
}

inline float rounded(float value, DType type) {
  const uint16_t bits = multihead::testing::half_bits(value, type);
  return type == DType::kBF16 ? rules::to_float(BFloat16{bits}) : rules::to_float(Float16{bits});
}

// (rows, columns) = a (rows, inner) times b^T or b.
inline std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b,
                                  size_t rows, size_t columns, size_t inner, bool transposes_b) {
  std::vector<float> d(rows * columns);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      float sum = 0.0F;
      for (size_t k = 0; k < inner; ++k) {
        sum += a[row * inner + k] * b[transposes_b ? column * inner + k : k * columns + column];
      }
      d[row * columns + column] = sum;
    }
  }
  return d;
}

// One call of launch_hopper_row_products(). All sums are exact, because the numbers are small
// multiples of a power of two.
struct RowProductsCase {
  DType type;
  int width, count, consumers;
  std::vector<uint16_t> a, b;
  std::vector<float> s, o, expected_s, expected_o;

  RowProductsCase(DType dtype, int of_width, int of_count, int of_consumers)
      : type(dtype), width(of_width), count(of_count), consumers(of_consumers) {
    multihead::testing::Random random(5);
    const auto columns = static_cast<size_t>(width), keys = static_cast<size_t>(count);
    const auto rows = static_cast<size_t>(64 * consumers);
    const std::vector<float> of_a = exact_numbers(random, rows * columns, 0.125F);
    const std::vector<float> of_b = exact_numbers(random, keys * columns, 0.125F);
    a = bits_of(of_a, type);
    b = bits_of(of_b, type);
    expected_s = product(of_a, of_b, rows, keys, columns, true);
    std::vector<float> weights = expected_s;
    for (float& value : weights) value = rounded(value, type);
    expected_o = product(weights, of_b, rows, columns, keys, false);
    s.resize(expected_s.size());
    o.resize(expected_o.size());
  }
};

}  // namespace multihead::cuda::testing
