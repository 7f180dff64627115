#include "cuda/plan/plan.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/rows/scores_params.h"
#include "cuda/runtime/runtime.h"
#include "cuda/tile_axis.h"
#include "engine/error/error.h"
#include "engine/varlen/varlen.h"
#include "rules/arena.h"

namespace multihead::cuda {
namespace {

using engine::AttentionShape;
using rules::AttentionParams;
using rules::StoredRows;

// Up to this number of query rows per key/value head, decoding reads K and V once.
constexpr int64_t kMostDecodeRows = 16;
// Up to this number it reads them several times, which is worth it if the other kernels would leave
// half of the multiprocessors without work (chunks of a long prompt).
constexpr int64_t kMostSplitRows = 128;
// Fewer keys are not worth splitting.
constexpr int64_t kLeastDecodeKeys = 256;

const char* why_not_decode(const ForwardParams& params, const Device& device) {
  const AttentionParams& call = params.call;
  if (params.cu_q != nullptr) return "its sequences are packed";
  const int64_t rows = call.queries * call.group();
  if (rows > kMostSplitRows) return "it has more than 128 query rows for each key/value head";
  if (rows > kMostDecodeRows) {
    if (why_not_mma(params) != nullptr) {
      return "it has more than 16 query rows for each key/value head, and cannot use mma.sync";
    }
    // mma/forward.cu has this number of blocks; Hopper's kernel has about half as many.
    constexpr int64_t kRowsOfBlock = 64;
    const int64_t blocks = call.batch * call.kv_heads * tiles_of(rows, kRowsOfBlock);
    if (2 * blocks > device.multiprocessors) {
      return "its 17 to 128 query rows for each key/value head are enough work without splits";
    }
  }
  if (call.keys < kLeastDecodeKeys) return "it has fewer than 256 keys";
  return nullptr;
}

// `of_cache`: mma/decode.cu turns int8 rows into bf16, and rounds f32 queries to bf16. Rounded to
// f16 they could overflow.
void choose_decode(CallPlan& plan, const Device& device, bool of_cache) {
  plan.kernel = Kernel::kDecode;
  ForwardParams rounded = plan.params;
  if (of_cache) {
    AttentionParams& call = rounded.call;
    for (StoredRows* const rows : {&call.k, &call.v}) {
      if (rows->type == DType::kInt8) rows->type = DType::kBF16;
    }
    if (call.q.type == DType::kF32 && call.k.type == DType::kBF16) {
      call.q = {.data = call.k.data, .type = DType::kBF16};  // is aligned
    }
  }
  plan.not_mma = why_not_mma(rounded);
  plan.splits.forward = plan.params;
  plan.splits.mma = plan.not_mma == nullptr;
  cut_keys(plan.splits, device);
}

// Chooses the kernel, trying the fastest first. No other code chooses.
void choose_kernel(CallPlan& plan, const Device& device) {
  const AttentionParams& call = plan.params.call;
  if (call.out.data == nullptr && call.lse.data == nullptr) return;
  if (call.batch * call.heads * call.queries == 0) return;
  plan.not_decode = why_not_decode(plan.params, device);
  if (plan.not_decode == nullptr) {
    choose_decode(plan, device, /*of_cache=*/false);
    return;
  }
  plan.not_hopper = hopper_objection(plan.params, device);
  if (plan.not_hopper == nullptr) {
    plan.kernel = Kernel::kHopper;
    return;
  }
  plan.not_mma = why_not_mma(plan.params);
  plan.kernel = plan.not_mma == nullptr ? Kernel::kMma : Kernel::kF32;
}

// Places the arrays of a call in its workspace and sets workspace_bytes; null: only counts bytes.
void lay_out(CallPlan& plan, void* workspace) {
  rules::Arena arena(workspace);
  AttentionParams& call = plan.params.call;
  lay_out_transforms(plan.transforms, call, arena);
  plan.splits.forward = plan.params;
  arena(plan.splits.partials,
        plan.kernel == Kernel::kDecode ? partial_bytes(plan.splits) / sizeof(float) : 0);
  arena(plan.splits.ended, plan.kernel == Kernel::kDecode && plan.splits.counts()
                               ? static_cast<uint64_t>(plan.splits.tiles())
                               : 0);
  plan.workspace_bytes = arena.bytes();
}

void finish(CallPlan& plan, const Device& device) {
  // Lay out first: rotated rows are aligned even if the tensors are not.
  lay_out(plan, nullptr);
  choose_kernel(plan, device);
  lay_out(plan, nullptr);
}

Status run_captures(const ForwardParams& forward, int64_t pool_pages, StreamHandle stream) {
  const AttentionParams& call = forward.call;
  const auto launch = [&](const Tensor& out, ScoreStage stage, int64_t place, int64_t head,
                          int64_t heads, int64_t first_row) {
    ScoresParams params;
    params.forward = forward;
    params.pool_pages = pool_pages;
    params.stage = stage;
    params.out = {out.data + place * out.strides[1],
                  {out.strides[0], out.strides[1], out.strides[2]}};
    params.first_head = head;
    params.heads = heads;
    params.first_row = first_row;
    params.rows = out.shape[2];
    return status_of(launch_scores(params, stream));
  };
  const Tensor& weights = call.weights.out;
  if (weights.shape.elements() != 0 && weights.data != nullptr) {
    MULTIHEAD_TRY(launch(weights, ScoreStage::kWeights, 0, 0, call.heads, 0));
  }
  for (const ScoreCapture& capture : call.captures) {
    if (capture.out.shape.elements() == 0) continue;
    if (capture.heads.empty()) {
      MULTIHEAD_TRY(launch(capture.out, capture.stage, 0, 0, call.heads, capture.first_row));
    }
    for (size_t i = 0; i < capture.heads.size(); ++i) {
      MULTIHEAD_TRY(launch(capture.out, capture.stage, static_cast<int64_t>(i), capture.heads[i], 1,
                           capture.first_row));
    }
  }
  if (call.dropout_mask.data == nullptr ||
      call.batch * call.heads * call.queries * call.keys == 0) {
    return {};
  }
  return status_of(launch_dropout_mask(forward, stream));
}

int launch_kernel(const CallPlan& plan, const Device& device, StreamHandle stream) {
  switch (plan.kernel) {
    case Kernel::kNone:
      return 0;
    case Kernel::kDecode:
      return launch_decode(plan.splits, stream);
    case Kernel::kHopper:
      return launch_forward_hopper(plan.params, device, stream);
    case Kernel::kMma:
      return launch_forward_mma(plan.params, device, stream);
    case Kernel::kF32:
      return launch_forward_f32(plan.params, device, stream);
  }
  return 0;
}

}  // namespace

bool is_aligned(const StoredRows& rows, const std::array<int64_t, 3>& extents) {
  constexpr int64_t kElements = 8;  // 8 elements of 2 bytes are 16 bytes
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    if (extents[axis] > 1 && rows.stride[axis] % kElements != 0) return false;
  }
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0;
}

