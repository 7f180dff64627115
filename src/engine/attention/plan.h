// From a checked call to parameters and jobs: which path serves it, how it is cut into jobs, and
// every default.
//
// run() makes three further choices, none of which changes a bit of the results: it divides the
// blocks for the context's threads (blocks_for_threads()), it uses no more threads than the
// operations are worth, and it gives each member of a team its heads. A plan that runs again on
// other data needs set_queries(), set_keys(), set_values() and follow_lengths() first.
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
  uint64_t scratch_bytes;  // of each thread
  uint64_t partial_bytes;  // with kDecode: of the result of one head and split
  double operations;       // multiplications and additions, at most
  // A plan of attention_scores(), which Context::last_kernel() does not count.
  bool scores_alone = false;
  // Blocks copy V only where its rows do not start at cache lines; see set_values().
  bool copies_split_lines = false;

  // With kDecode, decoding computes out and lse, and blocks then compute the captures, so that a
  // capture does not change a bit of the output.
  bool captures_beside_decode() const {
    return path == Path::kDecode && params.captures_anything();
  }
};

// q, k and v, in tensors or in a cache.
struct AttentionInputs {
  rules::StoredRows q, k, v;
  const int32_t* firsts = nullptr;   // (B): the first key that exists; null for 0
  const int32_t* lengths = nullptr;  // (B): replace options.kv_lengths; null: use those
  bool packed = false;               // one sequence of a packed call: never kDecode
};

// The whole problem of which a call computes a shard.
struct Shard {
  rules::Coordinates first;
  int64_t queries, keys;  // of the whole problem
};

MULTIHEAD_SHARED rules::StoredRows stored_rows(const ConstAnyTensor& tensor);

// The parameters of a call, with every default: what all backends compute from. Reads no lengths.
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

// Cuts the keys anew: the lengths that a plan points to may have changed since it was made.
void follow_lengths(AttentionPlan& plan);

// The blocks of a plan for so many threads: divided further where that changes no bit, see
// cut_for_threads().
rules::BlockGeometry blocks_for_threads(const AttentionPlan& plan, int threads);

// A call of attention(): its plan, and the transformation of q and k before.
struct PlannedCall {
  AttentionPlan plan;
  std::optional<InputTransforms> transforms;

  void set_queries(const void* data) {
    (transforms ? transforms->q.data : plan.params.q.data) = data;
  }
  void set_keys(const void* data) { (transforms ? transforms->k.data : plan.params.k.data) = data; }
  // Decides anew whether blocks copy V, which depends on its address and changes no bit.
  void set_values(const void* data);
};

PlannedCall plan_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                      const AttentionShape& shape, const AttentionOptions& options,
                      const AttentionOutputs& outputs, bool packed = false);

// attention_scores(): one capture; only the scores of its rows are computed.
PlannedCall plan_scores_call(const ConstAnyTensor& q, const ConstAnyTensor& k,
                             const AttentionShape& shape, const AttentionOptions& options,
                             const ScoreCapture& capture);

// The batch entries and query heads that one part of attention_backward() computes, in the whole
// call. The part has shapes and options of its own.
struct BackwardPart {
  int64_t first_batch = 0, first_head = 0;
  // Of the whole call: pairs of a batch entry and a key/value head, where those that share a
  // gradient of the bias count as one. 0 if the part is the whole call.
  int64_t jobs = 0;
};

// A call of attention_backward().
struct BackwardPlan {
  rules::BackwardParams params;
  rules::BackwardGeometry geometry;
  std::optional<InputTransforms> transforms;
  uint64_t scratch_bytes;  // of each thread
  double operations;       // multiplications and additions, at most

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
// The parameters of a backward call for the given q and k, without the arrays that jobs share.
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
