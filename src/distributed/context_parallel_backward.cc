// The public gradients: checks, agreement of the ranks, one of the methods, and results.
#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "distributed/agreement.h"
#include "distributed/call.h"
#include "distributed/checks.h"
#include "distributed/communicator.h"
#include "distributed/methods.h"
#include "engine/attention/backward.h"
#include "engine/attention/validate.h"
#include "engine/varlen/varlen.h"
#include "multihead/attention_backward.h"
#include "multihead/distributed.h"

namespace multihead::distributed {
namespace {

Status validate_method(const Call& call) {
  if (call.sharding.method != Method::kDecode) return {};
  return option("sharding.method", "kRing, kAllGather or kHeads for gradients", "kDecode");
}

// `alone` computes the call if the communicator has a single rank.
template <class Alone>
Status run(const Call& call, const Status& own, const BackwardInputs& inputs,
           const AttentionGradients& gradients, const Alone& alone, Communicator::Internals& ranks,
           Context& context) {
  Shards shards;
  MULTIHEAD_TRY(agree(call, own, ranks, shards));
  if (ranks.transport->size() == 1) return alone();
  GradientSums total;
  const auto method = call.sharding.method == Method::kRing        ? ring_backward
                      : call.sharding.method == Method::kAllGather ? gathered_backward
                                                                   : heads_backward;
  const Task task{call, shards, ranks, context};
  Status status = method(task, inputs, total);
  std::vector<float> d_q_gain(gradients.d_q_gain.size()), d_k_gain(gradients.d_k_gain.size());
  if (status.ok() && call.transforms()) {
    const int rank = ranks.transport->rank();
    status = transform_back(call, Operand::kQueries,
                            segments_of(shards.query_chunks(call, rank), call.cu_q), total.d_q,
                            d_q_gain, context);
    if (status.ok()) {
      status = transform_back(call, Operand::kKeys,
                              segments_of(shards.key_chunks(call, rank), call.cu_k), total.d_k,
                              d_k_gain, context);
    }
  }
  std::vector<float> d_sinks(gradients.d_sinks.size());
  if (status.ok() && !d_sinks.empty()) {
    // These are sums over the rank's rows only.
    status = engine::differentiate_sinks(call.options.sinks, {.out = inputs.out, .lse = inputs.lse},
                                         inputs.d_out, d_sinks, context);
  }
  MULTIHEAD_TRY(agree_to_write(status, call, ranks));
  for (const auto& [from, to] :
       {std::pair{total.d_q, gradients.d_q}, std::pair{total.d_k, gradients.d_k},
        std::pair{total.d_v, gradients.d_v}}) {
    if (to.given()) convert(from, to, context);
  }
  if (gradients.d_bias.given()) {
    convert(as_scores(total.d_bias), as_scores(gradients.d_bias), context);
  }
  std::copy(d_q_gain.begin(), d_q_gain.end(), gradients.d_q_gain.begin());
  std::copy(d_k_gain.begin(), d_k_gain.end(), gradients.d_k_gain.begin());
  std::copy(d_sinks.begin(), d_sinks.end(), gradients.d_sinks.begin());
  return {};
}

}  // namespace

Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                          const AttentionOptions& options, const AttentionResults& results,
                          const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                          const Sharding& sharding, Communicator& communicator, Context& context) {
  return run_call(communicator, [&]() -> Status {
    MULTIHEAD_TRY(validate_communicator(communicator));
    const int32_t cu_q[] = {0, static_cast<int32_t>(sharding.queries)};
    const int32_t cu_k[] = {0, static_cast<int32_t>(sharding.keys)};
    Call call = call_of(CallKind::kBackward, options, sharding, cu_q, cu_k);
    call.q = q;
    call.k = k;
    call.v = v;
    Status own = validate_sharding(sharding);
    if (own.ok()) own = validate_method(call);
    if (own.ok()) own = validate_inputs(call);
    if (own.ok()) {
      own = engine::validate_backward({q, k, v, options, results, d_out, gradients}, call.shape);
    }
    const auto alone = [&] {
      return multihead::attention_backward(q, k, v, options, results, d_out, gradients, context);
    };
    return run(call, own, {results.out, d_out, results.lse}, gradients, alone,
               *communicator.internals(), context);
  });
}

Status attention_varlen_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                 std::span<const int32_t> cu_k, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, const Sharding& sharding,
                                 Communicator& communicator, Context& context) {
  return run_call(communicator, [&]() -> Status {
    MULTIHEAD_TRY(validate_communicator(communicator));
    Call call = call_of(CallKind::kBackwardVarlen, options, sharding, cu_q, cu_k);
    AttentionGradients row_gradients = gradients;
    BackwardInputs inputs;
    const auto check = [&]() -> Status {
      MULTIHEAD_TRY(validate_varlen_inputs(q, k, v, call));
      MULTIHEAD_TRY(validate_method(call));
      MULTIHEAD_TRY(engine::validate_varlen_tensors(q, k, v, results, d_out, gradients));
      row_gradients.d_q = engine::rows_of(gradients.d_q, 0, q.shape[0]);
      row_gradients.d_k = engine::rows_of(gradients.d_k, 0, k.shape[0]);
      row_gradients.d_v = engine::rows_of(gradients.d_v, 0, v.shape[0]);
      inputs = {.out = engine::sequence_of(results.out, 0, q.shape[0]),
                .d_out = engine::sequence_of(d_out, 0, q.shape[0]),
                .lse = engine::lse_of(results.lse, 0, q.shape[0])};
      return engine::validate_backward(
          {q, k, v, options, {.out = inputs.out, .lse = inputs.lse}, inputs.d_out, row_gradients},
          call.shape);
    };
    const Status own = check();
    const auto alone = [&] {
      return multihead::attention_varlen_backward(q, k, v, cu_q, cu_k, options, results, d_out,
                                                  gradients, context);
    };
    return run(call, own, inputs, row_gradients, alone, *communicator.internals(), context);
  });
}

}  // namespace multihead::distributed
