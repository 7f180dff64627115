// Trainers as JavaScript calls them, whatever they train: modules.cc and model_training.cc make
// them.
#include <emscripten/emscripten.h>

#include <cstdint>

#include "call.h"
#include "functions.h"
#include "handles.h"
#include "listed.h"
#include "multihead/multihead.h"
#include "training.h"

namespace multihead::bindings {

void trainer_release(int32_t handle) { release_object<Trainer>(handle); }

extern "C" EMSCRIPTEN_KEEPALIVE double multihead_trainer_bytes(int32_t handle) {
  return static_cast<double>(at<Trainer>(handle).bytes());
}
int32_t trainer_update(int32_t handle) {
  return run([&] { return update(at<Trainer>(handle)); });
}

int32_t trainer_set_learning_rate(int32_t handle, double rate) {
  return run([&] { return at<Trainer>(handle).set_learning_rate(static_cast<float>(rate)); });
}
double trainer_steps(int32_t handle) { return static_cast<double>(at<Trainer>(handle).steps()); }

int32_t trainer_gradients(int32_t handle) {
  return run_listing([&](StateDict& dict) { return at<Trainer>(handle).gradients(dict); });
}
int32_t trainer_state(int32_t handle) {
  return run_listing([&](StateDict& dict) { return at<Trainer>(handle).state_dict(dict); });
}
int32_t trainer_load(int32_t handle) {
  return run([&] { return at<Trainer>(handle).load_state_dict(take_pushed()); });
}

}  // namespace multihead::bindings
