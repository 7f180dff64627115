#include "engine/varlen/packed.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "engine/varlen/varlen.h"

namespace multihead::engine {
namespace {

uint64_t bytes_of_copies(const PackedInputs& inputs) {
  return static_cast<uint64_t>(inputs.q.shape.elements() + inputs.k.shape.elements()) *
         sizeof(float);
}

}  // namespace

AttentionShape PackedInputs::shape_of(size_t sequence) const {
  return {.batch = 1,
          .heads = q.shape[1],
          .kv_heads = k.shape[1],
          .queries = cu_q[sequence + 1] - cu_q[sequence],
          .keys = cu_k[sequence + 1] - cu_k[sequence],
          .head_dim = q.shape[2],
          .value_dim = v.shape[2]};
}

PackedTransforms::PackedTransforms(const PackedInputs& inputs)
    : positions_(rules::make_visibility(inputs.options, 0, 0)),
      of_queries{.normalize = inputs.options.qk_norm.enabled,
                 .gain = inputs.options.qk_norm.q_gain,
                 .eps = inputs.options.qk_norm.eps,
                 .rope = inputs.options.rope,
                 .query_positions = &positions_,
                 .sequences = inputs.cu_q,
                 .key_sequences = inputs.cu_k},
      of_keys(of_queries) {
  of_keys.gain = inputs.options.qk_norm.k_gain;
  of_keys.query_positions = nullptr;
  of_keys.sequences = inputs.cu_k;
}

Status reserve_for_transform(const PackedInputs& inputs, Context& context) {
  const uint64_t bytes = bytes_of_copies(inputs);
  if (!scratch_of(context).transformed().reserve(bytes)) return Status::out_of_memory(bytes);
  return reserve_for_transform(inputs.options.rope, inputs.q.shape[2], context);
}

Status transform_packed(const PackedTransforms& transforms, PackedInputs& inputs,
                        Context& context) {
  if (Status status = reserve_for_transform(inputs, context); !status.ok()) return status;
  auto* to = static_cast<float*>(scratch_of(context).transformed().data());
  const struct {
    ConstAnyTensor& tensor;
    const Transform& rule;
  } of[] = {{inputs.q, transforms.of_queries}, {inputs.k, transforms.of_keys}};
  for (const auto& [tensor, rule] : of) {
    const int64_t tokens = tensor.shape[0], heads = tensor.shape[1], width = tensor.shape[2];
    const Tensor moved(to, {1, heads, tokens, width});
    if (Status status = transform_rows(sequence_of(tensor, 0, tokens), rule, moved, context);
        !status.ok()) {
      return status;
    }
    to += tensor.shape.elements();
    tensor = {moved.data, DType::kF32, tensor.shape, {width, tokens * width, 1}};
  }
  return {};
}

void order_by_work(const PackedInputs& inputs, std::span<int32_t> order) {
  std::iota(order.begin(), order.end(), 0);
  const auto work_of = [&](int32_t sequence) {
    const AttentionShape shape = inputs.shape_of(static_cast<size_t>(sequence));
    return shape.queries * shape.keys;
  };
  const auto takes_longer = [&](int32_t a, int32_t b) {
    const int64_t work_a = work_of(a), work_b = work_of(b);
    return work_a != work_b ? work_a > work_b : a < b;
  };
  // std::sort() would add 2 kB to the WebAssembly module.
  std::make_heap(order.begin(), order.end(), takes_longer);
  std::sort_heap(order.begin(), order.end(), takes_longer);
}

}  // namespace multihead::engine
