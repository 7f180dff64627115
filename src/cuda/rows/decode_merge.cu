// Merges the results of the splits of decoding. A block serves one row; its warps take the splits
// in turns, so that many of them are read at the same time: with one query, the merge of tens of
// splits would otherwise take as long as the splits.
#include <cstddef>
#include <cstdint>

#include "cuda/device/launch.h"
#include "cuda/kernels.h"
#include "cuda/rows.h"
#include "cuda/splits.h"
#include "rules/lse.h"

namespace multihead::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kColumns = static_cast<int>(kMaxWidth) / kWarpSize;  // per lane

// Shared memory of a block: what each warp has added up.
struct MergeState {
  float sums[kWarps];
  float values[kWarps][kMaxWidth];
};

__global__ void __launch_bounds__(kThreads) decode_merge(const __grid_constant__ SplitParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const int64_t group = call.group();
  const int64_t all_rows = call.queries * group;
  const int64_t index = block_number();
  if (index >= call.batch * call.kv_heads * all_rows) return;
  const int64_t row = index % all_rows;
  const int64_t head = index / all_rows % call.kv_heads * group + row % group;
  const int64_t batch = index / all_rows / call.kv_heads;
  const int64_t query = row / group;
  const int width = static_cast<int>(call.value_dim);
  const int stride = width + 2;
  const float* const partials = p.partials + index * p.splits * stride;
  auto& state = *reinterpret_cast<MergeState*>(shared_memory());

  // Subtract scores before multiplying by `factor`: scaled scores near the largest float would
  // overflow.
  const float factor = call.scale.softmax * kLog2E;
  const float sink = call.sinks == nullptr ? -INFINITY : call.sinks[head] / call.scale.softmax;
  float largest = sink;
  for (int64_t split = lane(); split < p.splits; split += kWarpSize) {
    const float of_split = partials[split * stride + width];
    if (of_split > largest || of_split != of_split) largest = of_split;
  }
  largest = warp_max(largest);

  float values[kColumns] = {};
  float sum = 0.0F;  // of this lane's splits
  // Lane l has the share of split first + kWarps * l.
  for (int64_t first = warp(); first < p.splits; first += kWarps * kWarpSize) {
    const int64_t own = first + kWarps * lane();
    float share = 0.0F;
    if (own < p.splits) {
      const float of_split = partials[own * stride + width];
      if (of_split != -INFINITY) share = exp2f((of_split - largest) * factor);
      sum += share * partials[own * stride + width + 1];
    }
    const auto count =
        static_cast<int>(rules::least_of((p.splits - first + kWarps - 1) / kWarps, kWarpSize));
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float of_split = shuffle(share, i);
      const float* const from = partials + (first + kWarps * i) * stride;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const int c = n * kWarpSize + lane();
        if (c < width) values[n] += of_split * from[c];
      }
    }
  }
  sum = warp_sum(sum);
  if (lane() == 0) state.sums[warp()] = sum;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int c = n * kWarpSize + lane();
    if (c < width) state.values[warp()][c] = values[n];
  }
  sync_threads();

  float total = sink == -INFINITY ? 0.0F : exp2f((sink - largest) * factor);
  for (const float of_warp : state.sums) total += of_warp;
  if (call.out.data != nullptr) {
    const int64_t at = rules::row_offset(call.out.stride, batch, head, query);
    for (int c = thread_index(); c < width; c += kThreads) {
      float value = 0.0F;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) value += state.values[w][c];
      set_element(call.out.data, call.out.type, at + c, total == 0.0F ? 0.0F : value / total);
    }
  }
  if (call.lse.data != nullptr && thread_index() == 0) {
    *call.lse.row(batch, head, query) =
        rules::lse_of(largest, call.scale.softmax, static_cast<double>(total));
  }
}

}  // namespace

int launch_decode(const SplitParams& params, StreamHandle stream) {
  const rules::AttentionParams& call = params.forward.call;
  const int error =
      params.mma ? launch_decode_mma(params, stream) : launch_decode_f32(params, stream);
  if (error != 0) return error;
  return launch({.blocks = call.batch * call.heads * call.queries,
                 .threads = kThreads,
                 .shared_bytes = sizeof(MergeState),
                 .stream = stream},
                decode_merge, params);
}

}  // namespace multihead::cuda
