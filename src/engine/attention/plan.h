// Turns a checked call into parameters and jobs: selects the path, divides the call into jobs and
// resolves every default.
//
// run() makes three further choices that do not change a bit of the results: it divides the blocks
// for the context's threads (blocks_for_threads()), limits the threads to the number that the
// operations are worth, and gives each member of a team its heads. Before a plan runs again on
// other data, call set_queries(), set_keys(), set_values() and follow_lengths().
#pragma once

#include <cstdint>
#include <optional>

#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/runtime/path_choice.h"
#include "multihead/attention_backward.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"
#include "rules/geometry.h"
#include "rules/shared.h"

namespace multihead::engine {

struct AttentionPlan : PathChoice {
  rules::AttentionParams params;
  uint64_t scratch_bytes;  // per thread
  uint64_t partial_bytes;  // with kDecode: size of one head's result in one split
  double operations;       // upper bound of multiplications and additions
  // True for attention_scores(), which does not change Context::last_kernel().
  bool scores_alone = false;
  // True if blocks copy V only when its rows do not start at cache lines; see set_values().
  bool copies_split_lines = false;

  // With kDecode, decoding computes out and lse, and a second pass in blocks computes the captures.
  // So a capture does not change a bit of the output.
  bool captures_beside_decode() const {
    return path == Path::kDecode && params.captures_anything();
  }
};

// q, k and v, in tensors or in a cache.
struct AttentionInputs {
  rules::StoredRows q, k, v;
  const int32_t* firsts = nullptr;   // (B): first key that exists; null for 0
  const int32_t* lengths = nullptr;  // (B): replaces options.kv_lengths unless null
  bool packed = false;               // one sequence of a varlen call: never kDecode
};

// Describes the whole problem if a call computes only a shard.
struct Shard {
  rules::Coordinates first;
  int64_t queries, keys;  // of the whole problem
};

MULTIHEAD_SHARED rules::StoredRows stored_rows(const ConstAnyTensor& tensor);

// Returns the parameters of a call with every default resolved, for all backends. Reads no lengths.
MULTIHEAD_SHARED rules::AttentionParams attention_params(const AttentionInputs& inputs,
                                                         const AttentionShape& shape,
                                                         const AttentionOptions& options,
                                                         const AttentionOutputs& outputs,
                                                         const Shard* shard = nullptr);

MULTIHEAD_SHARED AttentionPlan plan_attention(const AttentionInputs& inputs,
                                              const AttentionShape& shape,
                                              const AttentionOptions& options,
                                              const AttentionOutputs& outputs,
                                              const Shard* shard = nullptr);

// Splits the keys again: the lengths that the plan points to may have changed.
void follow_lengths(AttentionPlan& plan);

// Returns the plan's blocks, divided further for `threads` threads if that changes no bit, see
// cut_for_threads().
rules::BlockGeometry blocks_for_threads(const AttentionPlan& plan, int threads);

// A call of attention(): its plan, and the QK-norm and RoPE of q and k that come first.
struct PlannedCall {
  AttentionPlan plan;
  std::optional<InputTransforms> transforms;

  void set_queries(const void* data) {
    (transforms ? transforms->q.data : plan.params.q.data) = data;
  }
  void set_keys(const void* data) { (transforms ? transforms->k.data : plan.params.k.data) = data; }
  // Decides again if blocks copy V, because that depends on V's address. The results do not change.
  void set_values(const void* data);
};

PlannedCall plan_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                      const AttentionShape& shape, const AttentionOptions& options,
                      const AttentionOutputs& outputs, bool packed = false);

// Plans attention_scores(): one capture; only the scores of its rows are computed.
PlannedCall plan_scores_call(const ConstAnyTensor& q, const ConstAnyTensor& k,
                             const AttentionShape& shape, const AttentionOptions& options,
                             const ScoreCapture& capture);

// Position of one part of attention_backward() in the whole call: its first batch entry and query
// head. The part has its own shapes and options.
struct BackwardPart {
  int64_t first_batch = 0, first_head = 0;
  // Number of pairs (batch entry, key/value head) in the whole call; pairs that share a gradient of
  // the bias count as one. 0 if the part is the whole call.
  int64_t jobs = 0;
};

// A call of attention_backward().
struct BackwardPlan {
  rules::BackwardParams params;
  rules::BackwardGeometry geometry;
  std::optional<InputTransforms> transforms;
  uint64_t scratch_bytes;  // per thread
  double operations;       // upper bound of multiplications and additions

  int64_t jobs() const { return geometry.jobs; }

  // Elements of params.query_turns; 0 if no two jobs add to the same d_q.
  uint64_t query_turns() const {
    if (jobs() == 0 || geometry.chunks <= 1 || params.d_q.data == nullptr) return 0;
    const rules::AttentionParams& p = params.forward;
    return static_cast<uint64_t>(p.batch * p.kv_heads * geometry.blocks.row_parts);
  }
  // Elements of params.key_turns; 0 if no two jobs add to the same d_k and d_v.
  uint64_t key_turns() const {
    if (jobs() == 0 || geometry.row_jobs <= 1) return 0;
    if (params.d_k.data == nullptr && params.d_v.data == nullptr) return 0;
    const rules::AttentionParams& p = params.forward;
    return static_cast<uint64_t>(p.batch * p.kv_heads * geometry.chunks);
  }
};
// Returns the parameters of a backward call, without the arrays that jobs share.
MULTIHEAD_SHARED rules::BackwardParams backward_params(
    const AttentionInputs& inputs, const AttentionShape& shape, const AttentionOptions& options,
    const AttentionResults& results, const ConstAnyTensor& d_out,
    const AttentionGradients& gradients, const Shard* shard = nullptr);

MULTIHEAD_SHARED BackwardPlan plan_backward(
    const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
    const AttentionShape& shape, const AttentionOptions& options, const AttentionResults& results,
    const ConstAnyTensor& d_out, const AttentionGradients& gradients, const BackwardPart& part = {},
    const Shard* shard = nullptr);

}  // namespace multihead::engine
