// Random caches, and options of decoding over them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "multihead/attention.h"
#include "multihead/cuda.h"
#include "multihead/kv_cache.h"
#include "rules/element.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {

using multihead::testing::Random;

// Keys or values of a cache, in its layout and type, and the same numbers as floats (B, H_kv, N,
// d).
struct Store {
  std::vector<std::byte> rows;
  std::vector<float> scales;
  std::vector<float> dense;
};

// A random cache in host memory. Rows without a token hold NaN.
class CacheCase {
 public:
  explicit CacheCase(Random& random) {
    KVCacheConfig& config = view_.config;
    config.layout = random.pick({KVCacheConfig::Layout::kContiguous, KVCacheConfig::Layout::kRing,
                                 KVCacheConfig::Layout::kPaged});
    config.type = random.pick({DType::kF32, DType::kF16, DType::kBF16, DType::kInt8});
    config.batch = random.integer(1, 3);
    config.num_kv_heads = random.integer(1, 2);
    config.head_dim = random.integer(1, 40);
    config.values_in_keys = random.chance(0.2);
    config.value_dim =
        config.values_in_keys ? random.integer(1, config.head_dim) : random.integer(1, 40);
    // The kernel of mma/decode.cu needs widths that are multiples of 8.
    if (random.chance(0.5)) {
      config.head_dim = (config.head_dim + 7) / 8 * 8;
      config.value_dim = (config.value_dim + 7) / 8 * 8;
    }
    config.capacity = random.integer(1, 300);
    config.page_size = random.integer(1, 20);
    const bool is_ring = config.layout == KVCacheConfig::Layout::kRing;
    for (int64_t b = 0; b < config.batch; ++b) {
      const int64_t length = random.integer(0, config.capacity * (is_ring ? 2 : 1));
      lengths_.push_back(static_cast<int32_t>(length));
      firsts_.push_back(
          static_cast<int32_t>(is_ring ? std::max<int64_t>(0, length - config.capacity) : 0));
    }
    view_.max_length = *std::max_element(lengths_.begin(), lengths_.end());
    if (config.layout == KVCacheConfig::Layout::kPaged) take_pages(random);
    keys_ = store(random, config.head_dim);
    view_.keys = keys_.rows.data();
    view_.key_scales = keys_.scales.data();
    if (config.values_in_keys) {
      values_.dense = first_columns(keys_.dense, config.head_dim, config.value_dim);
    } else {
      values_ = store(random, config.value_dim);
      view_.values = values_.rows.data();
      view_.value_scales = values_.scales.data();
    }
    view_.lengths = lengths_;
    view_.firsts = firsts_;
    view_.page_table = page_table_;
  }
  CacheCase(const CacheCase&) = delete;
  CacheCase& operator=(const CacheCase&) = delete;

  const CacheView& view() const { return view_; }
  int64_t length(int64_t batch) const { return lengths_[static_cast<size_t>(batch)]; }
  int64_t first(int64_t batch) const { return firsts_[static_cast<size_t>(batch)]; }
  // The tokens of one entry: (1, H_kv, length, width).
  ConstAnyTensor keys_of(int64_t batch) const {
    return rows_of(keys_, batch, view_.config.head_dim);
  }
  ConstAnyTensor values_of(int64_t batch) const {
    return rows_of(values_, batch, view_.config.value_dim);
  }
  // Calls visit(array) for each array that the view points to.
  template <class Visit>
  void for_each_array(const Visit& visit) {
    for (Store* const store : {&keys_, &values_}) {
      visit(store->rows);
      visit(store->scales);
    }
    visit(lengths_);
    visit(firsts_);
    visit(page_table_);
  }

