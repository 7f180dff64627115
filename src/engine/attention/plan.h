// Plans a checked call: resolves every default, selects the kernel and divides the call into jobs.
//
// plan_forward() and plan_backward() make the choices that are the same for every run of a call.
// finish_plan() makes the others: they depend on the threads, the lengths, the addresses and the
// team of a run, and change no bit of the results. After it nothing is decided: run.h and
// backward.h only execute. A plan may run again on other data: call set_queries(), set_keys() and
// set_values(), then finish_plan() again (run() does).
#pragma once

#include <cstdint>
#include <optional>

#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/runtime/kernel_choice.h"
#include "engine/runtime/team.h"
#include "multihead/attention_backward.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"
#include "rules/shared.h"
#include "rules/tiling.h"

namespace multihead::engine {

// Some heads of a call, times some blocks of rows of each. Heads are pairs of a batch entry and a
// key/value head, with number batch * H_kv + head.
struct WorkRange {
  int64_t first_head = 0, end_head = 0;
  int64_t first_block = 0, end_block = 0;  // decoding computes all rows of a head
};

// A call of attention().
struct ForwardPlan {
  rules::AttentionParams params;
  std::optional<InputTransforms> transforms;  // of q and k, before the products
  KernelChoice choice;
  uint64_t scratch_bytes;  // per thread
  uint64_t partial_bytes;  // with kDecode: size of one head's result in one split
  double operations;       // upper bound of multiplications and additions
  // True for attention_scores(), which does not change Context::last_kernel().
  bool scores_alone = false;
  // True if blocks copy V only when its rows do not start at cache lines.
  bool copies_split_lines = false;
  // The key/value heads of every batch entry that a cache stores if it stores a share: the heads of
  // this member of the context's team.
  std::optional<rules::Range> stored_heads;

  // Decided by finish_plan().
  rules::BlockTiling blocks;  // of a call that does not decode, or of the captures beside decoding
  rules::SplitTiling splits;  // with kDecode
  WorkRange work;             // what execute() computes: the call, or a part of it
  int threads = 1, merge_threads = 1;
  bool divides_heads = false;  // true if the members of the context's team divide the heads

  void set_queries(const void* data) { (transforms ? transforms->q.data : params.q.data) = data; }
  void set_keys(const void* data) { (transforms ? transforms->k.data : params.k.data) = data; }
  void set_values(const void* data) { params.v.data = data; }

  int64_t jobs() const { return choice.kernel == Kernel::kDecode ? splits.jobs : blocks.jobs; }
  // With kDecode, decoding computes out and lse, and a second pass in blocks computes the captures.
  // So a capture does not change a bit of the output.
  bool captures_beside_decode() const {
    return choice.kernel == Kernel::kDecode && params.captures_anything();
  }
};

// q, k and v, in tensors or in a cache.
struct AttentionInputs {
  rules::StoredRows q, k, v;
  const int32_t* firsts = nullptr;   // (B): first key that exists; null for 0
  const int32_t* lengths = nullptr;  // (B): replaces options.kv_lengths unless null
  bool varlen = false;               // one sequence of a varlen call: never kDecode
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

MULTIHEAD_SHARED ForwardPlan plan_forward(const AttentionInputs& inputs,
                                          const AttentionShape& shape,
                                          const AttentionOptions& options,
                                          const AttentionOutputs& outputs,
                                          const Shard* shard = nullptr);
ForwardPlan plan_forward(const ForwardCall& call, const AttentionShape& shape, bool varlen = false);
inline bool attention_decodes = true;  // false if only caches decode: see bindings/parts.json

// The step of plan_forward() that completes a plan with its parameters: selects the kernel and
// divides the call into jobs. `varlen`: the call is one sequence of a varlen call.
void plan_jobs(ForwardPlan& plan, const AttentionOptions& options, bool varlen);

// Plans attention_scores(): one capture; only the scores of its rows are computed.
ForwardPlan plan_scores(const ConstAnyTensor& q, const ConstAnyTensor& k,
                        const AttentionShape& shape, const AttentionOptions& options,
                        const ScoreCapture& capture);

// Makes the choices of one run. Blocks are divided for `threads` threads, and heads among the
// members of `team`, if there is one. With `part`, the run computes only this part of the call.
MULTIHEAD_SHARED void finish_plan(ForwardPlan& plan, int threads, const Team* team = nullptr,
                                  const WorkRange* part = nullptr);

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
  std::optional<InputTransforms> transforms;  // of q and k, before the products
  rules::BackwardTiling tiling;
  uint64_t scratch_bytes;  // per thread
  double operations;       // upper bound of multiplications and additions

  int threads = 1;  // decided by finish_plan()

  void set_queries(const void* data) {
    (transforms ? transforms->q.data : params.forward.q.data) = data;
  }
  void set_keys(const void* data) {
    (transforms ? transforms->k.data : params.forward.k.data) = data;
  }
  void set_values(const void* data) { params.forward.v.data = data; }

  int64_t jobs() const { return tiling.jobs; }

  // Elements of params.query_semaphores; 0 if no two jobs add to the same d_q.
  uint64_t query_semaphores() const {
    if (jobs() == 0 || tiling.chunks <= 1 || params.d_q.data == nullptr) return 0;
    const rules::AttentionParams& p = params.forward;
    return static_cast<uint64_t>(p.batch * p.kv_heads * tiling.blocks.row_parts);
  }
  // Elements of params.key_semaphores; 0 if no two jobs add to the same d_k and d_v.
  uint64_t key_semaphores() const {
    if (jobs() == 0 || tiling.row_jobs <= 1) return 0;
    if (params.d_k.data == nullptr && params.d_v.data == nullptr) return 0;
    const rules::AttentionParams& p = params.forward;
    return static_cast<uint64_t>(p.batch * p.kv_heads * tiling.chunks);
  }
};

// Returns the parameters of a backward call, without the arrays that jobs share.
MULTIHEAD_SHARED rules::BackwardParams backward_params(const AttentionInputs& inputs,
                                                       const AttentionShape& shape,
                                                       const BackwardCall& call,
                                                       const Shard* shard = nullptr);

MULTIHEAD_SHARED BackwardPlan plan_backward(const BackwardCall& call, const AttentionShape& shape,
                                            const BackwardPart& part = {},
                                            const Shard* shard = nullptr);

// The step of plan_backward() that completes a plan with its parameters.
void plan_jobs(BackwardPlan& plan, bool has_sinks, int64_t jobs_of_whole = 0);

// Makes the choices of one run on `threads` threads.
MULTIHEAD_SHARED void finish_plan(BackwardPlan& plan, int threads);

}  // namespace multihead::engine
