// Decoding: launches the splits, and the merge of many splits of many rows, which would take the
// last block of a tile too long. Then each warp merges 32 columns of a row, and all loads of up to
// 32 splits overlap.
#include "cuda/device/launch.h"
#include "cuda/divide.h"
#include "cuda/kernels.h"
#include "cuda/merge_parts.h"
#include "cuda/splits.h"
#include "cuda/warp_rows.h"

namespace multihead::cuda {
namespace {

__global__ void __launch_bounds__(kWarpRowThreads, 1)
    decode_merge(const __grid_constant__ SplitParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const auto [index, columns] = divide(row_of_warp(), (call.value_dim + kWarpSize - 1) / kWarpSize);
  const int64_t group = call.group(), rows = call.queries * group;
  if (index >= call.batch * call.kv_heads * rows) return;
  const auto [kv_head_of_batch, row] = divide(index, rows);
  const auto [batch, kv_head] = divide(kv_head_of_batch, call.kv_heads);
  const auto [query_of_head, head_of_group] = divide(row, group);
  wait_for_previous_kernel();
  const int64_t head = kv_head * group + head_of_group, query = query_of_head;
  merge_splits<1>(
      p, index, batch, [=] { return head; }, [=] { return query; },
      static_cast<int>(columns) * kWarpSize);
}

}  // namespace

int launch_decode(const SplitParams& params, StreamHandle stream) {
  const rules::AttentionParams& call = params.forward.call;
  const int error =
      params.mma ? launch_decode_mma(params, stream) : launch_decode_f32(params, stream);
  if (error != 0 || !params.merges() || params.counts()) return error;
  const int64_t columns = (call.value_dim + kWarpSize - 1) / kWarpSize;
  const int64_t warps = call.batch * call.heads * call.queries * columns;
  return launch({.blocks = (warps + kRowsOfBlock - 1) / kRowsOfBlock,
                 .threads = kWarpRowThreads,
                 .shared_bytes = 0,
                 .stream = stream,
                 .early = params.early},
                decode_merge, params);
}

}  // namespace multihead::cuda
