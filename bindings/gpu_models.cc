// Models on a browser's GPU, as JavaScript calls them: it fills the buffers and plays the plans.
#include <cstdint>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "functions.h"
#include "gpu_plan.h"
#include "handles.h"
#include "lists.h"
#include "multihead/models.h"
#include "results.h"
#include "webgpu/device_model.h"

namespace multihead::bindings {
namespace {

using models::ModelLoader;
using models::Session;
using webgpu::DeviceModel;

std::vector<int32_t> as_integers(const std::vector<uint32_t>& words) {
  return {words.begin(), words.end()};
}

// Null for a loader that has finished.
ModelLoader* loader_of(int32_t handle) { return handle == 0 ? nullptr : &at<ModelLoader>(handle); }

}  // namespace

int32_t gpu_model_create(int32_t loader) {
  return make<DeviceModel>(Arguments{}, [&](DeviceModel& made) {
    return DeviceModel::create(at<ModelLoader>(loader), made);
  });
}

void gpu_model_release(int32_t handle) { release_object<DeviceModel>(handle); }

void gpu_model_buffers(int32_t handle) {
  static GpuPlan words;
  const webgpu::ModelBuffers& buffers = at<DeviceModel>(handle).buffers();
  words.words.clear();
  for (uint32_t buffer = 0; buffer < buffers.count(); ++buffer) {
    words.words.push_back(static_cast<int32_t>(buffers.words(buffer)));
  }
  write(words);
}

int32_t gpu_model_ready(int32_t handle, int32_t loader) {
  return static_cast<int32_t>(at<DeviceModel>(handle).ready(loader_of(loader)));
}

bool gpu_model_send(int32_t handle, int32_t loader, int32_t buffer) {
  static GpuPiece given;
  DeviceModel& model = at<DeviceModel>(handle);
  webgpu::MatrixPiece piece;
  if (buffer > 0 && !model.send(loader_of(loader), static_cast<uint32_t>(buffer), piece)) {
    return false;
  }
  if (buffer == 0) {
    const std::vector<float> vectors = model.buffers().vectors();
    const auto* const words = reinterpret_cast<const int32_t*>(vectors.data());
    given.units.assign(words, words + vectors.size());
  } else {
    given.units = as_integers(piece.units);
  }
  given.scales = as_integers(piece.scales);
  given.first_unit = static_cast<double>(piece.first_unit);
  given.first_scale = static_cast<double>(piece.first_scale);
  write(given);
  return true;
}

int32_t gpu_model_forward(int32_t handle) {
  const GpuModelCall call;
  models::ModelInputs inputs = call.inputs;
  const std::vector<models::Edit> edits = edits_of(call.edits);
  inputs.edits = edits;
  const std::vector<models::Capture> captures = captures_of(call.captures);
  return give_plan(call.from, [&](webgpu::Plan& plan) {
    return at<DeviceModel>(handle).forward(
        inputs, captures,
        {call.state, call.logits, call.only_token, call.first_layer, call.from_state}, call.device,
        plan);
  });
}

int32_t gpu_model_embed(int32_t handle) {
  const ModelVectorsCall call;
  return run(call.from, [&] {
    return at<DeviceModel>(handle).finish_embed(call.inputs, call.pooling, call.normalize,
                                                call.state, call.out, context());
  });
}

int32_t gpu_model_finish(int32_t handle) {
  const ModelFinishCall call;
  return run(call.from, [&] {
    return at<DeviceModel>(handle).finish_forward(
        call.inputs, call.state, {.logits = call.logits, .pooler_output = call.pooler_output},
        context());
  });
}

int32_t gpu_session_create(int32_t handle, int32_t model) {
  const SessionCall call;
  return make<Session>(call.from, [&](Session& session) {
    return at<DeviceModel>(handle).create_session(
        at<models::Model>(model),
        {.capacity = call.capacity,
         .cache_type = call.cache_type,
         .head_scales = {call.head_scales.begin(), call.head_scales.end()},
         .edits = edits_of(call.edits)},
        session);
  });
}

int32_t gpu_session_append(int32_t handle, int32_t session) {
  const GpuSessionCall call;
  return give_plan(call.from, [&](webgpu::Plan& plan) {
    return at<DeviceModel>(handle).append(at<Session>(session), call.ids, call.device, plan,
                                          context());
  });
}

}  // namespace multihead::bindings
