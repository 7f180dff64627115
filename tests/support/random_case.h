// Random attention calls for property tests: shapes, strides, masks and data from one seed.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "multihead/attention.h"

namespace multihead::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // Both ends included.
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  float uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(engine_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + integer(0, static_cast<int64_t>(values.size()) - 1));
  }
  std::vector<float> floats(int64_t count, float low = -1.0F, float high = 1.0F);

 private:
  std::mt19937_64 engine_;
};

// A whole call. Views point into `storage`, so a case is moved, never copied.
struct RandomCase {
  ConstTensor q, k, v;
  AttentionOptions options;
  Dims out_shape, lse_shape, weights_shape;

  std::string description;
  std::deque<std::vector<float>> storage;
  std::deque<std::vector<uint8_t>> bytes;

  RandomCase() = default;
  RandomCase(RandomCase&&) = default;
  RandomCase& operator=(RandomCase&&) = default;
};

struct CaseLimits {
  int64_t max_queries = 70;
  int64_t max_keys = 450;  // more than two key blocks
  int64_t max_width = 70;
};

RandomCase random_case(uint64_t seed, const CaseLimits& limits = {});

}  // namespace multihead::testing
