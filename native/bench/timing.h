// Wall-clock time of calls, and the median of samples.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace multihead::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <class Call>
double seconds_of(const Call& call) {
  const auto start = Clock::now();
  call();
  return seconds_since(start);
}

// Returns the median; for an even number of values, the larger of the two middle ones. There must
// be at least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace multihead::bench
