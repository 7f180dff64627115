// Training as JavaScript calls it.
#include <emscripten/emscripten.h>

#include <cstdint>

#include "arguments.h"
#include "call.h"
#include "functions.h"
#include "handles.h"
#include "lab.h"
#include "listed.h"
#include "multihead/multihead.h"
#include "results.h"

namespace multihead::bindings {
namespace {

Status update(Trainer& trainer) {
  TrainingStep result;
  Status status = trainer.update(result, context());
  if (status.ok()) write(result);
  return status;
}

}  // namespace

int32_t trainer_create(int32_t model) {
  const TrainerOptionsCall call;
  return make<Trainer>(call.from, [&](Trainer& trainer) {
    return Trainer::create(transformer_at(model), call.options, trainer);
  });
}
void trainer_release(int32_t handle) { release_object<Trainer>(handle); }

extern "C" EMSCRIPTEN_KEEPALIVE int32_t multihead_train(int32_t handle, bool updates) {
  TrainingCall call;
  Trainer& trainer = at<Trainer>(handle);
  return run(call.from, [&] {
    MULTIHEAD_TRY(apply_lab(trainer.model().config().block, call.options));
    Status status =
        trainer.accumulate(call.tokens, call.batch, call.targets, call.options, context());
    return status.ok() && updates ? update(trainer) : status;
  });
}
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
