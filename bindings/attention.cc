// Attention, its caches and related operations, as JavaScript calls them.
#include <emscripten/emscripten.h>

#include <cstdint>
#include <vector>

#include "argument_block.h"
#include "arguments.h"
#include "call.h"
#include "engine/attention/attention_part.h"
#include "engine/attention/backward.h"
#include "engine/cache/cache_access.h"
#include "engine/runtime/team.h"
#include "engine/varlen/varlen.h"
#include "functions.h"
#include "handles.h"
#include "multihead/multihead.h"
#include "results.h"

namespace multihead::bindings {
extern "C" EMSCRIPTEN_KEEPALIVE int32_t multihead_attention() {
  AttentionCall call;
  const std::vector<ScoreCapture> captures = pushed_captures();
  call.outputs.captures = captures;
  return run(call.from, [&] {
    return multihead::attention(call.q, call.k, call.v, call.options, call.outputs, context());
  });
}

int32_t divide_attention(bool varlen) {
  AttentionCall call;
  const std::vector<ScoreCapture> captures = pushed_captures();
  call.outputs.captures = captures;
  return run(call.from, [&] {
    engine::AttentionParts parts;
    Status status = engine::divide_attention({call.q, call.k, call.v, call.options, call.outputs},
                                             varlen, parts);
    if (status.ok()) write(parts);
    return status;
  });
}

int32_t attention_part() {
  AttentionPartCall call;
  const std::vector<ScoreCapture> captures = pushed_captures();
  call.outputs.captures = captures;
  return run(call.from, [&] {
    return engine::attention_part({call.q, call.k, call.v, call.options, call.outputs}, call.part,
                                  context());
  });
}

int32_t attention_backward() {
  const BackwardCall call;
  return run(call.from, [&] {
    return engine::attention_backward_part(
        {call.q, call.k, call.v, call.options, call.results, call.d_out, call.gradients}, call.part,
        context());
  });
}

int32_t divide_backward() {
  const BackwardCall call;
  return run(call.from, [&] {
    engine::BackwardParts parts;
    Status status = engine::divide_backward(
        {call.q, call.k, call.v, call.options, call.results, call.d_out, call.gradients}, parts);
    if (status.ok()) write(parts);
    return status;
  });
}

int32_t prepare() {
  const AttentionCall call;
  return make<PreparedAttention>(call.from, [&](PreparedAttention& prepared) {
    return PreparedAttention::create(call.q, call.k, call.v, call.options, call.outputs, context(),
                                     prepared);
  });
}

void prepared_release(int32_t handle) { release_object<PreparedAttention>(handle); }

int32_t attention_scores() {
  const ScoresCall call;
  const std::vector<ScoreCapture> captures = pushed_captures();
  return run(call.from, [&] {
    return multihead::attention_scores(call.q, call.k, call.options,
                                       captures.empty() ? ScoreCapture() : captures.front(),
                                       context());
  });
}

int32_t attention_varlen() {
  const VarlenCall call;
  return run(call.from, [&] {
    return multihead::attention_varlen(call.q, call.k, call.v, call.cu_q, call.cu_k, call.options,
                                       call.outputs, context());
  });
}

int32_t attention_varlen_backward() {
  const VarlenBackwardCall call;
  return run(call.from, [&] {
    return multihead::attention_varlen_backward(call.q, call.k, call.v, call.cu_q, call.cu_k,
                                                call.options, call.results, call.d_out,
                                                call.gradients, context());
  });
}

int32_t check_varlen_backward() {
  const VarlenBackwardCall call;
  return run(call.from, [&] {
    engine::AttentionShape shape;
    return engine::validate_varlen_backward(call.q, call.k, call.v, call.cu_q, call.cu_k,
                                            call.options, call.results, call.d_out, call.gradients,
                                            shape);
  });
}

int32_t merge_attention() {
  const MergeCall call;
  return run(call.from, [&] {
    return multihead::merge_attention(call.out_a, call.lse_a, call.out_b, call.lse_b);
  });
}

int32_t rotate() {
  const RotateCall call;
  return run(call.from, [&] {
    return multihead::rotate(call.x, call.positions, call.rope, call.y, context());
  });
}

int32_t latent_attention() {
  const LatentCall call;
  return run(call.from, [&] {
    return multihead::latent_attention(call.inputs, call.form, call.options, call.outputs,
                                       context());
  });
}

int32_t linear() {
  const LinearCall call;
  return run(call.from,
             [&] { return multihead::linear(call.x, call.weight, call.bias, call.y, context()); });
}

int32_t cache_create() {
  const CacheConfigCall call;
  return make<KVCache>(call.from, [&](KVCache& cache) {
    return KVCache::Internals::create(call.config, engine::team_of(context()), cache);
  });
}

int32_t cache_append(int32_t handle) {
  const AppendCall call;
  return run(call.from, [&] {
    return agreed([&] { return at<KVCache>(handle).append(call.k, call.v, call.counts); });
  });
}

int32_t cache_attend(int32_t handle) {
  AttendCall call;
  const std::vector<ScoreCapture> captures = pushed_captures();
  call.outputs.captures = captures;
  return run(call.from, [&] {
    return at<KVCache>(handle).attend(call.q, call.options, call.outputs, context());
  });
}

extern "C" EMSCRIPTEN_KEEPALIVE int32_t multihead_run(int32_t handle, uint32_t q, uint32_t k,
                                                      uint32_t v, uint32_t out, uint32_t lse) {
  return run([&] {
    return at<PreparedAttention>(handle).run(pointer<const void>(q), pointer<const void>(k),
                                             pointer<const void>(v), pointer<void>(out),
                                             pointer<float>(lse));
  });
}

}  // namespace multihead::bindings
