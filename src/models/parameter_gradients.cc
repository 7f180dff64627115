// The parameters of a model as one list, as the tensors of its files, and gradients with respect to
// them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpu/gemm/weight_blocks.h"
#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "models/metric.h"
#include "nn/call_memory.h"

namespace multihead::models {
namespace {

template <class M, class P>
std::vector<M> list_members(P& p) {
  std::vector<M> members;
  int64_t layer = -1;
  const auto pair = [&](auto& of) {  // a norm or a projection
    if constexpr (requires { of.weight.rows; }) {
      members.push_back({.matrix = &of.weight, .layer = layer});
    } else {
      members.push_back({.vector = &of.weight, .layer = layer});
    }
    members.push_back({.vector = &of.bias, .layer = layer});
  };
  for (auto* const matrix : {&p.embedding, &p.position, &p.token_type}) {
    members.push_back({.matrix = matrix});
  }
  for (auto* const vector : {&p.relative_bias, &p.first_token, &p.logit_scale, &p.logit_bias})
    members.push_back({vector});
  for (auto* const norm : {&p.embedding_norm, &p.final_norm, &p.transform_norm, &p.relative_norm})
    pair(*norm);
  for (auto* const projection : {&p.embedding_projection, &p.patch, &p.pooler, &p.transform,
                                 &p.output, &p.classifier_dense, &p.classifier, &p.distilled}) {
    pair(*projection);
  }
  for (auto& of : p.layers) {
    ++layer;
    for (auto* const norm : {&of.attention_norm, &of.attention_out_norm, &of.attention_sum_norm,
                             &of.q_norm, &of.k_norm, &of.cross_norm, &of.cross_sum_norm,
                             &of.mlp_norm, &of.mlp_out_norm, &of.mlp_sum_norm}) {
      pair(*norm);
    }
    for (auto* const vector : {&of.relative_bias, &of.attention_scale, &of.mlp_scale}) {
      members.push_back({.vector = vector, .layer = layer});
    }
    for (auto* const projection :
         {&of.qkv, &of.q, &of.k, &of.v, &of.o, &of.cross_q, &of.cross_kv, &of.cross_k, &of.cross_v,
          &of.cross_o, &of.gate_up, &of.gate, &of.up, &of.down}) {
      pair(*projection);
    }
  }
  return members;
}

// Memory for the gradients of chosen parameters, in the form of the parameters.
class Gradients {
 public:
  // Takes memory for the parameters of these tensors. Errors: kMemory.
  Status allocate(const Model::Internals& model,
                  const std::vector<const StoredParameter*>& chosen) {
    of_ = model.parameters;
    own_ = members_of(model.parameters);
    gradients_ = members_of(of_);
    const auto is_chosen = [&](const ConstMember& own) {
      return std::any_of(chosen.begin(), chosen.end(), [&](const StoredParameter* stored) {
        return stored->matrix == own.matrix && stored->vector == own.vector;
      });
    };
    uint64_t bytes = 0;
    MULTIHEAD_TRY(nn::reserve(memory_, [&](rules::Arena& take) {
      for (size_t at = 0; at < own_.size(); ++at) {
        const auto& [vector, matrix, layer] = own_[at];
        const bool wanted = is_chosen(own_[at]);
        float* floats = nullptr;
        if (matrix != nullptr) {
          if (wanted) take(floats, static_cast<uint64_t>(matrix->rows * matrix->columns));
          *gradients_[at].matrix = {floats, WeightType::kF32, matrix->rows, matrix->columns};
        } else {
          if (wanted) take(floats, static_cast<uint64_t>(vector->size));
          *gradients_[at].vector = {floats, wanted ? vector->size : 0};
        }
      }
      bytes = take.bytes();
    }));
    std::fill_n(static_cast<std::byte*>(memory_.data()), bytes, std::byte{0});
    return {};
  }
  const Parameters& parameters() const { return of_; }

  // The rows of a tensor, as it is stored.
  void copy(const StoredParameter& stored, float* to) const {
    size_t at = 0;
    while (own_[at].matrix != stored.matrix || own_[at].vector != stored.vector) ++at;
    const int64_t width = stored.matrix == nullptr ? 1 : stored.matrix->columns;
    stored.copy(static_cast<const float*>(gradients_[at].data()) + stored.first * width, to);
  }

