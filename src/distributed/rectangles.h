// Rectangles of the score matrix: some queries of this rank times the keys of one chunk, of one
// sequence. Each is planned as a shard of its sequence, by its coordinates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "distributed/call.h"
#include "distributed/transport.h"
#include "engine/attention/plan.h"

namespace multihead::distributed {

// The heads that a rank computes.
struct Heads {
  int64_t first = 0, kv_first = 0, count = 0, kv_count = 0;
};

inline Heads all_heads(const Call& call) {
  return {.first = 0, .kv_first = 0, .count = call.shape.heads, .kv_count = call.shape.kv_heads};
}

struct Rectangle {
  Segment queries, keys;
};

// Returns the rectangles of these queries and one chunk of keys. Their queries do not overlap.
std::vector<Rectangle> rectangles_of(std::span<const Segment> queries, const Chunk& keys,
                                     std::span<const int32_t> cu_k);

// Returns the options for the rank's heads, without sinks, QK-norm and RoPE.
AttentionOptions options_of_heads(const Call& call, const Heads& heads);

// Restricts these options to one rectangle and sets its place in the sequence.
AttentionOptions options_of(const Call& call, const AttentionOptions& of_heads,
                            const Rectangle& rectangle);
// Restricts a tensor of scores, such as the gradient of a bias, to the rank's heads, rows and keys;
// axes of extent 1 are shared.
Tensor scores_of(const Tensor& scores, const Heads& heads, const Rectangle& rectangle);
engine::Shard shard_of(const Call& call, const Heads& heads, const Rectangle& rectangle);
engine::AttentionShape shape_of(const Call& call, const Heads& heads, const Rectangle& rectangle);

// Outputs of rows over the keys so far, normalized by their log-sum-exp.
struct PartialResult {
  Tensor out;  // (B, H, n, d_v)
  Tensor lse;  // (B, H, n)
};

// Sets the result for no keys: outputs 0, log-sum-exp -inf.
void clear(const PartialResult& result);

// Merges `b` into `a`, whose result then covers the keys of both. Strides of b may be 0.
void merge(const PartialResult& a, const ConstTensor& b_out, const ConstTensor& b_lse,
           Context& context);

// Computes attention of q (B, H, n, d) to one chunk of the keys, and merges it into `total`. k and
// v hold the shard of a rank. `part` is scratch of the same shape as `total`. Transfers continue
// between tiles.
struct ForwardOperands {
  ConstAnyTensor q, k, v;
  std::span<const Segment> queries;
  Chunk keys;
};
Status add_attention(const Call& call, const Heads& heads, const AttentionOptions& of_heads,
                     const ForwardOperands& operands, const PartialResult& part,
                     const PartialResult& total, Transport& transport, Context& context);

}  // namespace multihead::distributed
