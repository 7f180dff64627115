// The attention backward of bf16 or f16 rows with every option, by mma.sync with sums in f32 (sm_80
// and up). It is algorithm 2 of FlashAttention-2 (Dao, arXiv:2307.08691), except that a separate
// kernel computes d_q. This costs the products Q K^T and d_out V^T a second time; in exchange no
// sum needs atomic additions, and results are the same in every run.
#include <cstdint>

#include "cuda/backward_params.h"
#include "cuda/kernels.h"
#include "cuda/mma/backward_keys.h"
#include "cuda/mma/backward_queries.h"
#include "cuda/mma/options.h"
#include "multihead/tensor.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {
namespace mma {
namespace {

template <bool kOptions, class T, int kWidth>
int launch_gradients(const BackwardParams& params, BackwardLaunches& launches) {
  const rules::AttentionParams& call = params.forward.call;
  if (call.batch * call.kv_heads * call.keys != 0) {
    int error = 0;
    const bool d_k = params.d_k.data != nullptr, d_v = params.d_v.data != nullptr;
    if constexpr (kWidth <= 128) {
      if (d_k || d_v) error = launch_keys<kOptions, true, true, T, kWidth>(params, launches);
    } else {
      if (d_k) error = launch_keys<kOptions, true, false, T, kWidth>(params, launches);
      if (error == 0 && d_v) {
        error = launch_keys<kOptions, false, true, T, kWidth>(params, launches);
      }
    }
    if (error != 0) return error;
  }
  if (params.d_q.data == nullptr || call.batch * call.rows() == 0) return 0;
  return launch_queries<kOptions, T, kWidth>(params, launches);
}

template <bool kOptions, class T>
int launch_width(const BackwardParams& params, BackwardLaunches& launches) {
  const rules::AttentionParams& call = params.forward.call;
  const int64_t width = rules::most_of(call.head_dim, call.value_dim);
  if (width <= 64) return launch_gradients<kOptions, T, 64>(params, launches);
  if (width <= 128) return launch_gradients<kOptions, T, 128>(params, launches);
  static_assert(kMaxWidth <= 256);
  return launch_gradients<kOptions, T, 256>(params, launches);
}

template <class T>
int launch_type(const BackwardParams& params, BackwardLaunches launches) {
  return has_options(params.forward.call) ? launch_width<true, T>(params, launches)
                                          : launch_width<false, T>(params, launches);
}

}  // namespace
}  // namespace mma

int launch_backward_mma(const BackwardParams& params, const Device& device, StreamHandle stream) {
  const BackwardLaunches launches{.stream = stream, .allows_early = device.early_launches};
  return params.forward.call.q.type == DType::kF16 ? mma::launch_type<Float16>(params, launches)
                                                   : mma::launch_type<BFloat16>(params, launches);
}

}  // namespace multihead::cuda
