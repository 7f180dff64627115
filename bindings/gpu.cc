// Plans of attention for a browser's GPU, as JavaScript calls them. bindings/src/gpu/ plays them.
#include <cstdint>
#include <vector>

#include "argument_block.h"
#include "arguments.h"
#include "call.h"
#include "cpu/elementwise/elementwise.h"
#include "functions.h"
#include "gpu_plan.h"
#include "handles.h"
#include "multihead/multihead.h"
#include "webgpu/plan_attention.h"

// Caches here have no rows, which are the GPU's: without this, the module would have the kernels
// that convert them.
namespace multihead::cpu {
void convert_rows(const ConvertRows& /*rows*/) {}
}  // namespace multihead::cpu

namespace multihead::bindings {
int32_t gpu_attention() {
  GpuAttentionCall call;
  const std::vector<ScoreCapture> captures = pushed_captures();
  call.outputs.captures = captures;
  return give_plan(call.from, call.device, [&](webgpu::Planner& to) {
    return webgpu::plan_attention({call.q, call.k, call.v, call.options, call.outputs}, to);
  });
}

int32_t gpu_attention_varlen() {
  const GpuVarlenCall call;
  return give_plan(call.from, call.device, [&](webgpu::Planner& to) {
    return webgpu::plan_varlen({call.q, call.k, call.v, call.options, call.outputs}, call.cu_q,
                               call.cu_k, to);
  });
}

int32_t gpu_scores() {
  const GpuScoresCall call;
  const std::vector<ScoreCapture> captures = pushed_captures();
  return give_plan(call.from, call.device, [&](webgpu::Planner& to) {
    return webgpu::plan_scores(call.q, call.k, call.options,
                               captures.empty() ? ScoreCapture() : captures.front(), to);
  });
}

int32_t gpu_rotate() {
  const GpuRotateCall call;
  return give_plan(call.from, call.device, [&](webgpu::Planner& to) {
    return webgpu::plan_rotate(call.x, call.positions, call.rope, call.y, to);
  });
}

int32_t gpu_linear() {
  const GpuLinearCall call;
  return give_plan(call.from, [&](webgpu::Plan& plan) {
    return webgpu::plan_linear(call.x, call.weight, call.bias, call.y, call.device, plan);
  });
}

int32_t gpu_cache_create() {
  const CacheConfigCall call;
  return make<KVCache>(call.from,
                       [&](KVCache& cache) { return webgpu::create_cache(call.config, cache); });
}

int32_t gpu_cache_append(int32_t handle) {
  const GpuAppendCall call;
  return give_plan(call.from, call.device, [&](webgpu::Planner& to) {
    return webgpu::plan_append(at<KVCache>(handle), call.rows, call.k, call.v, call.counts, to);
  });
}

int32_t gpu_cache_attend(int32_t handle) {
  GpuAttendCall call;
  const std::vector<ScoreCapture> captures = pushed_captures();
  call.outputs.captures = captures;
  return give_plan(call.from, call.device, [&](webgpu::Planner& to) {
    return webgpu::plan_attend(at<KVCache>(handle), call.rows, call.q, call.options, call.outputs,
                               to);
  });
}

}  // namespace multihead::bindings
