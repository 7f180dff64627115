#include "webgpu/model_buffers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace multihead::webgpu {

ModelBuffers::ModelBuffers(const models::Model::Internals& model) {
  const models::Parameters& p = model.parameters;
  const auto all = [this](const auto&... parameters) { (add(parameters), ...); };
  all(p.embedding, p.position, p.token_type, p.embedding_norm, p.final_norm, p.transform_norm,
      p.embedding_projection);
  if (model.info.output == models::Output::kMaskedLanguageModel) add(p.transform);
  add(p.output);
  for (const nn::LayerParameters& l : p.layers) {
    all(l.attention_norm, l.attention_out_norm, l.attention_sum_norm, l.q_norm, l.k_norm,
        l.mlp_norm, l.mlp_out_norm, l.mlp_sum_norm, l.attention_scale, l.mlp_scale, l.qkv, l.q, l.k,
        l.v, l.o, l.gate_up, l.gate, l.up, l.down);
  }
}

void ModelBuffers::add(const WeightMatrix& matrix) {
  if (matrix.rows == 0) return;
  matrices_.push_back(&matrix);
  numbers_[&matrix] = static_cast<uint32_t>(matrices_.size());
}

void ModelBuffers::add(const nn::Vector& vector) {
  if (!vector.given()) return;
  vectors_.push_back(&vector);
  words_[&vector] = vector_words_;
  vector_words_ += static_cast<uint32_t>((vector.size + 3) / 4 * 4);
}

void ModelBuffers::add(const nn::Projection& projection) {
  add(projection.weight);
  add(projection.bias);
}

void ModelBuffers::add(const nn::NormParameters& norm) {
  add(norm.weight);
  add(norm.bias);
}

uint64_t ModelBuffers::words(uint32_t buffer) const {
  return buffer == 0 ? vector_words_ : form_of(*matrices_[buffer - 1]).words();
}

std::vector<float> ModelBuffers::vectors() const {
  std::vector<float> all(vector_words_);
  for (const nn::Vector* const vector : vectors_) {
    std::copy_n(vector->data, vector->size,
                all.begin() + static_cast<ptrdiff_t>(words_.at(vector)));
  }
  return all;
}

MatrixForm ModelBuffers::form_of(const WeightMatrix& matrix) {
  return {matrix.type, static_cast<uint32_t>(matrix.rows), static_cast<uint32_t>(matrix.columns)};
}

uint32_t ModelBuffers::number_of(const WeightMatrix& matrix) const { return numbers_.at(&matrix); }

uint32_t ModelBuffers::word_of(const nn::Vector& vector) const {
  return vector.given() ? words_.at(&vector) : kNone;
}

Norm ModelBuffers::norm_of(nn::NormKind kind, const nn::NormParameters& norm) const {
  if (!norm.given()) return {};
  return {.kind = kind.rms ? Norm::Kind::kRms : Norm::Kind::kLayer,
          .eps = kind.eps,
          .gain = word_of(norm.weight),
          .shift = kind.rms ? kNone : word_of(norm.bias)};
}

}  // namespace multihead::webgpu
