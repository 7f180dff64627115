// Positions of patches for images of another size than a model was trained with: bicubic
// interpolation as PyTorch's interpolate() computes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace multihead::models {

// What each of `to` places of a side is made of, which had `from` places: indices with weights.
// `antialias`: the filter is as much wider as the side becomes shorter.
inline std::vector<std::vector<std::pair<int64_t, double>>> bicubic_taps(int64_t from, int64_t to,
                                                                         bool antialias) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double stretch = antialias ? std::max(1.0, scale) : 1.0, a = antialias ? -0.5 : -0.75;
  const auto weight_at = [a](double x) {
    x = std::abs(x);
    if (x >= 2) return 0.0;
    return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  };
  std::vector<std::vector<std::pair<int64_t, double>>> taps(static_cast<size_t>(to));
  for (int64_t place = 0; place < to; ++place) {
    // The middle of pixel i is at i.
    const double middle = (static_cast<double>(place) + 0.5) * scale - 0.5;
    const auto first = static_cast<int64_t>(std::floor(middle - 2 * stretch));
    const auto last = static_cast<int64_t>(std::ceil(middle + 2 * stretch));
    auto& all = taps[static_cast<size_t>(place)];
    double sum = 0;
    for (int64_t at = first; at <= last; ++at) {
      const double weight = weight_at((static_cast<double>(at) - middle) / stretch);
      // Beyond its ends a side goes on with the last pixel; with antialias there is nothing.
      if (weight == 0 || (antialias && (at < 0 || at >= from))) continue;
      all.emplace_back(std::clamp<int64_t>(at, 0, from - 1), weight);
      sum += weight;
    }
    for (auto& tap : all) tap.second /= sum;
  }
  return taps;
}

}  // namespace multihead::models
