// The steps of an entry point: check, plan, enqueue. A Call has
//
//   Status validate(engine::AttentionShape&)   runs all checks that need no address
//   Status validate_memory_of_call()           checks the addresses
//   Plan plan(shape, device)                   returns a plan with workspace_bytes and run()
#pragma once

#include <cstdint>

#include "cuda/calls/checks.h"
#include "cuda/runtime/runtime.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "multihead/cuda.h"
#include "multihead/status.h"

namespace multihead::cuda {

template <class Call>
Status workspace_of(const Call& call, uint64_t& bytes) {
  return engine::memory_guard([&]() -> Status {
    engine::AttentionShape shape;
    Device device;
    MULTIHEAD_TRY(call.validate(shape));
    MULTIHEAD_TRY(current_device(device));
    bytes = call.plan(shape, device).workspace_bytes;
    return {};
  });
}

template <class Call>
Status run_call(const Call& call, const Workspace& workspace, Stream stream) {
  return engine::memory_guard([&]() -> Status {
    engine::AttentionShape shape;
    Device device;
    MULTIHEAD_TRY(call.validate(shape));
    MULTIHEAD_TRY(current_device(device));
    MULTIHEAD_TRY(call.validate_memory_of_call());
    auto plan = call.plan(shape, device);
    MULTIHEAD_TRY(validate_workspace(workspace, plan.workspace_bytes));
    MULTIHEAD_TRY(validate_stream(stream));
    return run(plan, workspace.data, device, stream);
  });
}

}  // namespace multihead::cuda
