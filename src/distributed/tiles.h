// Tiles of the score matrix: some queries of this rank times the keys of one chunk, of one
// sequence. Each is planned as a shard of its sequence, by its coordinates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "distributed/call.h"
#include "distributed/shard_memory.h"
#include "engine/attention/plan.h"

namespace multihead::distributed {

// The heads that a rank computes.
struct Heads {
  int64_t first = 0, kv_first = 0, count = 0, kv_count = 0;
};

inline Heads all_heads(const Call& call) {
  return {.first = 0, .kv_first = 0, .count = call.shape.heads, .kv_count = call.shape.kv_heads};
}

struct Tile {
  Segment queries, keys;
};

// Returns the tiles of these queries and one chunk of keys. Their queries do not overlap.
std::vector<Tile> tiles_of(std::span<const Segment> queries, const Chunk& keys,
                           std::span<const int32_t> cu_k);

// Returns the options for the rank's heads, without sinks, QK-norm and RoPE.
AttentionOptions head_options(const Call& call, const Heads& heads);

// Restricts these options to one tile and sets its place in the sequence.
AttentionOptions tile_options(const Call& call, const AttentionOptions& head_options,
                              const Tile& tile);
// Restricts a tensor of scores, such as the gradient of a bias, to the rank's heads, rows and keys;
// axes of extent 1 are shared.
Tensor tile_scores(const Tensor& scores, const Heads& heads, const Tile& tile);
engine::Shard tile_shard(const Call& call, const Heads& heads, const Tile& tile);
engine::AttentionShape tile_shape(const Call& call, const Heads& heads, const Tile& tile);

// True if any query sees a key.
bool sees_anything(const rules::AttentionParams& params);

// Sets the result for no keys: outputs 0, log-sum-exp -inf.
void clear(const PartialResult& result);

// Queries of some heads and one chunk of the keys; k and v hold the shard of a rank.
struct TileOperands {
  Heads heads;
  ConstAnyTensor q, k, v;  // (B, H, n, d)
  std::span<const Segment> queries;
  Chunk keys;

  // All heads of a rank's own queries.
  static TileOperands of(const OwnQueries& queries, const ConstAnyTensor& k,
                         const ConstAnyTensor& v, const Chunk& keys) {
    return {all_heads(queries.task.call), queries.q, k, v, queries.segments, keys};
  }
};
// Computes the attention of these queries to these keys, and merges it into `total`. `part` is
// scratch of the same shape as `total`. Transfers continue between tiles.
Status add_attention(const Task& task, const TileOperands& operands, const PartialResult& part,
                     const PartialResult& total);

}  // namespace multihead::distributed
