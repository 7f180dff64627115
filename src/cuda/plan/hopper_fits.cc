// Decides which calls the Hopper kernels support. All other calls go to the kernels that support
// every option.
#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/backward_params.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "multihead/tensor.h"
#include "rules/attention_params.h"

namespace multihead::cuda {
namespace {

constexpr const char* kTmaNeedsAlignment =
    "TMA needs addresses and strides that are multiples of 16 bytes, and no shared axis";

// True if TMA can read the rows: it reads 16-byte chunks, so the strides of all axes longer than 1
// are positive multiples of 16 bytes below 2^40 bytes.
bool tma_reads(const rules::StoredRows& rows, const std::array<int64_t, 3>& extents) {
  constexpr int64_t kMostElements = int64_t{1} << 39;
  if (reinterpret_cast<uintptr_t>(rows.data) % 16 != 0) return false;
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    const int64_t stride = rows.stride[axis];
    if (extents[axis] <= 1) continue;
    if (stride <= 0 || stride >= kMostElements || stride % 8 != 0) return false;
  }
  return true;
}

// True if the kernel can store the rows: it stores 16-byte chunks of 16-bit numbers, or 8-byte
// pairs of floats.
bool stores_pieces(const rules::WritableRows& rows, const std::array<int64_t, 3>& extents) {
  const bool is_f32 = rows.type == DType::kF32;
  const int64_t piece = is_f32 ? 2 : 8;  // in elements
  bool aligned = reinterpret_cast<uintptr_t>(rows.data) % (is_f32 ? 8 : 16) == 0;
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    if (extents[axis] > 1) aligned = aligned && rows.stride[axis] % piece == 0;
  }
  return aligned;
}

// Checks the device, and the inputs and options that forward and backward share. Null if they are
// supported.
const char* why_not_inputs(const ForwardParams& params, const Device& device) {
  // Only compute capability 9.0 has the instruction wgmma.
  if (device.compute_capability != 90) return "the compute capability is not 9.0";
  if (device.shared_bytes < kHopperSharedBytes)
    return "a block has less than 227 KB of shared memory";
  const rules::AttentionParams& call = params.call;
  const DType type = call.q.type;
  if ((type != DType::kBF16 && type != DType::kF16) || call.k.type != type || call.v.type != type) {
    return "q, k and v are not all bf16 or all f16";
  }
  if (!call.q.in_order() || !call.k.in_order() || !call.v.in_order()) {
    return "k and v are in a ring or in pages";
  }
  if (call.head_dim != call.value_dim ||
      (call.head_dim != 64 && call.head_dim != 128 && call.head_dim != 256)) {
    return "the head dims of q, k and v are not all 64, 128 or 256";
  }
  if (call.dropout.given()) return "there is dropout";
  const float scale = call.scale.queries * call.scale.scores * call.scale.softmax;
  // The running max is taken over unscaled products, so the scale must be positive.
  if (!(scale >= 0x1p-40F && scale <= 0x1p40F)) return "the scale is not within 2^-40 and 2^40";

  const Extents extents = extents_of(params);
  if (!tma_reads(call.q, {extents.batch, call.heads, extents.queries}) ||
      !tma_reads(call.k, {extents.batch, call.kv_heads, extents.keys}) ||
      !tma_reads(call.v, {extents.batch, call.kv_heads, extents.keys})) {
    return kTmaNeedsAlignment;
  }
  // The kernels use 32-bit positions, with room for one more tile.
  constexpr int64_t kMostRows = (int64_t{1} << 31) - 1024;
  for (const int64_t extent : {extents.queries, extents.keys, call.heads, call.batch}) {
    if (extent > kMostRows) return "an axis has 2^31 or more rows";
  }
  return nullptr;
}

bool has_terms(const rules::AttentionParams& call) {
  return call.mask.given() || call.changes_scores();
}

}  // namespace

const char* hopper_objection(const ForwardParams& params, const Device& device) {
  constexpr int64_t kMostTiles = (int64_t{1} << 31) - 1;
  if (const char* const objection = why_not_inputs(params, device); objection != nullptr) {
    return objection;
  }
  const rules::AttentionParams& call = params.call;
  // HopperSchedule counts tiles of at least 128 rows in 32 bits.
  const bool packed = params.cu_q != nullptr;
  const int64_t tiles =
      packed ? params.packed_queries / 128 + call.batch : call.batch * (call.queries / 128 + 1);
  if (tiles != 0 && call.heads > kMostTiles / tiles) {
    return "there are 2^31 or more tiles of queries";
  }
  if (call.out.data == nullptr) return "there is no output";
  if (call.head_dim > 128 && has_terms(call)) {
    return "rows of 256 leave no registers for a mask, a bias, ALiBi or softcap";
  }
  if (call.out.type != call.q.type && call.out.type != DType::kF32) {
    return "out has neither the type of q nor f32";
  }
  const Extents extents = extents_of(params);
  if (!stores_pieces(call.out, {extents.batch, call.heads, extents.queries})) {
    return "the rows of out are not aligned to 16 bytes";
  }
  return nullptr;
}

const char* hopper_backward_objection(const BackwardParams& params, const Device& device) {
  if (const char* const objection = why_not_inputs(params.forward, device); objection != nullptr) {
    return objection;
  }
  const rules::AttentionParams& call = params.forward.call;
  if (has_terms(call)) return "there is a mask, a bias, ALiBi or softcap";
  if (params.d_out.type != call.q.type) return "d_out has not the type of q";
  const Extents extents = extents_of(params.forward);
  const std::array<int64_t, 3> of_queries{extents.batch, call.heads, extents.queries};
  const std::array<int64_t, 3> of_keys{extents.batch, call.kv_heads, extents.keys};
  if (!tma_reads(params.d_out, of_queries)) return kTmaNeedsAlignment;
  const auto stores = [](const rules::Rows<float>& rows, const std::array<int64_t, 3>& axes) {
    return stores_pieces({rows.data, DType::kF32, rows.stride}, axes);
  };
  if (!stores(params.d_q, of_queries) || !stores(params.d_k, of_keys) ||
      !stores(params.d_v, of_keys)) {
    return "the rows of d_q, d_k or d_v are not aligned to 8 bytes";
  }
  return nullptr;
}

}  // namespace multihead::cuda
