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
    if (Status status = call.validate(shape); !status.ok()) return status;
    if (Status status = current_device(device); !status.ok()) return status;
    bytes = call.plan(shape, device).workspace_bytes;
    return {};
  });
}

template <class Call>
Status run_call(const Call& call, const Workspace& workspace, Stream stream) {
  return engine::memory_guard([&]() -> Status {
    engine::AttentionShape shape;
    Device device;
    if (Status status = call.validate(shape); !status.ok()) return status;
    if (Status status = current_device(device); !status.ok()) return status;
    if (Status status = call.validate_memory_of_call(); !status.ok()) return status;
    auto plan = call.plan(shape, device);
    if (Status status = validate_workspace(workspace, plan.workspace_bytes); !status.ok()) {
      return status;
    }
    if (Status status = validate_stream(stream); !status.ok()) return status;
    return run(plan, workspace.data, device, stream);
  });
}

}  // namespace multihead::cuda
