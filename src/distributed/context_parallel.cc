// The public calls: checks, agreement of the ranks, one of the methods, and results.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "distributed/agreement.h"
#include "distributed/methods.h"
#include "distributed/tiles.h"
#include "engine/attention/backward.h"
#include "engine/attention/run.h"
#include "engine/varlen/varlen.h"
#include "multihead/distributed.h"

namespace multihead::distributed {
namespace {

// A call of tensors (B, H, n, d), whose rows are one sequence.
struct PlainCall {
  int32_t cu_q[2], cu_k[2];
  Call call;

  PlainCall(CallKind kind, const ConstAnyTensor& q, const ConstAnyTensor& k,
            const ConstAnyTensor& v, const AttentionOptions& options, const Sharding& sharding)
      : cu_q{0, static_cast<int32_t>(sharding.queries)},
        cu_k{0, static_cast<int32_t>(sharding.keys)},
        call{kind, q, k, v, options, cu_q, cu_k, sharding, {}} {}
  PlainCall(const PlainCall&) = delete;
  PlainCall& operator=(const PlainCall&) = delete;
};

Status validate_results(const AttentionOutputs& outputs) {
  const struct {
    const char* name;
    bool given;
  } refused[] = {{"captures", !outputs.captures.empty()},
                 {"weights", outputs.weights.given()},
                 {"dropout_mask", outputs.dropout_mask.given()}};
  for (const auto& [name, given] : refused) {
    if (given) return option(name, "none in a distributed call", "one");
  }
  return {};
}

// Adds the sink of each row, a score without a value.
void add_sinks(const Call& call, const PartialResult& total, Context& context) {
  if (call.options.sinks.empty()) return;
  const std::vector<float> no_value(static_cast<size_t>(call.shape.value_dim));
  engine::merge_rows(total.out, total.lse,
                     ConstTensor(no_value.data(), total.out.shape, {0, 0, 0, 1}),
                     ConstTensor(call.options.sinks.data(), total.lse.shape, {0, 1, 0}), &context);
}

// `alone` computes the call if the communicator has a single rank.
template <class Alone>
Status run(const Call& call, const Status& own, const AnyTensor& out, const Tensor& lse,
           const Alone& alone, Communicator::Internals& ranks, Context& context) {
  Shards shards;
  MULTIHEAD_TRY(agree(call, own, ranks, shards));
  if (ranks.transport->size() == 1) return alone();
  const Task task{call, shards, ranks, context};
  PartialResult total;
  Status status;
  switch (call.sharding.method) {
    case Method::kRing:
      status = ring_attention(task, total);
      break;
    case Method::kAllGather:
      status = gathered_attention(task, total);
      break;
    case Method::kHeads:
      status = heads_attention(task, total);
      break;
    case Method::kDecode:
      status = decode_attention(task, total);
      break;
  }
  if (status.ok()) add_sinks(call, total, context);
  MULTIHEAD_TRY(agree_to_write(status, call, ranks));
  convert(total.out, out, context);
  if (lse.given()) copy(ConstAnyTensor(as_columns(total.lse)), as_columns(lse), context);
  return {};
}

Status validate_method(const Call& call) {
  if (call.sharding.method != Method::kDecode) return {};
  return option("sharding.method", "kRing, kAllGather or kHeads for gradients", "kDecode");
}

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

Status attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                 const AttentionOptions& options, const AttentionOutputs& outputs,
                 const Sharding& sharding, Communicator& communicator, Context& context) {
  return run_call(communicator, [&]() -> Status {
    MULTIHEAD_TRY(validate_communicator(communicator));
    PlainCall plain(CallKind::kForward, q, k, v, options, sharding);
    Call& call = plain.call;
    const auto check = [&]() -> Status {
      MULTIHEAD_TRY(validate_sharding(sharding));
      MULTIHEAD_TRY(validate_inputs(call));
      MULTIHEAD_TRY(validate_results(outputs));
      return engine::validate_outputs(outputs, call.shape);
    };
    const Status own = check();
    const auto alone = [&] { return multihead::attention(q, k, v, options, outputs, context); };
    return run(call, own, outputs.out, outputs.lse, alone, *communicator.internals(), context);
  });
}

Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        const Sharding& sharding, Communicator& communicator, Context& context) {
  return run_call(communicator, [&]() -> Status {
    MULTIHEAD_TRY(validate_communicator(communicator));
    Call call{CallKind::kForwardVarlen, {}, {}, {}, options, cu_q, cu_k, sharding, {}};
    AnyTensor out;
    Tensor lse;
    const auto check = [&]() -> Status {
      MULTIHEAD_TRY(validate_varlen_inputs(q, k, v, call));
      MULTIHEAD_TRY(validate_results(outputs));
      MULTIHEAD_TRY(engine::validate_varlen_outputs(q, v, outputs));
      out = engine::sequence_of(outputs.out, 0, q.shape[0]);
      if (outputs.lse.given()) lse = engine::lse_of(outputs.lse, 0, q.shape[0]);
      return {};
    };
    const Status own = check();
    const auto alone = [&] {
      return multihead::attention_varlen(q, k, v, cu_q, cu_k, options, outputs, context);
    };
    return run(call, own, out, lse, alone, *communicator.internals(), context);
  });
}

Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                          const AttentionOptions& options, const AttentionResults& results,
                          const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                          const Sharding& sharding, Communicator& communicator, Context& context) {
  return run_call(communicator, [&]() -> Status {
    MULTIHEAD_TRY(validate_communicator(communicator));
    PlainCall plain(CallKind::kBackward, q, k, v, options, sharding);
    Call& call = plain.call;
    const auto check = [&]() -> Status {
      MULTIHEAD_TRY(validate_sharding(sharding));
      MULTIHEAD_TRY(validate_method(call));
      MULTIHEAD_TRY(validate_inputs(call));
      return engine::validate_backward({q, k, v, options, results, d_out, gradients}, call.shape);
    };
    const Status own = check();
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
    Call call{CallKind::kBackwardVarlen, {}, {}, {}, options, cu_q, cu_k, sharding, {}};
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
