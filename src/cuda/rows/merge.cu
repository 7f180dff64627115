// Merges two attention results over disjoint keys; one warp per row.
#include "cuda/kernels.h"
#include "cuda/rows.h"
#include "cuda/rows/merge_params.h"
#include "cuda/warp_rows.h"

namespace multihead::cuda {
namespace {

__global__ void __launch_bounds__(kWarpRowThreads) merge_rows(const MergeParams p) {
  const int64_t index = row_of_warp();
  if (index >= p.batch * p.heads * p.rows) return;
  const int64_t row = index % p.rows;
  const int64_t head = index / p.rows % p.heads;
  const int64_t batch = index / p.rows / p.heads;
  float* const lse = p.lse_a.row(batch, head, row);
  const float lse_a = *lse, lse_b = *p.lse_b.row(batch, head, row);
  const float most = lse_b > lse_a ? lse_b : lse_a;
  // A result whose LSE is -inf saw no key and has weight 0, whatever its row holds.
  const float share_a = lse_a == -INFINITY ? 0.0F : expf(lse_a - most);
  const float share_b = lse_b == -INFINITY ? 0.0F : expf(lse_b - most);
  const float sum = share_a + share_b;
  // All lanes must have read the LSE before lane 0 writes it.
  sync_warp();
  if (lane() == 0) *lse = sum == 0.0F ? -INFINITY : most + logf(sum);
  if (p.width == 0) return;
  float* const out = p.out_a.row(batch, head, row);
  const float* const other = p.out_b.row(batch, head, row);
  for (int64_t c = lane(); c < p.width; c += kWarpSize) {
    float value = 0.0F;
    if (share_a != 0.0F) value += share_a * out[c];
    if (share_b != 0.0F) value += share_b * other[c];
    out[c] = sum == 0.0F ? 0.0F : value / sum;
  }
}

}  // namespace

int launch_merge(const MergeParams& params, StreamHandle stream) {
  const int64_t rows = params.batch * params.heads * params.rows;
  return launch_warp_rows(rows, stream, merge_rows, params);
}

}  // namespace multihead::cuda