const char* why_not_mma(const ForwardParams& params) {
  const AttentionParams& call = params.call;
  const auto is_half = [](const StoredRows& rows) {
    return rows.type == DType::kBF16 || rows.type == DType::kF16;
  };
  if (!is_half(call.q) || call.k.type != call.q.type || call.v.type != call.q.type) {
    return "q, k and v are not all bf16 or all f16";
  }
  if (call.head_dim % 8 != 0 || call.value_dim % 8 != 0) {
    return "d_k or d_v is not a multiple of 8";
  }
  const Extents extents = extents_of(params);
  const auto of_keys = [&](const StoredRows& rows) {
    // Pages and rings have axes of their own.
    constexpr int64_t kSeveral = 2;
    if (!rows.in_order()) return is_aligned(rows, {kSeveral, kSeveral, kSeveral});
    return is_aligned(rows, {extents.batch, call.kv_heads, extents.keys});
  };
  if (!is_aligned(call.q, {extents.batch, call.heads, extents.queries}) || !of_keys(call.k) ||
      !of_keys(call.v)) {
    return "rows of q, k or v do not begin at multiples of 16 bytes";
  }
  return nullptr;
}

CallPlan plan_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                   const AttentionShape& shape, const AttentionOptions& options,
                   const AttentionOutputs& outputs, const Device& device) {
  CallPlan plan{};
  plan.params.call = engine::attention_params(
      {.q = engine::stored_rows(q), .k = engine::stored_rows(k), .v = engine::stored_rows(v)},
      shape, options, outputs);
  plan.transforms = plan_transforms(q, k, options, plan.params);
  finish(plan, device);
  return plan;
}

engine::AttentionShape shape_of_all(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                    const ConstAnyTensor& v) {
  return {.batch = 1,
          .heads = q.shape[1],
          .kv_heads = k.shape[1],
          .queries = q.shape[0],
          .keys = k.shape[0],
          .head_dim = q.shape[2],
          .value_dim = v.shape[2]};
}

