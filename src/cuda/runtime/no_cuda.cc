// Replaces runtime.cc and the kernels in builds without CUDA: every call returns kDevice before it
// enqueues anything.
#include "cuda/kernels.h"
#include "cuda/runtime/runtime.h"
#include "multihead/status.h"

namespace multihead::cuda {
namespace {

Status no_cuda() {
  return {StatusCode::kDevice, "device", "a build of multihead with CUDA (cmake --preset cuda)",
          "one without"};
}

constexpr int kNotReached = 1;

}  // namespace

Status current_device(Device&) { return no_cuda(); }
Status validate_stream(Stream) { return no_cuda(); }
Status validate_memory(const char*, const void*) { return no_cuda(); }
Status status_of(int error) { return error == 0 ? Status() : no_cuda(); }

int find_code(int&) { return kNotReached; }
int launch_forward_f32(const ForwardParams&, const Device&, StreamHandle) { return kNotReached; }
int launch_forward_mma(const ForwardParams&, const Device&, StreamHandle) { return kNotReached; }
int launch_forward_hopper(const ForwardParams&, const Device&, StreamHandle) { return kNotReached; }
int launch_decode(const SplitParams&, StreamHandle) { return kNotReached; }
int launch_rotate(const RotateParams&, StreamHandle) { return kNotReached; }
int launch_merge(const MergeParams&, StreamHandle) { return kNotReached; }
int launch_scores(const ScoresParams&, StreamHandle) { return kNotReached; }
int launch_backward_rows(const BackwardParams&, StreamHandle) { return kNotReached; }
int launch_backward_f32(const BackwardParams&, const Device&, StreamHandle) { return kNotReached; }
int launch_backward_mma(const BackwardParams&, const Device&, StreamHandle) { return kNotReached; }
int launch_backward_hopper(const BackwardParams&, const Device&, StreamHandle) {
  return kNotReached;
}
int launch_bias_gradient(const BackwardParams&, StreamHandle) { return kNotReached; }
int launch_sink_gradient(const BackwardParams&, StreamHandle) { return kNotReached; }
int launch_rotate_back(const RotateBackParams&, StreamHandle) { return kNotReached; }
int launch_dropout_mask(const ForwardParams&, StreamHandle) { return kNotReached; }

}  // namespace multihead::cuda
