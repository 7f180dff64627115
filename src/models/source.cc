#include "models/source.h"

#include <algorithm>
#include <cstdint>

#include "engine/error/error.h"
#include "nn/call_memory.h"

namespace multihead::models {
namespace {

Pass encoder_pass(const Model::Internals& encoder, const ModelInputs& inputs) {
  return {.inputs = {.ids = inputs.source,
                     .batch = inputs.batch,
                     .mask = inputs.source_mask,
                     .edits = inputs.source_edits},
          .end_layer = encoder.info.num_layers};
}

// The encoder's edits have another name than the decoder's. Reads the record: the module of the npm
// package has no sentences.
Status named(const Status& status) {
  const Status::Record* const error = status.record();
  if (error == nullptr || !error->own_argument.starts_with("edits")) return status;
  return {status.code(), "source_" + error->own_argument, error->own_expected, error->text};
}

}  // namespace

Status check_source(const Model::Internals& model, Pass& pass) {
  const ModelInputs& in = pass.inputs;
  const bool given = !in.source.empty() || !in.source_mask.empty() || !in.source_edits.empty();
  if (model.encoder == nullptr) {
    if (!given) return {};
    return {StatusCode::kOption, "source", "none for " + model.info.model_type, "some"};
  }
  if (in.source.empty()) return {StatusCode::kOption, "source", "token ids of the encoder", "none"};
  Pass encoder = encoder_pass(*model.encoder, in);
  MULTIHEAD_TRY(named(check_inputs(*model.encoder, encoder, "source")));
  pass.source = {.tokens = encoder.tokens, .mask = in.source_mask};
  return {};
}

Status run_encoder(const Model::Internals& model, Pass& pass, engine::Buffer& memory,
                   Context& context) {
  if (model.encoder == nullptr) return {};
  Pass encoder = encoder_pass(*model.encoder, pass.inputs);
  encoder.tokens = pass.source.tokens;
  Tensor state;
  MULTIHEAD_TRY(named(run_layers(*model.encoder, encoder, state, context)));
  const int64_t count = state.shape.elements();
  float* numbers = nullptr;
  MULTIHEAD_TRY(nn::reserve(
      memory, [&](rules::Arena& take) { take(numbers, static_cast<uint64_t>(count)); }));
  std::copy_n(state.data, count, numbers);
  pass.source.state = {numbers, state.shape};
  return {};
}

Status check_one_stack(const Model::Internals& model, const char* expected) {
  if (model.encoder == nullptr) return {};
  return {StatusCode::kOption, "model", expected,
          model.info.model_type + ", which has both stacks"};
}

}  // namespace multihead::models
