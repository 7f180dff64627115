// Prints how the host launches each CUDA kernel, for native/dev/cuda_assembly.mjs. It calls the
// launch functions of src/cuda in the emulator, which here runs no kernel.
//
//   multihead-cuda-launches      prints a line per launch: the kernel's address relative to
//                                multihead_launches_origin, the threads per block, the bytes of
//                                dynamic shared memory, and the width of the rows
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "cuda/backward_params.h"
#include "cuda/emulator/block.h"
#include "cuda/kernels.h"
#include "cuda/rows/merge_params.h"
#include "cuda/rows/rotate_params.h"
#include "cuda/rows/scores_params.h"
#include "cuda/splits.h"

// Reference point for addresses, because absolute addresses differ in each run.
extern "C" void multihead_launches_origin() {}

namespace multihead::cuda {
namespace {

constexpr Device kH100{.compute_capability = 90, .multiprocessors = 132, .shared_bytes = 227 << 10};

// One query without keys. Block sizes do not depend on the number of keys.
ForwardParams one_query(DType type, int64_t width) {
  ForwardParams params{};
  rules::AttentionParams& call = params.call;
  for (rules::StoredRows* const rows : {&call.q, &call.k, &call.v}) rows->type = type;
  call.out.type = type;
  call.batch = call.heads = call.kv_heads = call.queries = call.end_query = 1;
  call.head_dim = call.value_dim = width;
  return params;
}

void launch_forward(int64_t width) {
  launch_forward_f32(one_query(DType::kF32, width), kH100, nullptr);
  for (const DType type : {DType::kBF16, DType::kF16}) {
    ForwardParams params = one_query(type, width);
    launch_forward_mma(params, kH100, nullptr);
    launch_forward_hopper(params, kH100, nullptr);
    params.call.visibility.causal = true;
    launch_forward_hopper(params, kH100, nullptr);
    params.call.softcap = 1.0F;
    launch_forward_mma(params, kH100, nullptr);
    if (width <= 128) launch_forward_hopper(params, kH100, nullptr);
  }
}

void launch_hopper_backward(int64_t width) {
  // Aligned dummy addresses, which no kernel uses.
  alignas(16) std::byte aligned{};
  float number = 0.0F;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    BackwardParams params{};
    params.forward = one_query(type, width);
    params.forward.call.keys = 1;
    for (rules::StoredRows* const rows :
         {&params.forward.call.q, &params.forward.call.k, &params.forward.call.v, &params.d_out}) {
      rows->data = &aligned;
      rows->type = type;
    }
    params.d_q.data = params.d_k.data = params.d_v.data = &number;
    launch_backward_hopper(params, kH100, nullptr);
  }
}

void launch_decoding(int64_t width) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    SplitParams params;
    params.forward = one_query(type, width);
    params.splits = 1000;  // too many for the last block to merge
    launch_decode(params, nullptr);
    params.mma = type != DType::kF32;
    if (!params.mma) continue;
    launch_decode(params, nullptr);
    params.forward.call.softcap = 1.0F;
    launch_decode(params, nullptr);
  }
}

void launch_backward(int64_t width) {
  BackwardParams params;
  params.forward = one_query(DType::kF32, width);
  params.forward.call.keys = 1;
  float any = 0.0F;  // dummy address: gradients with null addresses launch no kernel
  params.d_q.data = params.d_k.data = params.d_v.data = params.d_bias.data = &any;
  params.d_sinks = &any;
  launch_backward_rows(params, nullptr);
  launch_backward_f32(params, kH100, nullptr);
  launch_bias_gradient(params, nullptr);
  launch_sink_gradient(params, nullptr);
  for (const DType type : {DType::kBF16, DType::kF16}) {
    params.forward.call.q.type = type;
    params.forward.call.softcap = 0.0F;
    launch_backward_mma(params, kH100, nullptr);
    params.forward.call.softcap = 1.0F;
    launch_backward_mma(params, kH100, nullptr);
  }
}

// Launches kernels whose blocks are the same for all widths.
void launch_others(int64_t width) {
  RotateParams rotate;
  rotate.batch = rotate.heads = rotate.rows = 1;
  rotate.width = width;
  launch_rotate(rotate, nullptr);
  RotateBackParams back;
  back.rotate = rotate;
  float d_gain = 0.0F;
  back.d_gain = &d_gain;
  launch_rotate_back(back, nullptr);
  MergeParams merge;
  merge.batch = merge.heads = merge.rows = 1;
  merge.width = width;
  launch_merge(merge, nullptr);
  ScoresParams scores;
  scores.forward = one_query(DType::kF32, width);
  scores.heads = scores.rows = 1;
  launch_scores(scores, nullptr);
  launch_dropout_mask(scores.forward, nullptr);
}

}  // namespace
}  // namespace multihead::cuda

int main() {
  using namespace multihead::cuda;  // NOLINT(google-build-using-namespace)
  for (const int64_t width : {64, 128, 256}) {
    emulator::launch_observer() = [width](const emulator::Launch& launch) {
      const auto origin = reinterpret_cast<intptr_t>(&multihead_launches_origin);
      const intptr_t offset = reinterpret_cast<intptr_t>(launch.kernel) - origin;
      std::printf("%jd %d %zu %d\n", intmax_t{offset}, launch.threads, launch.shared_bytes,
                  static_cast<int>(width));
    };
    launch_forward(width);
    launch_backward(width);
    launch_hopper_backward(width);
    launch_decoding(width);
    launch_others(width);
  }
  return 0;
}
