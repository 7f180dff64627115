// append_rows() compared with a loop over single tokens, heads and numbers: all bytes of a cache,
// in every layout and type, with any number of threads.
#include "engine/cache/cached_rows.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cpu/elementwise/elementwise.h"
#include "multihead/context.h"
#include "support/random_case.h"

namespace multihead::engine {
namespace {

using testing::Random;
using Layout = KVCacheConfig::Layout;

struct Memory {
  std::vector<std::byte> rows;
  std::vector<float> scales;

  friend bool operator==(const Memory&, const Memory&) = default;
};

// A cache's memory and a call that adds tokens to it.
struct Case {
  KVCacheConfig config;
  int64_t first_head = 0, end_head = 0, tokens = 0;
  std::vector<int32_t> lengths, counts, page_table;
  std::vector<float> k_data, v_data;
  ConstTensor k, v;

  int64_t heads() const { return end_head - first_head; }
  int64_t count(int64_t b) const {
    return counts.empty() ? tokens : counts[static_cast<size_t>(b)];
  }

  int64_t slot_of(int64_t b, int64_t position) const {
    if (config.layout == Layout::kRing) return position % config.capacity;
    if (config.layout == Layout::kContiguous) return position;
    const int64_t page =
        page_table[static_cast<size_t>(b * pages_per_entry(config) + position / config.page_size)];
    return page * config.page_size + position % config.page_size;
  }

  int64_t row_of(int64_t b, int64_t head, int64_t slot) const {
    if (config.layout == Layout::kPaged) return slot * heads() + head;
    return (b * heads() + head) * config.capacity + slot;
  }

  Memory empty(int64_t width) const {
    const int64_t rows = config.layout == Layout::kPaged ? heads() * config.pages * config.page_size
                                                         : config.batch * heads() * config.capacity;
    return {std::vector<std::byte>(static_cast<size_t>(rows * width * bytes_of(config.type)),
                                   std::byte{0xAB}),
            std::vector<float>(static_cast<size_t>(rows), -7.0F)};
  }

  void write_plainly(const ConstTensor& from, int64_t width, Memory& to) const {
    for (int64_t b = 0; b < config.batch; ++b) {
      for (int64_t n = 0; n < count(b); ++n) {
        for (int64_t h = first_head; h < end_head; ++h) {
          const int64_t slot = slot_of(b, lengths[static_cast<size_t>(b)] + n);
          const int64_t row = row_of(b, h - first_head, slot);
          cpu::convert_rows(
              {.from = from.data + b * from.strides[0] + h * from.strides[1] + n * from.strides[2],
               .from_type = DType::kF32,
               .from_stride = 0,
               .to = to.rows.data() + row * width * bytes_of(config.type),
               .to_type = config.type,
               .to_stride = 0,
               .scales = to.scales.data() + row,
               .scale_stride = 0,
               .rows = 1,
               .width = width});
        }
      }
    }
  }
};

// (B, H, n, width), contiguous, or with the tokens first and gaps between them.
ConstTensor tensor_of(Random& random, const Dims& shape, std::vector<float>& data) {
  const int64_t gap = random.integer(0, 3);
  const bool tokens_first = random.chance(0.5);
  const int64_t width = shape[3] + gap;
  const Dims strides = tokens_first ? Dims{shape[1] * shape[2] * width, width, shape[1] * width, 1}
                                    : Dims{shape[1] * shape[2] * width, shape[2] * width, width, 1};
  data = random.floats(shape[0] * shape[1] * shape[2] * width);
  return {data.data(), shape, strides};
}

// With `many`, the call is large enough for several threads.
Case random_case(uint64_t seed, bool many) {
  Random random(seed);
  Case c;
  c.config = {.batch = random.integer(1, many ? 3 : 4),
              .num_kv_heads = random.integer(1, 5),
              .head_dim = random.integer(1, many ? 130 : 40),
              .value_dim = random.integer(1, many ? 130 : 40),
              .capacity = random.integer(1, many ? 700 : 30),
              .layout = random.pick({Layout::kContiguous, Layout::kRing, Layout::kPaged}),
              .type = random.pick({DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}),
              .page_size = random.integer(1, 9)};
  const KVCacheConfig& config = c.config;
  // The heads of one member of a team, or all.
  c.first_head = random.chance(0.3) ? random.integer(0, config.num_kv_heads - 1) : 0;
  c.end_head = random.integer(c.first_head + 1, config.num_kv_heads);
  const bool ring = config.layout == Layout::kRing;
  c.tokens = random.chance(0.3) ? 1 : random.integer(0, (ring ? 3 : 1) * config.capacity);
  const auto batch = static_cast<size_t>(config.batch);
  for (size_t b = 0; b < batch; ++b) {
    const int64_t most = ring ? 4 * config.capacity : config.capacity - c.tokens;
    c.lengths.push_back(static_cast<int32_t>(random.integer(0, most)));
  }
  if (random.chance(0.5)) {
    for (size_t b = 0; b < batch; ++b) {
      c.counts.push_back(static_cast<int32_t>(random.integer(0, c.tokens)));
    }
  }
  if (config.layout == Layout::kPaged) {
    // Each entry's pages in any order.
    const int64_t pages = config.batch * pages_per_entry(config);
    c.config.pages = pages;
    c.page_table.resize(static_cast<size_t>(pages));
    std::iota(c.page_table.begin(), c.page_table.end(), 0);
    for (int64_t i = pages; i-- > 1;) {
      std::swap(c.page_table[static_cast<size_t>(i)],
                c.page_table[static_cast<size_t>(random.integer(0, i))]);
    }
  }
  c.k = tensor_of(random, {config.batch, config.num_kv_heads, c.tokens, config.head_dim}, c.k_data);
  c.v =
      tensor_of(random, {config.batch, config.num_kv_heads, c.tokens, config.value_dim}, c.v_data);
  return c;
}

void expect_equals_plain_loop(const Case& c) {
  const KVCacheConfig& config = c.config;
  Memory keys = c.empty(config.head_dim), values = c.empty(config.value_dim);
  c.write_plainly(c.k, config.head_dim, keys);
  c.write_plainly(c.v, config.value_dim, values);
  for (const int threads : {1, 2, 5}) {
    const Context context(threads);
    Memory got_keys = c.empty(config.head_dim), got_values = c.empty(config.value_dim);
    const auto rows_of = [](const ConstTensor& from, Memory& to, int64_t width) {
      return AppendedRows{from, {.rows = to.rows.data(), .scales = to.scales.data()}, width};
    };
    const AppendedRows rows[] = {rows_of(c.k, got_keys, config.head_dim),
                                 rows_of(c.v, got_values, config.value_dim)};
    append_rows({.config = config,
                 .first_head = c.first_head,
                 .end_head = c.end_head,
                 .lengths = c.lengths,
                 .counts = c.counts,
                 .page_table = c.page_table.data(),
                 .rows = rows},
                &context);
    ASSERT_EQ(got_keys, keys) << threads << " threads";
    ASSERT_EQ(got_values, values) << threads << " threads";
  }
}

TEST(Append, EveryLayoutTypeAndShape) {
  for (const uint64_t seed : testing::random_seeds(600)) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "seed " + std::to_string(seed));
    expect_equals_plain_loop(random_case(seed, false));
    if (HasFatalFailure()) return;
  }
}

TEST(Append, ManyTokensOnSeveralThreads) {
  for (const uint64_t seed : testing::random_seeds(40)) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "seed " + std::to_string(seed));
    expect_equals_plain_loop(random_case(seed, true));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::engine
