#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace multihead::mpi {
namespace {

using distributed::Layout;
using distributed::Method;

// The names are the same as in multihead-bench.
constexpr Shape kShapes[] = {{"tiny", 1, 4, 4, 32, 32, 16},
                             {"gpt2-1k", 1, 12, 12, 1024, 1024, 64},
                             {"llama3-2k", 1, 32, 8, 2048, 2048, 128},
                             {"long-8k", 1, 4, 4, 8192, 8192, 64},
                             {"llama3-kv8k", 1, 32, 8, 1, 8192, 128},
                             {"llama3-kv32k", 1, 32, 8, 1, 32768, 128}};

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(engine() >> 8U) * 0x1p-23F - 1.0F;
  return values;
}

// Selects rows of a tensor (B * H, N, width).
std::vector<float> rows_of_tensor(const std::vector<float>& whole, int64_t rows, int64_t width,
                                  const RowList& chosen) {
  std::vector<float> result;
  if (width == 0 || rows == 0) return result;
  const int64_t lists = static_cast<int64_t>(whole.size()) / rows / width;
  result.reserve(static_cast<size_t>(lists * width) * chosen.size());
  for (int64_t list = 0; list < lists; ++list) {
    for (const int64_t row : chosen) {
      const auto first = whole.begin() + (list * rows + row) * width;
      result.insert(result.end(), first, first + width);
    }
  }
  return result;
}

// The keys that each rank sees, computed pair by pair.
class SeenKeys {
 public:
  SeenKeys(const Shape& shape, const Visible& visible, const distributed::Sharding& sharding,
           int ranks)
      : ranks_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      keys_.push_back(rows_of(shape.keys, sharding.layout, ranks, rank));
      std::vector<bool>& seen = seen_.emplace_back(static_cast<size_t>(shape.keys));
      for (const int64_t query : rows_of(shape.queries, sharding.layout, ranks, rank)) {
        // A causal mask aligns the last query with the last key; otherwise the first query is at
        // the first key.
        const int64_t at = visible.causal ? query + shape.keys - shape.queries : query;
        const int64_t last = visible.causal ? at : shape.keys - 1;
        for (int64_t key = visible.left < 0 ? 0 : std::max<int64_t>(0, at - visible.left);
             key <= last; ++key) {
          seen[static_cast<size_t>(key)] = true;
        }
      }
    }
  }

  // Number of the owner's keys that at least one of the ranks first .. end - 1 (modulo the number
  // of ranks) sees.
  int64_t count(int owner, int first, int end) const {
    int64_t keys = 0;
    for (const int64_t key : keys_[static_cast<size_t>(owner)]) {
      bool any = false;
      for (int rank = first; rank < end; ++rank) {
        any = any || seen_[static_cast<size_t>(rank % ranks_)][static_cast<size_t>(key)];
      }
      keys += any ? 1 : 0;
    }
    return keys;
  }

 private:
  int ranks_;
  std::vector<RowList> keys_;            // held by each rank
  std::vector<std::vector<bool>> seen_;  // seen by each rank
};

}  // namespace

std::span<const Shape> shapes() { return kShapes; }

RowList all_rows(int64_t rows) {
  RowList result(static_cast<size_t>(rows));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

RowList rows_of(int64_t rows, Layout layout, int ranks, int rank) {
  RowList result;
  for (const distributed::RowRange& range : distributed::rows_of_rank(rows, layout, ranks, rank)) {
    for (int64_t row = range.first; row < range.end; ++row) result.push_back(row);
  }
  return result;
}

Problem::Problem(const Shape& shape)
    : shape_(shape),
      q_(random_floats(shape.batch * shape.heads * shape.queries * shape.width, 1)),
      k_(random_floats(shape.batch * shape.kv_heads * shape.keys * shape.width, 2)),
      v_(random_floats(shape.batch * shape.kv_heads * shape.keys * shape.width, 3)) {}

Problem::Shard Problem::shard(const RowList& queries, const RowList& keys) const {
  Shard shard{.q = rows_of_tensor(q_, shape_.queries, shape_.width, queries),
              .k = rows_of_tensor(k_, shape_.keys, shape_.width, keys),
              .v = rows_of_tensor(v_, shape_.keys, shape_.width, keys),
              .out = {},
              .q_shape = {shape_.batch, shape_.heads, std::ssize(queries), shape_.width},
              .k_shape = {shape_.batch, shape_.kv_heads, std::ssize(keys), shape_.width}};
  shard.out.resize(shard.q.size());
  return shard;
}

double largest_difference(const Shape& shape, const RowList& queries, const std::vector<float>& own,
                          const std::vector<float>& all) {
  const std::vector<float> expected = rows_of_tensor(all, shape.queries, shape.width, queries);
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference =
        std::abs(static_cast<double>(own[i]) - static_cast<double>(expected[i]));
    // Written so that a NaN becomes the largest difference.
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

AttentionOptions options_of(const Visible& visible) {
  return {.causal = visible.causal ? Causal::bottom_right() : Causal::none(),
          .window = {.left = visible.left}};
}

uint64_t bytes_sent(const Shape& shape, const Visible& visible,
                    const distributed::Sharding& sharding, int ranks, int rank) {
  if (ranks == 1) return 0;
  const auto rows = [&](int64_t all, int of) {
    return std::ssize(rows_of(all, sharding.layout, ranks, of));
  };
  const auto floats = [](int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); };
  const int64_t keys_and_values = 2 * shape.batch * shape.kv_heads * shape.width;
  const int others = ranks - 1;
  const SeenKeys seen(shape, visible, sharding, ranks);
  int64_t keys = 0;
  switch (sharding.method) {
    case Method::kRing:  // per step: keys of the held shard that ranks ahead see
      for (int step = 0; step < others; ++step) {
        keys += seen.count((rank - step + ranks) % ranks, rank + 1, rank + ranks - step);
      }
      return floats(keys_and_values * keys);
    case Method::kAllGather:
      for (int other = rank + 1; other < rank + ranks; ++other) {
        keys += seen.count(rank, other, other + 1);
      }
      return floats(keys_and_values * keys);
    case Method::kDecode:
      return floats(shape.batch * shape.heads * (shape.width + 1) * others * shape.queries);
    case Method::kHeads:
      break;
  }
  // First transfer: q, k and v of the heads that other ranks compute. Second transfer: outputs and
  // LSE of the rows that other ranks hold.
  const int64_t first = shape.kv_heads * rank / ranks, end = shape.kv_heads * (rank + 1) / ranks;
  const int64_t group = shape.heads / shape.kv_heads, own = end - first;
  const int64_t other_heads = shape.kv_heads - own;
  const int64_t there =
      other_heads * shape.width * (group * rows(shape.queries, rank) + 2 * rows(shape.keys, rank));
  const int64_t back =
      own * group * (shape.width + 1) * (shape.queries - rows(shape.queries, rank));
  return floats(shape.batch * (there + back));
}

}  // namespace multihead::mpi
