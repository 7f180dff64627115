// Sums over rows that the backward needs in addition to its products: delta of each query row, and
// the gradients of the sinks.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cuda/backward_params.h"
#include "cuda/device/device.h"
#include "cuda/device/launch.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "cuda/warp_rows.h"
#include "rules/attention_params.h"

namespace multihead::cuda {
namespace {

__global__ void __launch_bounds__(kWarpRowThreads, 1)
    sum_rows(const __grid_constant__ BackwardParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const Extents stored = extents_of(p.forward);
  const int64_t rows = stored.queries;
  const int64_t index = row_of_warp();
  if (index >= stored.batch * call.heads * rows) return;
  const int64_t row = index % rows;
  const int64_t head = index / rows % call.heads;
  const int64_t batch = index / rows / call.heads;
  const int64_t of_out = rules::row_offset(p.out.stride, batch, head, row);
  const int64_t of_d_out = rules::row_offset(p.d_out.stride, batch, head, row);
  float sum = 0.0F;
  for (int64_t c = lane(); c < call.value_dim; c += kWarpSize) {
    sum += element(p.out.data, p.out.type, of_out + c) *
           element(p.d_out.data, p.d_out.type, of_d_out + c);
  }
  sum = warp_sum(sum);
  if (lane() != 0) return;
  *p.delta.row(batch, head, row) = sum;
  *p.reference.row(batch, head, row) = *p.lse.row(batch, head, row) / call.scale.softmax;
}

constexpr int kSinkThreads = 256;

// d_sink = -(sum over rows of exp(sink - LSE) * delta); one block per head.
__global__ void __launch_bounds__(kSinkThreads, 1)
    differentiate_sinks(const __grid_constant__ BackwardParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const int64_t head = block_number();
  if (head >= call.heads) return;
  const float sink = call.sinks[head];
  double sum = 0.0;
  for (int64_t index = 0; index < call.batch; ++index) {
    const Entry entry = entry_of(p.forward, index);
    for (int64_t query = thread_index(); query < entry.queries; query += kSinkThreads) {
      const int64_t row = entry.first_query + query;
      const auto lse = static_cast<double>(*p.lse.row(entry.batch, head, row));
      const auto delta = static_cast<double>(*p.delta.row(entry.batch, head, row));
      // Skip a sink of -inf: its weight is 0, but (-inf) - LSE is NaN for a row that sees no key.
      if (sink != -INFINITY) sum += exp(static_cast<double>(sink) - lse) * delta;
    }
  }
  sum = warp_sum(sum);
  auto* const sums = reinterpret_cast<double*>(shared_memory());
  if (lane() == 0) sums[warp()] = sum;
  sync_threads();
  if (thread_index() != 0) return;
  double total = 0.0;
  for (int i = 0; i < kSinkThreads / kWarpSize; ++i) total += sums[i];
  p.d_sinks[head] = static_cast<float>(-total);
}

}  // namespace

int launch_backward_rows(const BackwardParams& params, StreamHandle stream) {
  const Extents stored = extents_of(params.forward);
  const int64_t rows = stored.batch * params.forward.call.heads * stored.queries;
  return rows == 0 ? 0 : launch_warp_rows(rows, stream, sum_rows, params);
}

int launch_sink_gradient(const BackwardParams& params, StreamHandle stream) {
  return launch({.blocks = params.forward.call.heads,
                 .threads = kSinkThreads,
                 .shared_bytes = kSinkThreads / kWarpSize * sizeof(double),
                 .stream = stream},
                differentiate_sinks, params);
}

}  // namespace multihead::cuda
