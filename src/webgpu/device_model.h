// A model of files whose layers run on a GPU: its matrices go there while they are read, and each
// pass is a plan. What comes after the hidden states and the logits of tokens, such as pooling and
// classes, is the CPU's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/parameters.h"
#include "multihead/context.h"
#include "multihead/models.h"
#include "multihead/status.h"
#include "webgpu/model_buffers.h"
#include "webgpu/plan.h"

namespace multihead::webgpu {

// Rows of a matrix in the form of its buffer: words of units, and of scales, which are empty but
// for int8 and int4, with their places in the buffer.
struct MatrixPiece {
  std::vector<uint32_t> units, scales;
  uint64_t first_unit = 0, first_scale = 0;  // words
};

// Which part of a pass runs, and what it gives besides captures.
struct PassPart {
  bool state = false, logits = false;
  int64_t only_token = -1;           // as in models::Pass, like the next one
  int64_t first_layer = 0;           // with `from`
  std::span<const float> from = {};  // its input, (rows, width); empty: the embedding
};

class DeviceModel {
 public:
  // Of a loader that has no bytes yet, which must outlive the loading. Errors: check_model().
  static Status create(models::ModelLoader& loader, DeviceModel& made);

  const ModelBuffers& buffers() const { return *buffers_; }
  // ---- Loading. ----

  // The buffer of a matrix that has all of its numbers and was not sent, or 0. The loader is null
  // once it has finished.
  uint32_t ready(const models::ModelLoader* loader) const;
  // The next rows of a ready matrix, about a MiB. After the last ones its memory is free, and
  // `piece` says nothing more.
  bool send(models::ModelLoader* loader, uint32_t buffer, MatrixPiece& piece);

  // ---- Passes, when the loader has finished. ----

  // Of the outputs, logits are those of language models; captures have shapes. The plan's operands
  // are ModelPlan's. Errors: those of Model::forward() for its inputs and captures; kOption, for
  // what the GPU's limits refuse.
  Status forward(const models::ModelInputs& inputs, std::span<const models::Capture> captures,
                 const PassPart& part, const Device& device, Plan& plan) const;
  // What the CPU makes of the last hidden state: the vectors of Model::embed(), or logits of
  // classes and the pooler's output.
  Status finish_embed(const models::ModelInputs& inputs, models::Pooling pooling, bool normalize,
                      const Tensor& state, const Tensor& out, Context& context) const;
  Status finish_forward(const models::ModelInputs& inputs, const Tensor& state,
                        const models::ModelOutputs& outputs, Context& context) const;

  // A session whose caches are on the GPU: two buffers for each layer of its capacity, (heads,
  // tokens, width). Errors: those of Session::create().
  Status create_session(const models::Model& model, const models::SessionOptions& options,
                        models::Session& session);
  // The plan of the logits after the next tokens. Errors: those of Session::append().
  Status append(models::Session& session, std::span<const int32_t> ids, const Device& device,
                Plan& plan, Context& context);

 private:
  std::shared_ptr<models::Model::Internals> model_;
  std::unique_ptr<ModelBuffers> buffers_;
  std::vector<int64_t> sent_;  // rows of each buffer's matrix
  // Of the call of append() that runs.
  const Device* device_ = nullptr;
  Plan* plan_ = nullptr;
};

}  // namespace multihead::webgpu