 private:
  Parameters of_;
  engine::Buffer memory_;
  std::vector<ConstMember> own_;   // of the model
  std::vector<Member> gradients_;  // of `of_`
};

}  // namespace

std::vector<Member> members_of(Parameters& parameters) { return list_members<Member>(parameters); }
std::vector<ConstMember> members_of(const Parameters& parameters) {
  return list_members<ConstMember>(parameters);
}

void StoredParameter::copy(const float* from, float* to) const {
  const int64_t count = shape.elements(), inputs = transposed ? rows : 1, outputs = count / inputs;
  for (int64_t row = 0; row < inputs; ++row) {
    for (int64_t out = 0; out < outputs; ++out) to[row * outputs + out] = from[out * inputs + row];
  }
}

ConstAnyTensor as_in_memory(const StoredParameter& stored) {
  if (stored.matrix == nullptr || stored.matrix->type == WeightType::kF32) return {};
  const WeightMatrix& matrix = *stored.matrix;
  const int64_t bytes = weight_row_bytes(matrix.type, matrix.columns);
  const void* const data = static_cast<const std::byte*>(matrix.data) + stored.first * bytes;
  const int64_t rows = stored.shape.elements() / matrix.columns;
  if (cpu::has_blocks(matrix.type)) return {data, DType::kInt8, {rows, bytes}, {bytes, 1}};
  const DType dtype = matrix.type == WeightType::kF16 ? DType::kF16 : DType::kBF16;
  if (stored.transposed) return {data, dtype, stored.shape, {1, matrix.columns}};
  return {data, dtype, stored.shape, contiguous_strides(stored.shape)};
}

Status read_rows(const WeightMatrix& matrix, int64_t first, int64_t count, float* to) {
  const int64_t columns = matrix.columns;
  for (int64_t at = 0; at < count; ++at) {
    const auto row = static_cast<int32_t>(first + at);
    MULTIHEAD_TRY(dequantize(matrix, {&row, 1}, {to + at * columns, {1, columns}}));
  }
  return {};
}

Status read_stored(const StoredParameter& stored, float* to) {
  const int64_t count = stored.shape.elements();
  if (stored.vector != nullptr) {
    stored.copy(stored.vector->data + stored.first, to);
    for (int64_t at = 0; stored.plus_one && at < count; ++at) to[at] -= 1.0F;
    return {};
  }
  engine::Buffer turned;
  const auto bytes = static_cast<uint64_t>(stored.transposed ? count : 0) * sizeof(float);
  if (!turned.reserve(bytes)) return Status::out_of_memory(bytes);
  float* const numbers = stored.transposed ? static_cast<float*>(turned.data()) : to;
  MULTIHEAD_TRY(read_rows(*stored.matrix, stored.first, count / stored.matrix->columns, numbers));
  if (stored.transposed) stored.copy(numbers, to);
  return {};
}

std::vector<StoredTensor> parameters(const Model& model) {
  const Model::Internals* const m = Model::Internals::of(model);
  std::vector<StoredTensor> tensors;
  if (m == nullptr) return tensors;
  for (const StoredParameter& stored : m->stored)
    tensors.push_back({stored.name, {}, stored.shape});
  return tensors;
}

Status parameter_gradients(const Model& model, const ModelInputs& inputs, const Metric& metric,
                           std::span<const ParameterGradient> outputs, Context& context) {
  return engine::memory_guard([&]() -> Status {
    Question question;
    MULTIHEAD_TRY(ask_one(model, inputs, metric, question));
    const Model::Internals& m = *question.model;
    std::vector<const StoredParameter*> chosen;
    for (size_t at = 0; at < outputs.size(); ++at) {
      const auto& [name, out] = outputs[at];
      const std::string argument = "outputs[" + std::to_string(at) + "]";
      const auto found = std::find_if(m.stored.begin(), m.stored.end(),
                                      [&](const auto& stored) { return stored.name == name; });
      if (found == m.stored.end()) {
        return {StatusCode::kOption, argument + ".name", "a tensor that the model uses", name};
      }
      if (out.data == nullptr || !(out.shape == found->shape) ||
          !(out.strides == contiguous_strides(found->shape))) {
        return {StatusCode::kShape, argument + ".out", found->shape.to_string() + ", contiguous",
                out.data == nullptr ? "none" : out.shape.to_string()};
      }
      chosen.push_back(&*found);
    }
    Gradients gradients;
    MULTIHEAD_TRY(gradients.allocate(m, chosen));
    const Parameters& d = gradients.parameters();
    const Projection output = m.parameters.output.given()
                                  ? d.output
                                  : Projection{.weight = d.embedding, .bias = d.output.bias};
    MULTIHEAD_TRY(differentiate(
        m, question.pass,
        [&](const Tensor& state, const Tensor& gradient) {
          return question.metric.differentiate(state, inputs.ids, gradient, context, output);
        },
        {}, context, &d));
    for (size_t at = 0; at < chosen.size(); ++at) gradients.copy(*chosen[at], outputs[at].out.data);
    return {};
  });
}

}  // namespace multihead::models
