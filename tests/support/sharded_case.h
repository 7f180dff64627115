// The rows of one rank of a random call, copied out of it.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/distributed.h"
#include "support/random_case.h"

namespace multihead::testing {

// Rows of a sequence, in the order in which a rank holds them.
using RowList = std::vector<int64_t>;

RowList rows_of(const std::vector<distributed::RowRange>& ranges);

// A problem divided among ranks.
struct Divided {
  distributed::Sharding sharding;
  std::vector<RowList> queries, keys;  // of each rank

  int ranks() const { return static_cast<int>(queries.size()); }
};

// In a layout that the method takes, at random places.
Divided divide(Random& random, int64_t queries, int64_t keys, distributed::Method method,
               int ranks);

// Raises finite biases that are so low that a log-sum-exp in f32 does not tell how many keys share
// them.
void raise_lowest_biases(RandomCase& c);

// Drops masks and biases that kHeads refuses.
void share_along_queries(RandomCase& c);

// Rows of (B, H, N, d), contiguous, in storage of `result`.
ConstAnyTensor shard_of(const ConstAnyTensor& whole, const RowList& rows, RandomCase& result);

// q, k, v and options of the rank with these queries and keys. Lives as long as `whole`.
RandomCase shard_of(const RandomCase& whole, const RowList& queries, const RowList& keys);

}  // namespace multihead::testing
