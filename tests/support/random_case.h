// Random attention calls for property tests: shapes, strides, types, all options and data from one
// seed.
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
  // Returns a number in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  // libstdc++'s std::uniform_real_distribution takes a long double logarithm for every number,
  // which was 45 % of the time of all tests.
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(fraction());
  }
  bool chance(double probability) { return fraction() < probability; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + integer(0, static_cast<int64_t>(values.size()) - 1));
  }
  std::vector<float> floats(int64_t count, float low = -1.0F, float high = 1.0F);

 private:
  // Returns a number in [0, 1), in steps of 2^-24, so that a float holds it exactly.
  double fraction() { return static_cast<double>(engine_() >> 40U) * 0x1p-24; }

  std::mt19937_64 engine_;
};

// Returns the seeds of a random test: `cases` seeds from 1 on, at most MULTIHEAD_RANDOM_MOST.
// MULTIHEAD_RANDOM_CASES overrides both numbers, MULTIHEAD_RANDOM_FIRST the first seed.
std::vector<uint64_t> random_seeds(int64_t cases);

// One capture of a random call: a ScoreCapture without its output.
struct CaptureRequest {
  ScoreStage stage = ScoreStage::kWeights;
  std::vector<int32_t> heads;  // empty for all
  int64_t first_row = 0;
  int64_t rows = 0;
};

// A complete call. Its views point to the storage below, so a case can be moved, but not copied.
struct RandomCase {
  ConstAnyTensor q, k, v;
  DType out_type = DType::kF32;
  AttentionOptions options;
  std::vector<CaptureRequest> captures;
  Dims out_shape, lse_shape, weights_shape;

  std::string description;
  std::deque<std::vector<float>> storage;
  std::deque<std::vector<uint16_t>> halves;
  std::deque<std::vector<uint8_t>> bytes;
  std::deque<std::vector<int32_t>> integers;

  RandomCase() = default;
  RandomCase(RandomCase&&) = default;
  RandomCase& operator=(RandomCase&&) = default;
};

// Rounds values to `type` and stores them in the case; f32 values stay unchanged.
ConstAnyTensor stored(RandomCase& result, std::vector<float> values, DType type, const Dims& shape,
                      const Dims& strides);
// Returns the element at an index of a tensor's data.
float element(const ConstAnyTensor& tensor, int64_t index);

// The tensor with its shape and strides, but no data: what a call is prepared for.
template <class TensorLike>
TensorLike without_data(TensorLike tensor) {
  tensor.data = nullptr;
  return tensor;
}
// Returns the bits of a number in a 16-bit type.
uint16_t half_bits(float value, DType type);

struct CaseLimits {
  int64_t max_queries = 70;
  int64_t max_keys = 450;  // more than two key blocks
  int64_t max_width = 70;
};

RandomCase random_case(uint64_t seed, const CaseLimits& limits = {});

}  // namespace multihead::testing