 private:
  // Assigns pages in random order. The table leaves out pages that no token needs.
  void take_pages(Random& random) {
    KVCacheConfig& config = view_.config;
    const int64_t of_entry = (config.capacity + config.page_size - 1) / config.page_size;
    config.pages = of_entry * config.batch + random.integer(0, 3);
    std::vector<int32_t> free(static_cast<size_t>(config.pages));
    std::iota(free.begin(), free.end(), 0);
    for (size_t i = free.size(); i > 1; --i) {
      std::swap(free[i - 1],
                free[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
    }
    for (int64_t b = 0; b < config.batch; ++b) {
      const int64_t used = (length(b) + config.page_size - 1) / config.page_size;
      for (int64_t page = 0; page < of_entry; ++page) {
        page_table_.push_back(page < used ? free.back() : -1);
        if (page < used) free.pop_back();
      }
    }
  }

  // The row where KVCache stores token j.
  int64_t row_of(int64_t batch, int64_t head, int64_t token) const {
    const KVCacheConfig& config = view_.config;
    if (config.layout != KVCacheConfig::Layout::kPaged) {
      return (batch * config.num_kv_heads + head) * config.capacity + token % config.capacity;
    }
    const int64_t of_entry = (config.capacity + config.page_size - 1) / config.page_size;
    const int64_t page =
        page_table_[static_cast<size_t>(batch * of_entry + token / config.page_size)];
    return (page * config.page_size + token % config.page_size) * config.num_kv_heads + head;
  }

  Store store(Random& random, int64_t width) const {
    const KVCacheConfig& config = view_.config;
    const bool is_paged = config.layout == KVCacheConfig::Layout::kPaged;
    const int64_t rows = config.num_kv_heads * (is_paged ? config.pages * config.page_size
                                                         : config.batch * config.capacity);
    const auto count = static_cast<size_t>(rows * width);
    Store result;
    result.rows.assign(count * static_cast<size_t>(bytes_of(config.type)), std::byte{0xff});
    if (config.type == DType::kInt8) {
      result.scales.assign(static_cast<size_t>(rows), std::numeric_limits<float>::quiet_NaN());
    }
    result.dense.assign(
        static_cast<size_t>(config.batch * config.num_kv_heads * view_.max_length * width), 0.0F);
    for (int64_t b = 0; b < config.batch; ++b) {
      for (int64_t h = 0; h < config.num_kv_heads; ++h) {
        for (int64_t token = first(b); token < length(b); ++token) {
          const int64_t row = row_of(b, h, token);
          const float scale = random.uniform(0.001F, 0.008F);
          if (config.type == DType::kInt8) result.scales[static_cast<size_t>(row)] = scale;
          for (int64_t c = 0; c < width; ++c) {
            const int64_t to =
                ((b * config.num_kv_heads + h) * view_.max_length + token) * width + c;
            result.dense[static_cast<size_t>(to)] =
                put(result.rows.data(), row * width + c, random.uniform(-1.0F, 1.0F), scale);
          }
        }
      }
    }
    return result;
  }

  // Stores a number in the cache's type, and returns the stored value as float.
  float put(std::byte* rows, int64_t at, float value, float scale) const {
    switch (view_.config.type) {
      case DType::kF16:
      case DType::kBF16: {
        const DType type = view_.config.type;
        reinterpret_cast<uint16_t*>(rows)[at] = multihead::testing::half_bits(value, type);
        return type == DType::kF16 ? rules::to_float(rules::to_float16(value))
                                   : rules::to_float(rules::to_bfloat16(value));
      }
      case DType::kInt8: {
        const auto number = static_cast<int8_t>(std::lround(value * 127.0F));
        reinterpret_cast<int8_t*>(rows)[at] = number;
        return static_cast<float>(number) * scale;
      }
      default:
        reinterpret_cast<float*>(rows)[at] = value;
        return value;
    }
  }

  static std::vector<float> first_columns(const std::vector<float>& from, int64_t width,
                                          int64_t columns) {
    std::vector<float> result;
    for (size_t row = 0; row < from.size(); row += static_cast<size_t>(width)) {
      const auto begin = from.begin() + static_cast<int64_t>(row);
      result.insert(result.end(), begin, begin + columns);
    }
    return result;
  }

  ConstAnyTensor rows_of(const Store& store, int64_t batch, int64_t width) const {
    const int64_t heads = view_.config.num_kv_heads, head = view_.max_length * width;
    return {store.dense.data() + batch * heads * head,
            DType::kF32,
            {1, heads, length(batch), width},
            {heads * head, head, width, 1}};
  }

  CacheView view_;
  Store keys_, values_;
  std::vector<int32_t> lengths_, firsts_, page_table_;
};

// Random decoding options that need no array of the cache's length.
inline AttentionOptions random_decode_options(Random& random, int64_t heads,
                                              std::vector<float>& slopes,
                                              std::vector<float>& sinks) {
  AttentionOptions options;
  if (random.chance(0.5)) options.causal = Causal::bottom_right();
  if (random.chance(0.3)) {
    options.window.left = random.integer(0, 50);
    options.window.right = random.integer(-1, 3);
    options.window.alignment = Alignment::kBottomRight;
  }
  if (random.chance(0.3)) options.softcap = random.uniform(0.5F, 3.0F);
  if (random.chance(0.3)) options.scale = random.uniform(-1.0F, 1.0F);
  if (random.chance(0.3)) {
    slopes.resize(static_cast<size_t>(heads));
    for (float& slope : slopes) slope = random.uniform(0.0F, 0.1F);
    options.alibi_slopes = slopes;
  }
  if (random.chance(0.3)) {
    sinks.resize(static_cast<size_t>(heads));
    for (float& sink : sinks) sink = random.uniform(-2.0F, 2.0F);
    options.sinks = sinks;
  }
  return options;
}

}  // namespace multihead::cuda::testing
