// The public calls: checks, agreement of the ranks, one of the methods, and results.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distributed/agreement.h"
#include "distributed/call.h"
#include "distributed/checks.h"
#include "distributed/communicator.h"
#include "distributed/methods.h"
#include "distributed/tiles.h"
#include "engine/attention/validate.h"
#include "engine/varlen/varlen.h"
#include "multihead/distributed.h"

namespace multihead::distributed {
namespace {

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
  merge(total, ConstTensor(no_value.data(), total.out.shape, {0, 0, 0, 1}),
        ConstTensor(call.options.sinks.data(), total.lse.shape, {0, 1, 0}), context);
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

}  // namespace

Status attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                 const AttentionOptions& options, const AttentionOutputs& outputs,
                 const Sharding& sharding, Communicator& communicator, Context& context) {
  return run_call(communicator, [&]() -> Status {
    MULTIHEAD_TRY(validate_communicator(communicator));
    const int32_t cu_q[] = {0, static_cast<int32_t>(sharding.queries)};
    const int32_t cu_k[] = {0, static_cast<int32_t>(sharding.keys)};
    Call call = call_of(CallKind::kForward, options, sharding, cu_q, cu_k);
    call.q = q;
    call.k = k;
    call.v = v;
    Status own = validate_sharding(sharding);
    if (own.ok()) own = validate_inputs(call);
    if (own.ok()) own = validate_results(outputs);
    if (own.ok()) own = engine::validate_outputs(outputs, call.shape);
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
    Call call = call_of(CallKind::kForwardVarlen, options, sharding, cu_q, cu_k);
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

}  // namespace multihead::distributed
