// Prepared gradients of attention, as JavaScript calls them. A separate file, because
// multihead/core excludes it: a function that is exported to JavaScript keeps everything that it
// calls in the module.
#include <emscripten/emscripten.h>

#include <cstdint>

#include "arguments.h"
#include "call.h"
#include "functions.h"
#include "handles.h"
#include "multihead/prepared_attention_backward.h"

namespace multihead::bindings {

int32_t prepare_backward() {
  const BackwardCall call;
  return make<PreparedAttentionBackward>(call.from, [&](PreparedAttentionBackward& prepared) {
    return PreparedAttentionBackward::create(call.q, call.k, call.v, call.options, call.results,
                                             call.d_out, call.gradients, context(), prepared);
  });
}

void prepared_backward_release(int32_t handle) {
  release_object<PreparedAttentionBackward>(handle);
}

extern "C" EMSCRIPTEN_KEEPALIVE int32_t multihead_run_backward(int32_t handle, uint32_t q,
                                                               uint32_t k, uint32_t v, uint32_t out,
                                                               uint32_t lse, uint32_t d_out,
                                                               uint32_t d_q, uint32_t d_k,
                                                               uint32_t d_v) {
  return run([&] {
    return at<PreparedAttentionBackward>(handle).run({.q = pointer<const void>(q),
                                                      .k = pointer<const void>(k),
                                                      .v = pointer<const void>(v),
                                                      .out = pointer<const void>(out),
                                                      .lse = pointer<const float>(lse),
                                                      .d_out = pointer<const void>(d_out),
                                                      .d_q = pointer<float>(d_q),
                                                      .d_k = pointer<float>(d_k),
                                                      .d_v = pointer<float>(d_v)});
  });
}

}  // namespace multihead::bindings
