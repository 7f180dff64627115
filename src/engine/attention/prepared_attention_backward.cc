#include "multihead/prepared_attention_backward.h"

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "engine/attention/backward.h"
#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"

namespace multihead {

struct PreparedAttentionBackward::Call {
  engine::BackwardPlan plan;
  AttentionGradients gradients;
  Context* context;
  std::span<const int32_t> lengths;
  engine::AttentionShape shape;
};

void PreparedAttentionBackward::Delete::operator()(Call* call) const { delete call; }

Status PreparedAttentionBackward::create(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                         const ConstAnyTensor& v, const AttentionOptions& options,
                                         const AttentionResults& results,
                                         const ConstAnyTensor& d_out,
                                         const AttentionGradients& gradients, Context& context,
                                         PreparedAttentionBackward& prepared) {
  return engine::memory_guard([&]() -> Status {
    using engine::with_address;
    const ConstAnyTensor some_q = with_address(q), some_k = with_address(k),
                         some_v = with_address(v), some_d_out = with_address(d_out);
    const AttentionResults some_results{.out = with_address(results.out),
                                        .lse = with_address(results.lse)};
    AttentionGradients to_come = gradients;
    to_come.d_q = with_address(gradients.d_q);
    to_come.d_k = with_address(gradients.d_k);
    to_come.d_v = with_address(gradients.d_v);
    engine::AttentionShape shape;
    const engine::BackwardCall some{some_q,       some_k,     some_v, options,
                                    some_results, some_d_out, to_come};
    MULTIHEAD_TRY(engine::validate_call(some, shape));
    // Tensors without an address yet share no memory with any other.
    MULTIHEAD_TRY(engine::validate_apart({q, k, v, options, results, d_out, gradients}));
    std::unique_ptr<Call, Delete> call(new (std::nothrow)
                                           Call{.plan = engine::plan_backward(some, shape),
                                                .gradients = to_come,
                                                .context = &context,
                                                .lengths = options.kv_lengths,
                                                .shape = shape});
    if (call == nullptr) return Status::out_of_memory(sizeof(Call));
    MULTIHEAD_TRY(engine::reserve_backward(call->plan, call->gradients, context));
    prepared.call_ = std::move(call);
    return {};
  });
}

Status PreparedAttentionBackward::run(const Data& data) {
  return engine::memory_guard([&]() -> Status {
    if (call_ == nullptr) return engine::option_error(Name::kPrepared, Message::kPreparedCall);
    Call& call = *call_;
    const engine::AttentionShape& s = call.shape;
    // Not products of their own: without elements, the extents may be any.
    const auto elements_of = [&](int64_t heads, int64_t rows, int64_t width) {
      return Dims{s.batch, heads, rows, width}.elements();
    };
    const int64_t out_elements = elements_of(s.heads, s.queries, s.value_dim);
    const struct {
      Name name;
      const void* address;
      int64_t elements;
    } inputs[] = {{Name::kQ, data.q, elements_of(s.heads, s.queries, s.head_dim)},
                  {Name::kK, data.k, elements_of(s.kv_heads, s.keys, s.head_dim)},
                  {Name::kV, data.v, elements_of(s.kv_heads, s.keys, s.value_dim)},
                  {Name::kOut, data.out, out_elements},
                  {Name::kLse, data.lse, elements_of(s.heads, s.queries, 1)},
                  {Name::kDOut, data.d_out, out_elements}};
    for (const auto& [name, address, elements] : inputs) {
      if (address == nullptr && elements != 0) return engine::no_address(name);
    }
    AttentionGradients& gradients = call.gradients;
    const struct {
      Name name;
      float* address;
      const Tensor& prepared;
    } results[] = {{Name::kDQ, data.d_q, gradients.d_q},
                   {Name::kDK, data.d_k, gradients.d_k},
                   {Name::kDV, data.d_v, gradients.d_v}};
    for (const auto& [name, address, prepared] : results) {
      if (address != nullptr && !prepared.given()) {
        return engine::option_error(name, Message::kNotPrepared);
      }
      if (address == nullptr && engine::has_elements(prepared)) return engine::no_address(name);
    }
    if (!call.lengths.empty()) {
      MULTIHEAD_TRY(engine::validate_lengths(call.lengths, s));
    }
    engine::BackwardPlan& plan = call.plan;
    rules::BackwardParams& params = plan.params;
    plan.set_queries(data.q);
    plan.set_keys(data.k);
    plan.set_values(data.v);
    params.out.data = data.out;
    params.lse.data = data.lse;
    params.d_out.data = data.d_out;
    params.d_q.data = gradients.d_q.data = data.d_q;
    params.d_k.data = gradients.d_k.data = data.d_k;
    params.d_v.data = gradients.d_v.data = data.d_v;
    return engine::run_backward(plan, gradients, engine::Lse::kTrusted, *call.context);
  });
}

}  // namespace multihead
