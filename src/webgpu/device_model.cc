#include "webgpu/device_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/error/error.h"
#include "models/loader.h"
#include "models/output.h"
#include "models/run.h"
#include "models/sentence.h"
#include "models/session.h"
#include "models/sites.h"
#include "webgpu/operations.h"
#include "webgpu/plan_attention.h"
#include "webgpu/plan_model.h"

namespace multihead::webgpu {
namespace {

using models::ModelInputs;
using models::ModelLoader;
using models::Output;
using models::Pass;

}  // namespace

Status DeviceModel::create(ModelLoader& loader, DeviceModel& made) {
  made.model_ = ModelLoader::Internals::model(loader);
  MULTIHEAD_TRY(check_model(*made.model_));
  ModelLoader::Internals::separate_matrices(loader);
  made.buffers_ = std::make_unique<ModelBuffers>(*made.model_);
  for (const WeightMatrix* const matrix : made.buffers_->matrices()) {
    if (matrix->type <= WeightType::kInt4) continue;
    return {StatusCode::kOption, "weights", "f32, f16, bf16, int8 or int4 on a GPU",
            name_of(matrix->type)};
  }
  made.sent_.assign(made.buffers_->count(), 0);
  return {};
}

uint32_t DeviceModel::ready(const ModelLoader* loader) const {
  const auto matrices = buffers_->matrices();
  for (uint32_t buffer = 1; buffer < buffers_->count(); ++buffer) {
    const WeightMatrix& matrix = *matrices[buffer - 1];
    if (sent_[buffer] == matrix.rows || matrix.data == nullptr) continue;
    if (loader == nullptr || ModelLoader::Internals::is_complete(*loader, matrix)) return buffer;
  }
  return 0;
}

bool DeviceModel::send(ModelLoader* loader, uint32_t buffer, MatrixPiece& piece) {
  constexpr int64_t kPieceWords = int64_t{1} << 18;
  // The model's own, of which `buffers_` has a view.
  auto& matrix = const_cast<WeightMatrix&>(*buffers_->matrices()[buffer - 1]);
  int64_t& first = sent_[buffer];
  if (first == matrix.rows) {
    if (loader != nullptr) ModelLoader::Internals::free(*loader, matrix);
    return false;
  }
  const MatrixForm form = ModelBuffers::form_of(matrix);
  const int64_t row_words = int64_t{4} * form.units();
  const int64_t count = std::clamp<int64_t>(kPieceWords / row_words, 1, matrix.rows - first);
  piece.units.resize(static_cast<size_t>(count * row_words));
  piece.scales.resize(static_cast<size_t>(count * form.scale_words()));
  pack_rows(matrix, first, count, piece.units.data(), piece.scales.data());
  piece.first_unit = static_cast<uint64_t>(first * row_words);
  piece.first_scale = form.first_scale() + static_cast<uint64_t>(first * form.scale_words());
  first += count;
  return true;
}

Status DeviceModel::forward(const ModelInputs& inputs, std::span<const models::Capture> captures,
                            const PassPart& part, const Device& device, Plan& plan) const {
  Pass pass{.inputs = inputs, .end_layer = model_->info.num_layers};
  MULTIHEAD_TRY(models::check_inputs(*model_, pass));
  // In WebAssembly it is in a part that only calls with captures load.
  if (!captures.empty()) MULTIHEAD_TRY(models::check_captures(*model_, pass, captures));
  pass.captures = captures;
  pass.only_token = part.only_token;
  pass.first_layer = part.first_layer;
  if (!part.from.empty()) {
    pass.state = {part.from.data(), {pass.rows(), model_->architecture.width}};
  }
  return plan_model(*model_, *buffers_, {.pass = pass, .state = part.state, .logits = part.logits},
                    device, plan);
}

Status DeviceModel::finish_embed(const ModelInputs& inputs, models::Pooling pooling, bool normalize,
                                 const Tensor& state, const Tensor& out, Context& context) const {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(model_->sentence.refusal);
    Pass pass{.inputs = inputs, .end_layer = model_->info.num_layers};
    MULTIHEAD_TRY(models::check_inputs(*model_, pass));
    std::vector<float> vectors;
    MULTIHEAD_TRY(
        models::compute_vectors(*model_, pass, state, pooling, normalize, vectors, context));
    std::copy(vectors.begin(), vectors.end(), out.data);
    return {};
  });
}

Status DeviceModel::finish_forward(const ModelInputs& inputs, const Tensor& state,
                                   const models::ModelOutputs& outputs, Context& context) const {
  return engine::memory_guard([&]() -> Status {
    Pass pass{.inputs = inputs, .end_layer = model_->info.num_layers};
    MULTIHEAD_TRY(models::check_inputs(*model_, pass));
    return models::compute_outputs(*model_, pass, state, outputs, context);
  });
}

Status DeviceModel::create_session(const models::Model& model,
                                   const models::SessionOptions& options,
                                   models::Session& session) {
  const models::Session::Internals::Elsewhere elsewhere{
      .make_cache = create_cache, .compute = [this](const Pass& pass) {
        return plan_model(*model_, *buffers_, {.pass = pass, .logits = true}, *device_, *plan_);
      }};
  return models::Session::Internals::create(model, options, nullptr, session, elsewhere);
}

Status DeviceModel::append(models::Session& session, std::span<const int32_t> ids,
                           const Device& device, Plan& plan, Context& context) {
  device_ = &device;
  plan_ = &plan;
  return session.append(ids, {}, context);
}

}  // namespace multihead::webgpu
