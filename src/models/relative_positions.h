// Relative positions in buckets, as in T5 (arXiv:1910.10683, section 2.1) and MPNet: short
// distances have a bucket each, longer ones share buckets whose width grows with the distance.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace multihead::models {

// The bucket of a key at `distance` = key - query. With `both_sides` half of the buckets are for
// keys after the query; else these have the bucket of distance 0, and no query sees them. The
// logarithm is in float, as in transformers.
inline int64_t relative_bucket(int64_t distance, int64_t buckets, int64_t longest,
                               bool both_sides) {
  const int64_t own = both_sides ? buckets / 2 : buckets, exact = own / 2;
  const int64_t first = both_sides && distance > 0 ? own : 0;
  const int64_t far = both_sides ? std::abs(distance) : std::max<int64_t>(0, -distance);
  if (far < exact) return first + far;
  const float position =
      std::log(static_cast<float>(far) / static_cast<float>(exact)) /
      static_cast<float>(std::log(static_cast<double>(longest) / static_cast<double>(exact)));
  const auto bucket = exact + static_cast<int64_t>(position * static_cast<float>(own - exact));
  return first + std::min(bucket, own - 1);
}

// DeBERTa's bucket of distance = query - key, from -buckets to buckets: half of them have one
// distance each. The logarithm is in float, as in transformers.
inline int64_t signed_bucket(int64_t distance, int64_t buckets, int64_t longest) {
  const int64_t exact = buckets / 2, far = std::abs(distance);
  if (far <= exact) return distance;
  const auto middle = static_cast<float>(exact);
  const float position = std::log(static_cast<float>(far) / middle) /
                         std::log(static_cast<float>(longest - 1) / middle);
  const auto bucket =
      exact + static_cast<int64_t>(std::ceil(position * static_cast<float>(exact - 1)));
  return distance < 0 ? -bucket : bucket;
}

// bias (heads, tokens, before + tokens) of the table (buckets, heads), for queries that are the
// last `tokens` of all keys.
inline void fill_relative_bias(const float* table, int64_t buckets, int64_t longest, int64_t heads,
                               int64_t before, int64_t tokens, bool both_sides, float* bias) {
  const int64_t keys = before + tokens;
  for (int64_t distance = 1 - keys; distance < tokens; ++distance) {
    const float* const row =
        table + relative_bucket(distance, buckets, longest, both_sides) * heads;
    // Query i is key before + i.
    const int64_t first = std::max<int64_t>(0, -distance - before);
    const int64_t end = std::min(tokens, tokens - distance);
    for (int64_t h = 0; h < heads; ++h) {
      float* const map = bias + h * tokens * keys;
      for (int64_t query = first; query < end; ++query) {
        map[query * keys + before + query + distance] = row[h];
      }
    }
  }
}

}  // namespace multihead::models
