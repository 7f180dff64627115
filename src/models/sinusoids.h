// Tables of positions that are not stored: sines, then cosines (arXiv:1706.03762, section 3.5).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "models/architecture.h"

namespace multihead::models {

// Writes the table (positions, width). Angles of kToOne are products of floats, as in transformers,
// because models were trained with them.
inline void compute_sinusoids(const Architecture& a, float* table) {
  const int64_t half = a.width / 2;
  std::fill_n(table, a.positions * a.width, 0.0F);
  const bool to_one = a.family->sinusoids == Sinusoids::kToOne;
  for (int64_t i = 0; i < half; ++i) {
    const double divisor = to_one ? static_cast<double>(half - 1) : static_cast<double>(half);
    const double frequency = std::pow(10000.0, -static_cast<double>(i) / divisor);
    for (int64_t position = 0; position < a.positions; ++position) {
      const double angle =
          to_one ? static_cast<double>(static_cast<float>(position) * static_cast<float>(frequency))
                 : static_cast<double>(position) * frequency;
      const bool is_padding = to_one && position == a.padding_id;
      float* const row = table + position * a.width;
      row[i] = is_padding ? 0.0F : static_cast<float>(std::sin(angle));
      row[half + i] = is_padding ? 0.0F : static_cast<float>(std::cos(angle));
    }
  }
}

}  // namespace multihead::models
