// Which calls the Hopper kernel serves. Everything else goes to the kernels for all options.
#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/kernels.h"
#include "multihead/tensor.h"

namespace multihead::cuda {
namespace {

// TMA reads 16-byte pieces: all strides of axes longer than 1 are positive multiples of 16 bytes
// and below 2^40 bytes.
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

// The kernel stores 16-byte pieces of 16-bit numbers, and 8-byte pieces of floats.
bool stores_pieces(const rules::WritableRows& rows, const std::array<int64_t, 3>& extents) {
  const bool is_f32 = rows.type == DType::kF32;
  const int64_t piece = is_f32 ? 2 : 8;  // in elements
  bool aligned = reinterpret_cast<uintptr_t>(rows.data) % (is_f32 ? 8 : 16) == 0;
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    if (extents[axis] > 1) aligned = aligned && rows.stride[axis] % piece == 0;
  }
  return aligned;
}

}  // namespace

const char* hopper_objection(const ForwardParams& params) {
  const rules::AttentionParams& call = params.call;
  const DType type = call.q.type;
  if ((type != DType::kBF16 && type != DType::kF16) || call.k.type != type || call.v.type != type) {
    return "q, k and v are not all bf16 or all f16";
  }
  if (!call.q.in_order() || !call.k.in_order() || !call.v.in_order()) {
    return "k and v are in a ring or in pages";
  }
  if (call.key_width != call.value_width ||
      (call.key_width != 64 && call.key_width != 128 && call.key_width != 256)) {
    return "the head dims of q, k and v are not all 64, 128 or 256";
  }
  if (call.out.data == nullptr) return "there is no output";
  if (call.out.type != type && call.out.type != DType::kF32) {
    return "out has neither the type of q nor f32";
  }
  if (call.mask.given() || call.bias.given()) return "there is a mask or a bias";
  if (call.alibi_slopes != nullptr || call.softcap > 0.0F) return "ALiBi or softcap changes scores";
  if (call.dropout.given()) return "there is dropout";
  const float scale = call.scale.of_queries * call.scale.of_scores * call.scale.of_softmax;
  // The running maximum is that of the products before they are scaled.
  if (!(scale >= 0x1p-40F && scale <= 0x1p40F)) return "the scale is not within 2^-40 and 2^40";

  const bool packed = params.cu_q != nullptr;
  const int64_t entries = packed ? 1 : call.batch;
  const int64_t queries = packed ? params.packed_queries : call.queries;
  const int64_t keys = packed ? params.packed_keys : call.keys;
  if (!tma_reads(call.q, {entries, call.heads, queries}) ||
      !tma_reads(call.k, {entries, call.kv_heads, keys}) ||
      !tma_reads(call.v, {entries, call.kv_heads, keys})) {
    return "TMA needs addresses and strides that are multiples of 16 bytes, and no shared axis";
  }
  if (!stores_pieces(call.out, {entries, call.heads, queries})) {
    return "the rows of out are not aligned to 16 bytes";
  }
  // Positions are 32-bit in the kernel, with space for one more tile, and so is the grid.
  constexpr int64_t kMostRows = (int64_t{1} << 31) - 1024;
  const int64_t most_tiles = (call.queries / 128 + 1) * call.heads;
  if (queries > kMostRows || keys > kMostRows || call.heads > kMostRows ||
      call.batch > kMostRows / most_tiles) {
    return "there are 2^31 or more rows or tiles";
  }
  return nullptr;
}

}  // namespace multihead::cuda