void set_sequences(ForwardParams& params, const PackedSequences& sequences) {
  AttentionParams& call = params.call;
  params.packed_queries = call.queries;
  params.packed_keys = call.keys;
  params.cu_q = sequences.cu_q.data();
  params.cu_k = sequences.cu_k.data();
  call.batch = static_cast<int64_t>(sequences.cu_q.size()) - 1;
  call.queries = rules::least_of(sequences.max_queries, call.queries);
  call.keys = rules::least_of(sequences.max_keys, call.keys);
  call.end_query = call.queries;
}

CallPlan plan_packed(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                     const PackedSequences& sequences, const AttentionOptions& options,
                     const AttentionOutputs& outputs, const Device& device) {
  const int64_t tokens_q = q.shape[0], tokens_k = k.shape[0];
  const ConstAnyTensor all_q = engine::sequence_of(q, 0, tokens_q);
  const ConstAnyTensor all_k = engine::sequence_of(k, 0, tokens_k);
  const ConstAnyTensor all_v = engine::sequence_of(v, 0, tokens_k);
  AttentionOutputs of_all{.out = engine::sequence_of(outputs.out, 0, tokens_q)};
  if (outputs.lse.given()) of_all.lse = engine::lse_of(outputs.lse, 0, tokens_q);
  CallPlan plan{};
  plan.params.call = engine::attention_params({.q = engine::stored_rows(all_q),
                                               .k = engine::stored_rows(all_k),
                                               .v = engine::stored_rows(all_v)},
                                              shape_of_all(q, k, v), options, of_all);
  set_sequences(plan.params, sequences);
  plan.transforms = plan_transforms(all_q, all_k, options, plan.params);
  finish(plan, device);
  return plan;
}

CallPlan plan_cache(const engine::CacheCall& cache, const AttentionOutputs& outputs,
                    int64_t pool_pages, const Device& device) {
  CallPlan plan{};
  AttentionParams& call = plan.params.call;
  call = engine::attention_params(cache.inputs, cache.shape, cache.options, outputs);
  plan.splits.pool_pages = pool_pages;
  // Caches always use the decode kernel: the other kernels read tensors only.
  const bool has_rows = call.batch * call.heads * call.queries != 0;
  if (has_rows && (call.out.data != nullptr || call.lse.data != nullptr)) {
    choose_decode(plan, device, /*of_cache=*/true);
  }
  lay_out(plan, nullptr);
  return plan;
}

Status run(CallPlan& plan, void* workspace, const Device& device, Stream stream) {
  lay_out(plan, workspace);
  MULTIHEAD_TRY(run_transforms(plan.transforms, stream));
  MULTIHEAD_TRY(status_of(launch_kernel(plan, device, stream)));
  return run_captures(plan.params, plan.splits.pool_pages, stream);
}

Device device_to_explain() {
  Device device;
  if (current_device(device).ok()) return device;
  return {.compute_capability = 90, .multiprocessors = 132, .shared_bytes = 227 << 10};
}

std::string explain(const CallPlan& plan, const Device& device) {
  const auto unless = [](const char* kernel, const char* objection) {
    if (objection == nullptr) return std::string();
    return std::string("; not ") + kernel + ", since " + objection;
  };
  std::string text;
  switch (plan.kernel) {
    case Kernel::kNone:
      return "nothing to compute";
    case Kernel::kDecode:
      text = std::string("decode, ") + (plan.splits.mma ? "mma.sync" : "f32") + ": " +
             std::to_string(plan.splits.splits) + " splits of " +
             std::to_string(plan.splits.split_keys) + " keys";
      if (plan.splits.mma && plan.params.call.q.type == DType::kF32) {
        text += ", with q rounded to bf16";
      }
      break;
    case Kernel::kHopper:
      text = "wgmma and TMA";
      break;
    case Kernel::kMma:
      text = "mma.sync";
      break;
    case Kernel::kF32:
      text = "f32";
      break;
  }
  text += " on compute capability " + std::to_string(device.compute_capability / 10) + "." +
          std::to_string(device.compute_capability % 10);
  text += unless("decode", plan.not_decode) + unless("wgmma", plan.not_hopper) +
          unless("mma.sync", plan.not_mma);
  if (plan.transforms) text += "; q and k are transformed before";
  return text;
}

}  // namespace multihead::cuda
