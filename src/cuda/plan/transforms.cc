#include "cuda/plan/transforms.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "cuda/kernels.h"
#include "cuda/runtime/runtime.h"
#include "engine/attention/plan.h"

namespace multihead::cuda {
namespace {

// Strides of the transformed copy of a tensor (B, H, N, d), which has no gaps.
rules::RowStrides dense_strides(const Dims& shape) {
  return {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3]};
}

RotateParams rotate_params(const ConstAnyTensor& x, const AttentionOptions& options,
                           std::span<const float> gain, std::span<const int32_t> positions) {
  const int64_t rows = x.shape[2], width = x.shape[3];
  const Rope& rope = options.rope;
  RotateParams rotate;
  rotate.x = engine::stored_rows(x);
  rotate.y = {.data = nullptr, .type = x.dtype, .stride = dense_strides(x.shape)};
  rotate.batch = x.shape[0];
  rotate.heads = x.shape[1];
  rotate.rows = rows;
  rotate.width = width;
  rotate.normalize = options.qk_norm.given();
  rotate.gain = gain.empty() ? nullptr : gain.data();
  rotate.eps = options.qk_norm.eps;
  rotate.style = rope.style;
  rotate.base = rope.base;
  if (rope.given()) {
    rotate.rotary = rope.rotary_dim != 0 ? rope.rotary_dim : width;
  }
  rotate.positions = positions.empty() ? nullptr : positions.data();
  rotate.positions_stride = static_cast<int64_t>(positions.size()) == rows ? 0 : rows;
  return rotate;
}

}  // namespace

std::optional<Transforms> plan_transforms(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                          const AttentionOptions& options,
                                          const ForwardParams& params) {
  if (!options.qk_norm.given() && !options.rope.given()) return {};
  const bool packed = params.cu_q != nullptr;
  const auto positions = [&](std::span<const int32_t> given) {
    return packed ? std::span<const int32_t>() : given;
  };
  Transforms transforms{
      rotate_params(q, options, options.qk_norm.q_gain, positions(options.rope.q_positions)),
      rotate_params(k, options, options.qk_norm.k_gain, positions(options.rope.k_positions))};
  transforms.q.of_queries = true;
  for (RotateParams* const rotate : {&transforms.q, &transforms.k}) {
    rotate->visibility = params.call.visibility;
    if (!packed) continue;
    rotate->cu_q = params.cu_q;
    rotate->cu_k = params.cu_k;
    rotate->sequences = params.call.batch;
  }
  return transforms;
}

void lay_out_transforms(std::optional<Transforms>& transforms, rules::AttentionParams& call,
                        rules::Arena& arena) {
  if (!transforms) return;
  for (const auto& [rotate, rows] :
       {std::pair{&transforms->q, &call.q}, {&transforms->k, &call.k}}) {
    std::byte* memory = nullptr;
    arena(memory, static_cast<uint64_t>(rotate->batch * rotate->heads * rotate->rows *
                                        rotate->width * bytes_of(rotate->y.type)));
    rotate->y.data = memory;
    rows->data = memory;
    rows->stride = rotate->y.stride;
  }
}

Status run_transforms(const std::optional<Transforms>& transforms, Stream stream) {
  if (!transforms) return {};
  for (const auto* const rotate : {&transforms->q, &transforms->k}) {
    if (Status status = status_of(launch_rotate(*rotate, stream)); !status.ok()) return status;
  }
  return {};
}

}  // namespace multihead::cuda
