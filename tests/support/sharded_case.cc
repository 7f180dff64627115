#include "support/sharded_case.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace multihead::testing {
namespace {

// Copies rows of a mask or bias; an extent of 1 is shared by all queries.
template <class T>
TensorView<const T> score_rows(const TensorView<const T>& whole, int64_t queries,
                               const RowList& rows, std::vector<T>& storage) {
  if (!whole.given()) return whole;
  const int axis = whole.shape.rank() - 2;
  const bool shared = whole.shape[axis] == 1 && queries != 1;
  Dims shape = whole.shape;
  if (!shared) shape[axis] = static_cast<int64_t>(rows.size());
  storage.resize(static_cast<size_t>(shape.elements()));
  const Dims& from = whole.strides;
  const int64_t keys = shape[axis + 1];
  const int64_t outer = keys == 0 || shape[axis] == 0 ? 0 : shape.elements() / keys / shape[axis];
  const int64_t step = whole.shape[axis] * keys;  // cases are contiguous
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t row = 0; row < shape[axis]; ++row) {
      const int64_t source = shared ? row : rows[static_cast<size_t>(row)];
      for (int64_t key = 0; key < keys; ++key) {
        storage[static_cast<size_t>((o * shape[axis] + row) * keys + key)] =
            whole.data[o * step + source * from[axis] + key * from[axis + 1]];
      }
    }
  }
  return {storage.data(), shape};
}

std::span<const int32_t> positions(std::span<const int32_t> whole, int64_t all, const RowList& rows,
                                   RandomCase& result) {
  if (whole.empty()) return {};
  std::vector<int32_t> values;
  for (int64_t before = 0; before < static_cast<int64_t>(whole.size()); before += all) {
    for (const int64_t row : rows) values.push_back(whole[static_cast<size_t>(before + row)]);
  }
  result.integers.push_back(std::move(values));
  return result.integers.back();
}

}  // namespace

RowList rows_of(const std::vector<distributed::RowRange>& ranges) {
  RowList rows;
  for (const distributed::RowRange& range : ranges) {
    for (int64_t row = range.first; row < range.end; ++row) rows.push_back(row);
  }
  return rows;
}

Divided divide(Random& random, int64_t queries, int64_t keys, distributed::Method method,
               int ranks) {
  using distributed::Layout;
  using distributed::Method;
  const bool zigzag = method != Method::kDecode && random.chance(0.5);
  Divided result;
  result.sharding = {.method = method,
                     .layout = zigzag ? Layout::kZigzag : Layout::kContiguous,
                     .queries = queries,
                     .keys = keys};
  const auto rows_of_ranks = [&](int64_t rows) {
    std::vector<int64_t> cuts{0, rows};
    for (int i = 1; i < ranks; ++i) cuts.push_back(random.integer(0, rows));
    std::sort(cuts.begin(), cuts.end());
    std::vector<RowList> lists;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto two = distributed::rows_of_rank(rows, Layout::kZigzag, ranks, rank);
      const auto r = static_cast<size_t>(rank);
      lists.push_back(zigzag ? rows_of({two[0], two[1]}) : rows_of({{cuts[r], cuts[r + 1]}}));
    }
    return lists;
  };
  result.queries = rows_of_ranks(queries);
  result.keys = rows_of_ranks(keys);
  if (method == Method::kDecode) {
    std::fill(result.queries.begin(), result.queries.end(), rows_of({{0, queries}}));
  }
  return result;
}

void raise_lowest_biases(RandomCase& c) {
  for (std::vector<float>& values : c.storage) {
    if (values.data() != c.options.bias.data) continue;
    for (float& value : values) {
      if (std::isfinite(value)) value = std::max(value, -5.0F);
    }
  }
}

void share_along_queries(RandomCase& c) {
  const auto drop = [&](auto& view) {
    if (!view.given()) return;
    // If there is a single query, an extent of 1 is not shared: ranks without a query have extent
    // 0.
    if (view.shape[view.shape.rank() - 2] != 1 || c.q.shape[2] == 1) view = {};
  };
  drop(c.options.mask);
  drop(c.options.bias);
}

ConstAnyTensor shard_of(const ConstAnyTensor& whole, const RowList& rows, RandomCase& result) {
  Dims shape = whole.shape;
  shape[2] = static_cast<int64_t>(rows.size());
  const int64_t bytes = bytes_of(whole.dtype), width = shape[3];
  std::vector<uint8_t> storage(static_cast<size_t>(shape.elements() * bytes + 1));
  uint8_t* to = storage.data();
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t h = 0; h < shape[1]; ++h) {
      for (const int64_t row : rows) {
        if (width == 0) continue;
        const int64_t at = b * whole.strides[0] + h * whole.strides[1] + row * whole.strides[2];
        std::memcpy(to, static_cast<const char*>(whole.data) + at * bytes,
                    static_cast<size_t>(width * bytes));
        to += width * bytes;
      }
    }
  }
  result.bytes.push_back(std::move(storage));
  return {static_cast<const void*>(result.bytes.back().data()), whole.dtype, shape,
          contiguous_strides(shape)};
}

RandomCase shard_of(const RandomCase& whole, const RowList& queries, const RowList& keys) {
  RandomCase result;
  result.q = shard_of(whole.q, queries, result);
  result.k = shard_of(whole.k, keys, result);
  result.v = shard_of(whole.v, keys, result);
  result.out_type = whole.out_type;
  result.options = whole.options;
  result.description = whole.description;
  const int64_t all_queries = whole.q.shape[2], all_keys = whole.k.shape[2];
  AttentionOptions& options = result.options;
  result.bytes.emplace_back();
  options.mask = score_rows(options.mask, all_queries, queries, result.bytes.back());
  result.storage.emplace_back();
  options.bias = score_rows(options.bias, all_queries, queries, result.storage.back());
  options.rope.q_positions = positions(options.rope.q_positions, all_queries, queries, result);
  options.rope.k_positions = positions(options.rope.k_positions, all_keys, keys, result);
  const Dims& q = result.q.shape;
  result.out_shape = {q[0], q[1], q[2], result.v.shape[3]};
  result.lse_shape = {q[0], q[1], q[2]};
  result.weights_shape = {q[0], q[1], q[2], all_keys};
  return result;
}

}  // namespace multihead::testing
