// Training as JavaScript calls it.
#include <cstdint>

#include "arguments.h"
#include "call.h"
#include "functions.h"
#include "handles.h"
#include "listed.h"
#include "multihead/multihead.h"
#include "results.h"

namespace multihead::bindings {
namespace {

// Runs a call that gives the result of an update, and writes it.
template <class Work>
Status update_and_write(Work work) {
  TrainingStep result;
  Status status = work(result);
  if (status.ok()) write(result);
  return status;
}

}  // namespace

int32_t trainer_create(int32_t model) {
  const TrainerOptionsCall call;
  return make<Trainer>(call.from, [&](Trainer& trainer) {
    return Trainer::create(at<Transformer>(model), call.options, trainer);
  });
}
void trainer_release(int32_t handle) { release_object<Trainer>(handle); }

int32_t trainer_step(int32_t handle) {
  const TrainingCall call;
  return run(call.from, [&] {
    return update_and_write([&](TrainingStep& result) {
      return at<Trainer>(handle).step(call.tokens, call.batch, call.targets, call.options, result,
                                      context());
    });
  });
}
int32_t trainer_accumulate(int32_t handle) {
  const TrainingCall call;
  return run(call.from, [&] {
    return at<Trainer>(handle).accumulate(call.tokens, call.batch, call.targets, call.options,
                                          context());
  });
}
int32_t trainer_update(int32_t handle) {
  return run([&] {
    return update_and_write(
        [&](TrainingStep& result) { return at<Trainer>(handle).update(result, context()); });
  });
}

int32_t trainer_set_learning_rate(int32_t handle, double rate) {
  return run([&] { return at<Trainer>(handle).set_learning_rate(static_cast<float>(rate)); });
}
double trainer_steps(int32_t handle) { return static_cast<double>(at<Trainer>(handle).steps()); }
double trainer_bytes(int32_t handle) { return static_cast<double>(at<Trainer>(handle).bytes()); }

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
