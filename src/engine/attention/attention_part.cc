#include "engine/attention/attention_part.h"

#include <cstdint>

#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"

namespace multihead::engine {
namespace {

// Returns the tensor (B, H, ...) with `data` moved to its first element, if memory begins at
// `head`, counted over all batch entries. Computed as an integer, because that address may lie
// outside of the memory.
template <class TensorLike>
TensorLike rebased(TensorLike tensor, int64_t head, int64_t element_bytes) {
  if (tensor.data == nullptr || tensor.shape.elements() == 0) return tensor;
  const int64_t heads = tensor.shape[1];
  const int64_t offset = head / heads * tensor.strides[0] + head % heads * tensor.strides[1];
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  tensor.data = reinterpret_cast<decltype(tensor.data)>(
      reinterpret_cast<uintptr_t>(tensor.data) - static_cast<uintptr_t>(offset * element_bytes));
  return tensor;
}

template <class Any>
Any rebased_any(const Any& tensor, int64_t head) {
  return rebased(tensor, head, bytes_of(tensor.dtype));
}

template <class T>
TensorView<T> rebased_view(const TensorView<T>& tensor, int64_t head) {
  return rebased(tensor, head, sizeof(T));
}

}  // namespace

Status divide_attention(const ForwardCall& call, bool varlen, AttentionParts& parts) {
  return memory_guard([&]() -> Status {
    AttentionShape shape;
    MULTIHEAD_TRY(validate_call(call, shape));
    const ForwardPlan plan = plan_forward(call, shape, varlen);
    const rules::BlockTiling& blocks = plan.choice.blocks;
    parts.heads = shape.batch * shape.kv_heads;
    const bool divides_rows = plan.choice.kernel != Kernel::kDecode && plan.choice.has_work();
    parts.blocks = divides_rows ? blocks.row_parts : 1;
    parts.block_rows = divides_rows ? blocks.rows : plan.params.rows();
    parts.operations = plan.operations;
    return {};
  });
}

Status attention_part(const ForwardCall& call, const AttentionPart& part, Context& context) {
  return memory_guard([&]() -> Status {
    AttentionShape shape;
    MULTIHEAD_TRY(validate_call(call, shape));
    if (shape.kv_heads == 0) return {};
    const int64_t head = part.first_in_memory;
    const int64_t query_head = head * (shape.heads / shape.kv_heads);
    AttentionOutputs own = call.outputs;
    own.out = rebased_any(own.out, query_head);
    own.lse = rebased_view(own.lse, query_head);
    own.weights = rebased_view(own.weights, query_head);
    own.dropout_mask = rebased_view(own.dropout_mask, query_head);
    ForwardPlan plan = plan_forward({rebased_any(call.q, query_head), rebased_any(call.k, head),
                                     rebased_any(call.v, head), call.options, own},
                                    shape, part.varlen);
    return run_part(plan, part, context);
  });
}

}  // namespace multihead::engine
