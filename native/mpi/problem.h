// The problem that multihead-mpi divides. Every rank generates the same random numbers and takes
// its own rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/distributed.h"

namespace multihead::mpi {

struct Shape {
  const char* name;
  int64_t batch, heads, kv_heads, queries, keys, width;
};
std::span<const Shape> shapes();

// Row indices of one rank, in its order, or of all ranks.
using RowList = std::vector<int64_t>;
RowList all_rows(int64_t rows);
RowList rows_of(int64_t rows, distributed::Layout layout, int ranks, int rank);

class Problem {
 public:
  explicit Problem(const Shape& shape);

  // The rows of q, k and v that a rank holds.
  struct Shard {
    std::vector<float> q, k, v, out;
    Dims q_shape, k_shape;
  };
  Shard shard(const RowList& queries, const RowList& keys) const;

 private:
  Shape shape_;
  std::vector<float> q_, k_, v_;
};

// Largest difference of a rank's outputs from the same rows of `all`.
double largest_difference(const Shape& shape, const RowList& queries, const std::vector<float>& own,
                          const std::vector<float>& all);

// Which keys each query sees.
struct Visible {
  bool causal = false;
  int64_t left = -1;  // number of earlier tokens that a query sees; -1: all
};
AttentionOptions options_of(const Visible& visible);

// Bytes that a rank sends in a call, without the exchange by which the ranks agree on the call.
uint64_t bytes_sent(const Shape& shape, const Visible& visible,
                    const distributed::Sharding& sharding, int ranks, int rank);

}  // namespace multihead::mpi
