#include "support/random_case.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace multihead::testing {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// (B, H, N, d) in one of the layouts that callers have: (B, H, N, d), (B, N, H, d), or rows
// with a gap behind each, as packed QKV has.
ConstTensor random_tensor(Random& random, const Dims& shape, RandomCase& result) {
  const int64_t b = shape[0], h = shape[1], n = shape[2], d = shape[3];
  const int64_t gap = random.chance(0.3) ? random.integer(1, 9) : 0;
  const int64_t row = d + gap;
  const bool heads_inside = random.chance(0.3);
  const Dims strides =
      heads_inside ? Dims{n * h * row, row, h * row, 1} : Dims{h * n * row, n * row, row, 1};
  // Exactly as long as the last row needs, so that reading past it is an error the
  // sanitizers see.
  const int64_t used = shape.elements() == 0 ? 0 : b * h * n * row - gap;
  result.storage.push_back(random.floats(used));
  return {result.storage.back().data(), shape, strides};
}

Dims random_mask_shape(Random& random, const Dims& scores) {
  const auto keep = [&](int64_t extent) { return random.chance(0.6) ? extent : int64_t{1}; };
  const int64_t keys = random.chance(0.9) ? scores[3] : 1;
  if (random.chance(0.4)) return {scores[2], keys};
  return {keep(scores[0]), keep(scores[1]), keep(scores[2]), keys};
}

}  // namespace

std::vector<float> Random::floats(int64_t count, float low, float high) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(low, high);
  return values;
}

RandomCase random_case(uint64_t seed, const CaseLimits& limits) {
  Random random(seed);
  RandomCase result;
  const auto size = [&](int64_t largest) {
    // Sizes around a lane count, a tile and a block, and anything else.
    const int64_t near = random.pick<int64_t>({1, 4, 8, 16, 32, 48, 64, 96, 192, 384});
    const int64_t value = random.chance(0.5) ? near + random.integer(-1, 1)
                                             : random.integer(1, std::max<int64_t>(largest, 1));
    return std::clamp<int64_t>(value, 1, largest);
  };
  const int64_t batch = random.integer(1, 2);
  const int64_t kv_heads = random.integer(1, 3);
  const int64_t heads = kv_heads * random.pick<int64_t>({1, 1, 2, 3, 4});
  const int64_t queries = random.chance(0.02) ? 0 : size(limits.max_queries);
  const int64_t keys = random.chance(0.02) ? 0 : size(limits.max_keys);
  const int64_t width = size(limits.max_width);
  const int64_t value_width = random.chance(0.5) ? width : size(limits.max_width);

  result.q = random_tensor(random, {batch, heads, queries, width}, result);
  result.k = random_tensor(random, {batch, kv_heads, keys, width}, result);
  result.v = random_tensor(random, {batch, kv_heads, keys, value_width}, result);
  result.out_shape = {batch, heads, queries, value_width};
  result.lse_shape = {batch, heads, queries};
  result.weights_shape = {batch, heads, queries, keys};

  AttentionOptions& options = result.options;
  if (random.chance(0.3)) options.scale = random.pick({0.0F, -0.7F, 0.25F, 2.0F});
  switch (random.integer(0, 5)) {
    case 0:
      options.causal = Causal::top_left();
      break;
    case 1:
      options.causal = Causal::bottom_right();
      break;
    case 2:
      options.causal = Causal::at_offset(random.integer(-queries - 2, keys + 2));
      break;
    default:
      break;
  }
  if (random.chance(0.35)) {
    const Dims shape = random_mask_shape(random, result.weights_shape);
    std::vector<uint8_t> mask(static_cast<size_t>(shape.elements()));
    const double density = random.pick({0.0, 0.5, 0.9});
    for (uint8_t& allowed : mask) allowed = random.chance(density) ? 1 : 0;
    result.bytes.push_back(std::move(mask));
    options.mask = {result.bytes.back().data(), shape};
  }
  if (random.chance(0.35)) {
    const Dims shape = random_mask_shape(random, result.weights_shape);
    std::vector<float> bias = random.floats(shape.elements(), -2.0F, 2.0F);
    const double hidden = random.pick({0.0, 0.3, 1.0});
    for (float& value : bias) {
      if (random.chance(hidden)) value = random.chance(0.9) ? kNegInf : -3.4e38F;
    }
    result.storage.push_back(std::move(bias));
    options.bias = {result.storage.back().data(), shape};
  }
  result.description = "seed " + std::to_string(seed) + ", q " + result.q.shape.to_string() +
                       " strides " + result.q.strides.to_string() + ", k " +
                       result.k.shape.to_string() + ", v " + result.v.shape.to_string() +
                       ", causal " + std::to_string(static_cast<int>(options.causal.alignment)) +
                       " offset " + std::to_string(options.causal.offset) + ", mask " +
                       options.mask.shape.to_string() + ", bias " + options.bias.shape.to_string();
  return result;
}

}  // namespace multihead::testing
