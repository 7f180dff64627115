// attention_backward() and attention_varlen_backward() on the device: check, plan, enqueue.
#include <array>
#include <cstdint>
#include <string>

#include "cuda/calls/checks.h"
#include "cuda/calls/entry.h"
#include "cuda/plan/backward_plan.h"
#include "cuda/plan/plan.h"
#include "cuda/runtime/runtime.h"
#include "engine/attention/validate.h"
#include "engine/varlen/varlen.h"
#include "multihead/cuda.h"

namespace multihead::cuda {
namespace {

using engine::AttentionShape;
using engine::Values;

struct Call {
  BackwardCall of;
  const PackedSequences* sequences = nullptr;  // null: not varlen

  // Runs all checks that need no address.
  Status validate(AttentionShape& shape) const {
    const auto& [q, k, v, options, results, d_out, gradients] = of;
    Status status;
    if (sequences == nullptr) {
      status = engine::validate_call(of, shape, Values::kOnDevice);
    } else {
      status =
          engine::validate_varlen_backward(q, k, v, sequences->cu_q, sequences->cu_k, options,
                                           results, d_out, gradients, shape, Values::kOnDevice);
      if (status.ok()) status = validate_longest(*sequences);
    }
    return status.ok() ? validate_widths(shape) : status;
  }

  BackwardPlan plan(const AttentionShape& shape, const Device& device) const {
    if (sequences == nullptr) return plan_backward(of, shape, device);
    return plan_packed_backward(of, *sequences, device);
  }

  Status validate_memory_of_call() const {
    const AttentionGradients& to = of.gradients;
    const std::array addresses = {address_of("q", of.q),
                                  address_of("k", of.k),
                                  address_of("v", of.v),
                                  address_of("out", of.results.out),
                                  address_of("lse", of.results.lse),
                                  address_of("d_out", of.d_out),
                                  address_of("d_q", to.d_q),
                                  address_of("d_k", to.d_k),
                                  address_of("d_v", to.d_v),
                                  address_of("d_bias", to.d_bias),
                                  address_of("d_sinks", to.d_sinks),
                                  address_of("d_q_gain", to.d_q_gain),
                                  address_of("d_k_gain", to.d_k_gain)};
    for (const Status& status :
         {validate_addresses(addresses), validate_option_addresses(of.options)}) {
      if (!status.ok()) return status;
    }
    if (sequences == nullptr) return {};
    return validate_sequence_addresses(*sequences);
  }
};

}  // namespace

Status attention_backward_workspace(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                    const ConstAnyTensor& v, const AttentionOptions& options,
                                    const AttentionResults& results, const ConstAnyTensor& d_out,
                                    const AttentionGradients& gradients, uint64_t& bytes) {
  return workspace_of(Call{{q, k, v, options, results, d_out, gradients}}, bytes);
}

Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                          const AttentionOptions& options, const AttentionResults& results,
                          const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                          const Workspace& workspace, Stream stream) {
  return run_call(Call{{q, k, v, options, results, d_out, gradients}}, workspace, stream);
}

Status attention_varlen_backward_workspace(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                           const ConstAnyTensor& v,
                                           const PackedSequences& sequences,
                                           const AttentionOptions& options,
                                           const AttentionResults& results,
                                           const ConstAnyTensor& d_out,
                                           const AttentionGradients& gradients, uint64_t& bytes) {
  return workspace_of(Call{{q, k, v, options, results, d_out, gradients}, &sequences}, bytes);
}

Status attention_varlen_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, const PackedSequences& sequences,
                                 const AttentionOptions& options, const AttentionResults& results,
                                 const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                                 const Workspace& workspace, Stream stream) {
  return run_call(Call{{q, k, v, options, results, d_out, gradients}, &sequences}, workspace,
                  stream);
}

std::string explain_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                             const ConstAnyTensor& v, const AttentionOptions& options,
                             const AttentionResults& results, const ConstAnyTensor& d_out,
                             const AttentionGradients& gradients) {
  const Call call{{q, k, v, options, results, d_out, gradients}};
  AttentionShape shape;
  if (!call.validate(shape).ok()) return {};
  const Device device = device_to_explain();
  return explain(call.plan(shape, device), device);
}

}  // namespace multihead::cuda
