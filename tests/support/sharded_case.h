// Copies the rows of one rank out of a random call.
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
  std::vector<RowList> queries, keys;  // for each rank

  int ranks() const { return static_cast<int>(queries.size()); }
};

// Divides a problem in a layout that the method accepts, at random places.
Divided divide(Random& random, int64_t queries, int64_t keys, distributed::Method method,
               int ranks);

// Raises very low finite biases: an LSE in f32 would be the same for any number of keys with them.
void raise_lowest_biases(RandomCase& c);

// Drops masks and biases that kHeads refuses.
void share_along_queries(RandomCase& c);

// Copies rows of (B, H, N, d), contiguous, into storage of `result`.
ConstAnyTensor shard_of(const ConstAnyTensor& whole, const RowList& rows, RandomCase& result);

// Returns q, k, v and options of the rank with these queries and keys. Refers to `whole`, which
// must outlive it.
RandomCase shard_of(const RandomCase& whole, const RowList& queries, const RowList& keys);

}  // namespace multihead::testing
