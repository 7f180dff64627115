#include "multihead/prepared_attention.h"

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/error/error.h"
#include "engine/runtime/scratch.h"

namespace multihead {
struct PreparedAttention::Call {
  engine::ForwardPlan plan;
  Context* context;
  std::span<const int32_t> lengths;
  engine::AttentionShape shape;
  float* lse;  // written by runs that are given no LSE address
  bool has_lse;
  // True if the tensor has elements, so that a run needs its address.
  bool needs_q, needs_k, needs_v, needs_out, needs_lse;
};

void PreparedAttention::Delete::operator()(Call* call) const { delete call; }

Status PreparedAttention::create(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, const AttentionOptions& options,
                                 const AttentionOutputs& outputs, Context& context,
                                 PreparedAttention& prepared) {
  return engine::memory_guard([&]() -> Status {
    using namespace engine;  // NOLINT(google-build-using-namespace)
    AttentionOutputs to_come = outputs;
    to_come.out = with_address(outputs.out);
    to_come.lse = with_address(outputs.lse);
    const ConstAnyTensor some_q = with_address(q), some_k = with_address(k),
                         some_v = with_address(v);
    const ForwardCall some{some_q, some_k, some_v, options, to_come};
    AttentionShape shape;
    MULTIHEAD_TRY(validate_call(some, shape));
    // Tensors without an address yet share no memory with any other.
    MULTIHEAD_TRY(validate_apart({q, k, v, options, outputs}));
    std::unique_ptr<Call, Delete> call(new (std::nothrow)
                                           Call{.plan = plan_forward(some, shape),
                                                .context = &context,
                                                .lengths = options.kv_lengths,
                                                .shape = shape,
                                                .lse = outputs.lse.data,
                                                .has_lse = outputs.lse.given(),
                                                .needs_q = has_elements(q),
                                                .needs_k = has_elements(k),
                                                .needs_v = has_elements(v),
                                                .needs_out = has_elements(outputs.out),
                                                .needs_lse = has_elements(outputs.lse)});
    if (call == nullptr) return Status::out_of_memory(sizeof(Call));
    MULTIHEAD_TRY(reserve_scratch(call->plan, context));
    prepared.call_ = std::move(call);
    return {};
  });
}

Status PreparedAttention::run(const void* q, const void* k, const void* v, void* out, float* lse) {
  return engine::memory_guard([&]() -> Status {
    if (call_ == nullptr) {
      return engine::option_error(engine::Name::kPrepared, engine::Message::kPreparedCall);
    }
    Call& call = *call_;
    if (q == nullptr && call.needs_q) return engine::no_address(engine::Name::kQ);
    if (k == nullptr && call.needs_k) return engine::no_address(engine::Name::kK);
    if (v == nullptr && call.needs_v) return engine::no_address(engine::Name::kV);
    if (out == nullptr && call.needs_out) return engine::no_address(engine::Name::kOut);
    if (lse != nullptr && !call.has_lse) {
      return engine::option_error(engine::Name::kLse, engine::Message::kNotPrepared);
    }
    if (lse == nullptr) lse = call.lse;
    if (lse == nullptr && call.needs_lse) return engine::no_address(engine::Name::kLse);
    if (!call.lengths.empty()) {
      MULTIHEAD_TRY(engine::validate_lengths(call.lengths, call.shape));
    }
    engine::ForwardPlan& plan = call.plan;
    plan.set_queries(q);
    plan.set_keys(k);
    plan.set_values(v);
    plan.params.out.data = call.needs_out ? out : nullptr;
    plan.params.lse.data = call.needs_lse ? lse : nullptr;
    return engine::run(plan, *call.context);
  });
}

}  // namespace multihead
