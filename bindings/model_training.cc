// Training of opened models, and their tensors as files have them, as JavaScript calls them.
#include "multihead/model_training.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "arguments.h"
#include "call.h"
#include "functions.h"
#include "handles.h"
#include "listed.h"
#include "models/parameters.h"
#include "multihead/models.h"
#include "results.h"
#include "training.h"

namespace multihead::bindings {

using models::Model;

void release_listed() { last_list.clear(); }

int32_t model_trainer_create(int32_t model) {
  const ModelTrainerCall call;
  auto trained = std::make_unique<Model>();
  TrainedModel result;
  const int32_t trainer = make<Trainer>(call.from, [&](Trainer& made) {
    models::FineTuning fine_tuning;
    if (!call.layers.empty()) fine_tuning.layers.emplace(call.layers.begin(), call.layers.end());
    MULTIHEAD_TRY(
        models::create_trainer(at<Model>(model), call.options, fine_tuning, made, *trained));
    StateDict gradients;
    MULTIHEAD_TRY(made.gradients(gradients));
    for (const auto& [name, tensor] : gradients) result.parameters += tensor.shape.elements();
    result.model = handles.add(trained.release());
    return Status();
  });
  if (trainer > 0) write(result);
  return trainer;
}

int32_t model_train(int32_t trainer, bool updates) {
  const ModelTrainingCall call;
  return run(call.from, [&] { return train(trainer, call, {}, updates); });
}

int32_t model_tensors(int32_t handle, bool as_in_memory) {
  return run([&] {
    for (const models::StoredParameter& stored : Model::Internals::of(at<Model>(handle))->stored) {
      const ConstAnyTensor same = as_in_memory ? models::as_in_memory(stored) : ConstAnyTensor();
      if (same.data != nullptr) {
        last_list.push_back(
            {stored.name, same.shape, same.data, false, static_cast<int64_t>(same.dtype)});
      } else {
        last_list.push_back({stored.name, stored.shape, nullptr});
      }
    }
    return Status();
  });
}

int32_t model_tensor(int32_t handle, int32_t index) {
  const StoredTensorCall call;
  return run(call.from, [&] {
    const Model::Internals& model = *Model::Internals::of(at<Model>(handle));
    return models::read_stored(model.stored[static_cast<size_t>(index)], call.out.data);
  });
}

}  // namespace multihead::bindings
