// Gives JavaScript the plans that it plays on a browser's GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "results.h"
#include "webgpu/planner.h"

namespace multihead::bindings {

// Makes a plan, and gives its numbers.
template <class Work>
int32_t give_plan(const Arguments& from, Work work) {
  return run(from, [&] {
    static GpuPlan made;
    webgpu::Plan plan;
    Status status = work(plan);
    if (!status.ok()) return status;
    const std::vector<uint32_t> words = webgpu::packed(plan);
    made.words.assign(words.begin(), words.end());
    write(made);
    return status;
  });
}

template <class Work>
int32_t give_plan(const Arguments& from, const webgpu::Device& device, Work work) {
  return give_plan(from, [&](webgpu::Plan& plan) {
    webgpu::Planner planner(device);
    const Status status = work(planner);
    return status.ok() ? planner.finish(plan) : status;
  });
}

}  // namespace multihead::bindings
