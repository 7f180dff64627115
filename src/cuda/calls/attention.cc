// attention() and attention_varlen() on the device: check, plan, enqueue.
#include <array>
#include <cstdint>
#include <string>

#include "cuda/calls/checks.h"
#include "cuda/calls/entry.h"
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
  const ConstAnyTensor &q, &k, &v;
  const AttentionOptions& options;
  const AttentionOutputs& outputs;
  const PackedSequences* sequences = nullptr;  // null: not varlen

  // Runs all checks that need no address.
  Status validate(AttentionShape& shape) const {
    if (sequences == nullptr) {
      Status status = engine::validate_call({q, k, v, options, outputs}, shape, Values::kOnDevice);
      return status.ok() ? validate_widths(shape) : status;
    }
    MULTIHEAD_TRY(engine::validate_varlen(q, k, v, sequences->cu_q, sequences->cu_k, options,
                                          Values::kOnDevice));
    MULTIHEAD_TRY(engine::validate_varlen_outputs(q, v, outputs));
    MULTIHEAD_TRY(validate_longest(*sequences));
    // The remaining checks do not depend on sequence lengths, so they run on an empty sequence.
    const AttentionOutputs nothing{.out = engine::sequence_of(outputs.out, 0, 0)};
    Status status =
        engine::validate_call({engine::sequence_of(q, 0, 0), engine::sequence_of(k, 0, 0),
                               engine::sequence_of(v, 0, 0), options, nothing},
                              shape, Values::kOnDevice);
    return status.ok() ? validate_widths(shape) : status;
  }

  CallPlan plan(const AttentionShape& shape, const Device& device) const {
    if (sequences == nullptr) return plan_call(q, k, v, shape, options, outputs, device);
    return plan_packed(q, k, v, *sequences, options, outputs, device);
  }

  Status validate_memory_of_call() const {
    const std::array inputs = {address_of("q", q), address_of("k", k), address_of("v", v)};
    MULTIHEAD_TRY(validate_addresses(inputs));
    MULTIHEAD_TRY(validate_option_addresses(options));
    MULTIHEAD_TRY(validate_output_addresses(outputs));
    if (sequences == nullptr) return {};
    return validate_sequence_addresses(*sequences);
  }
};

}  // namespace

Status available() {
  Device device;
  return current_device(device);
}

Status attention_workspace(const ConstAnyTensor& q, const ConstAnyTensor& k,
                           const ConstAnyTensor& v, const AttentionOptions& options,
                           const AttentionOutputs& outputs, uint64_t& bytes) {
  return workspace_of(Call{q, k, v, options, outputs}, bytes);
}

Status attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                 const AttentionOptions& options, const AttentionOutputs& outputs,
                 const Workspace& workspace, Stream stream) {
  return run_call(Call{q, k, v, options, outputs}, workspace, stream);
}

Status attention_varlen_workspace(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                  const ConstAnyTensor& v, const PackedSequences& sequences,
                                  const AttentionOptions& options, const AttentionOutputs& outputs,
                                  uint64_t& bytes) {
  return workspace_of(Call{q, k, v, options, outputs, &sequences}, bytes);
}

Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        const PackedSequences& sequences, const AttentionOptions& options,
                        const AttentionOutputs& outputs, const Workspace& workspace,
                        Stream stream) {
  return run_call(Call{q, k, v, options, outputs, &sequences}, workspace, stream);
}

std::string explain(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                    const AttentionOptions& options, const AttentionOutputs& outputs) {
  const Call call{q, k, v, options, outputs};
  AttentionShape shape;
  if (!call.validate(shape).ok()) return {};
  const Device device = device_to_explain();
  return explain(call.plan(shape, device), device);
}

}  // namespace multihead::cuda
