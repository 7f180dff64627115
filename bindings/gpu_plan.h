// Gives JavaScript the plans that it plays on a browser's GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "results.h"
#include "webgpu/plan.h"

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

}  // namespace multihead::bindings
