// Models of Hugging Face folders as JavaScript calls them: loading, passes, generation.
#include "multihead/models.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "engine/attention/plan.h"
#include "engine/runtime/team.h"
#include "functions.h"
#include "handles.h"
#include "lists.h"
#include "models/loader.h"
#include "models/session.h"
#include "results.h"

namespace multihead::bindings {
namespace {

using models::Model;
using models::ModelLoader;
using models::Session;

models::Config config_of(ListReader list) {
  models::Config config;
  while (!list.at_end()) {
    models::ConfigValue& value = config[std::string(list.text())];
    // The first letter says what the value is, the rest is its text.
    const std::string_view kind_and_text = list.text();
    const char kind = kind_and_text.empty() ? 'n' : kind_and_text.front();
    if (kind == 't') {
      value = {models::ConfigValue::Kind::kText, 0, std::string(kind_and_text.substr(1))};
    } else if (kind == 'd') {
      value = {models::ConfigValue::Kind::kNumber, list.number()};
    } else if (kind == 'b') {
      value = {models::ConfigValue::Kind::kBool, list.number()};
    } else {
      value = {};
    }
  }
  return config;
}

std::vector<models::StoredTensor> tensors_of(ListReader list) {
  std::vector<models::StoredTensor> tensors;
  while (!list.at_end()) {
    models::StoredTensor& tensor = tensors.emplace_back();
    tensor.name = list.text();
    tensor.type = list.text();
    for (auto rank = static_cast<int>(list.number()); rank > 0; --rank) {
      tensor.shape.push_back(static_cast<int64_t>(list.number()));
    }
  }
  return tensors;
}

// Computes several heads in one pass, out (count, N, N) or (count, N, S). A layer or head of -1
// stands for all.
Status all_attentions(const Model& model, const ModelInputs& inputs,
                      const ModelAttentionsCall& call) {
  const models::ModelInfo& info = model.info();
  const int64_t end_layer = call.layer < 0 ? info.num_layers : call.layer + 1;
  const int64_t end_head = call.head < 0 ? info.num_heads : call.head + 1;
  const int64_t tokens = call.out.shape[1], keys = call.out.shape[2];
  std::vector<models::HeadMap> maps;
  float* map = call.out.data;
  for (int64_t layer = std::max<int64_t>(0, call.layer); layer < end_layer; ++layer) {
    for (int64_t head = std::max<int64_t>(0, call.head); head < end_head; ++head) {
      maps.push_back({layer, head, Tensor(map, {1, tokens, keys}), call.cross});
      map += tokens * keys;
    }
  }
  return model.forward(inputs, {.maps = maps}, context());
}

}  // namespace

int32_t model_loader_create() {
  // Decoding belongs to a part of the module.
  engine::attention_decodes = false;
  const ModelLoaderCall call;
  return make<ModelLoader>(call.from, [&](ModelLoader& loader) {
    models::OpenOptions options;
    options.images = call.images;
    if (call.weights >= 0) options.weights = static_cast<WeightType>(call.weights);
    if (call.embedding_weights >= 0)
      options.embedding_weights = static_cast<WeightType>(call.embedding_weights);
    return ModelLoader::Internals::create(config_of({call.settings, call.setting_numbers}),
                                          tensors_of({call.tensors, call.tensor_numbers}), options,
                                          engine::team_of(context()), loader);
  });
}

void model_loader_release(int32_t handle) { release_object<ModelLoader>(handle); }

void model_loader_needed(int32_t handle) {
  static NeededTensors needed;
  needed.tensors.clear();
  for (const size_t tensor : at<ModelLoader>(handle).needed()) {
    needed.tensors.push_back(static_cast<int32_t>(tensor));
  }
  needed.bytes = static_cast<double>(at<ModelLoader>(handle).bytes(false));
  write(needed);
}

int32_t model_loader_give(int32_t handle, int32_t tensor) {
  const ModelBytesCall call;
  return run(call.from, [&] {
    return at<ModelLoader>(handle).give(static_cast<size_t>(tensor), std::as_bytes(call.bytes));
  });
}

int32_t model_loader_finish(int32_t handle) {
  return make<Model>(Arguments{},
                     [&](Model& model) { return at<ModelLoader>(handle).finish(model); });
}

void model_release(int32_t handle) { release_object<Model>(handle); }

void model_info(int32_t handle) { write(at<Model>(handle).info()); }

void model_rules(int32_t handle) {
  static ModelRules rules;
  const models::ModelInfo& info = at<Model>(handle).info();
  rules = {{info.generation}, numbers_of(info.rules)};
  rules.numbers.insert(rules.numbers.begin(), info.decoder_start);
  write(rules);
}

int32_t model_encoder(int32_t handle) {
  return make<Model>(Arguments{}, [&](Model& model) -> Status {
    model = at<Model>(handle).encoder();
    return {};
  });
}

int32_t model_forward(int32_t handle) {
  const ModelForwardCall call;
  return run(call.from, [&] {
    const Edited input(call.inputs, call.edits, call.source_edits);
    const std::vector<models::Capture> captures = captures_of(call.captures);
    return at<Model>(handle).forward(input.inputs,
                                     {.hidden_states = call.hidden_states,
                                      .last_hidden_state = call.last_hidden_state,
                                      .logits = call.logits,
                                      .pooler_output = call.pooler_output,
                                      .source_state = call.source_state,
                                      .captures = captures},
                                     context());
  });
}

int32_t model_attentions(int32_t handle) {
  const ModelAttentionsCall call;
  return run(call.from, [&] {
    const Model& model = at<Model>(handle);
    const Edited input(call.inputs, call.edits, call.source_edits);
    return all_attentions(model, input.inputs, call);
  });
}

int32_t model_embed(int32_t handle) {
  const ModelEmbedCall call;
  return run(call.from, [&] {
    return at<Model>(handle).embed(
        call.inputs, {.pooling = call.pooling, .normalize = call.normalize, .truncate = false},
        call.out, context());
  });
}

int32_t session_create(int32_t model) {
  const SessionCall call;
  return make<Session>(call.from, [&](Session& session) {
    return Session::Internals::create(
        at<Model>(model),
        {.capacity = call.capacity,
         .cache_type = call.cache_type,
         .head_scales = {call.head_scales.begin(), call.head_scales.end()},
         .edits = edits_of(call.edits)},
        engine::team_of(context()), session);
  });
}

void session_release(int32_t handle) { release_object<Session>(handle); }

double session_bytes(int32_t handle) { return static_cast<double>(at<Session>(handle).bytes()); }

int32_t session_encode(int32_t handle) {
  const SessionEncodeCall call;
  return run(call.from, [&] {
    return at<Session>(handle).encode(call.source, edits_of(call.edits), context());
  });
}

int32_t session_append(int32_t handle) {
  const SessionAppendCall call;
  return run(call.from,
             [&] { return at<Session>(handle).append(call.ids, call.logits, context()); });
}

int32_t sessions_step() {
  const SessionsStepCall call;
  return run(call.from, [&] {
    std::vector<Session*> sessions;
    for (const int32_t handle : call.sessions) sessions.push_back(&at<Session>(handle));
    return Session::step(sessions, call.ids, call.logits, context());
  });
}

int32_t session_fork(int32_t handle) {
  const SessionForkCall call;
  return make<Session>(call.from, [&](Session& other) {
    return at<Session>(handle).fork(call.length, call.capacity, other);
  });
}

int32_t session_truncate(int32_t handle, int32_t length) {
  return run(Arguments{}, [&] { return at<Session>(handle).truncate(length); });
}

int32_t sampler_create() {
  const SamplerCall call;
  return make<models::Sampler>(call.from, [&](models::Sampler& sampler) -> Status {
    sampler = models::Sampler(call.sampling, rules_of(call.rules), call.begin, call.end);
    return {};
  });
}

void sampler_release(int32_t handle) { release_object<models::Sampler>(handle); }

int32_t beam_search_create(int32_t model) {
  const BeamSearchCall call;
  return make<models::BeamSearch>(call.from, [&](models::BeamSearch& search) {
    models::GenerateOptions options{
        .max_new_tokens = call.max_new_tokens,
        .cache_type = call.cache_type,
        .head_scales = {call.head_scales.begin(), call.head_scales.end()},
        .edits = edits_of(call.edits),
        .rules = rules_of(call.rules),
        .num_beams = call.num_beams,
        .length_penalty = call.length_penalty,
        .early_stopping = call.early_stopping,
        .source_edits = edits_of(call.source_edits)};
    options.sampling.repetition_penalty = call.repetition_penalty;
    options.stop_ids.emplace(call.stops.begin(), call.stops.end());
    options.decoder_prompt.assign(call.decoder_prompt.begin(), call.decoder_prompt.end());
    return models::BeamSearch::create(at<Model>(model), call.prompt, options, search, context());
  });
}

void beam_search_release(int32_t handle) { release_object<models::BeamSearch>(handle); }

int32_t beam_search_step(int32_t handle) {
  static SearchProgress progress;
  models::BeamSearch& search = at<models::BeamSearch>(handle);
  const int32_t status = run(Arguments{}, [&] { return search.step(progress.done, context()); });
  if (status != 0) return status;
  progress.ids.assign(search.ids().begin(), search.ids().end());
  write(progress);
  return status;
}

int32_t sampler_choose(int32_t handle, int32_t session) {
  const ChooseCall call;
  ChosenToken chosen;
  int32_t token = 0;
  const int32_t status = run(call.from, [&] {
    return at<models::Sampler>(handle).choose(
        call.logits, at<Session>(session).ids().first(static_cast<size_t>(call.length)), token);
  });
  chosen.token = token;
  if (status == 0) write(chosen);
  return status;
}

}  // namespace multihead::bindings
