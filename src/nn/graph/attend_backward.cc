// Natively: the kernel of attention_backward().
#include "nn/graph/attend_backward.h"

#include "multihead/attention_backward.h"

namespace multihead::nn {

Status attend_backward(const AttendBackward& call, Context& context) {
  return attention_backward(call.q, call.k, call.v, call.options,
                            {.out = call.z, .lse = call.lse, .check_lse = false}, call.d_z,
                            {.d_q = call.d_q, .d_k = call.d_k, .d_v = call.d_v}, context);
}

}  // namespace multihead::nn
