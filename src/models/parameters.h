// The parameters of a model in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/scratch.h"
#include "models/architecture.h"
#include "multihead/elementwise.h"
#include "multihead/models.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "multihead/weights.h"
#include "nn/graph/graph.h"
#include "nn/graph/weights.h"

namespace multihead::models {

using nn::LayerParameters;
using nn::NormParameters;
using nn::Projection;
using nn::Vector;

// SigLIP's pooler: a query that is a parameter attends to all tokens; then norm and MLP.
struct AttentionPooler {
  Vector probe;
  Projection qkv, o, up, down;
  NormParameters norm;
};

struct Parameters {
  WeightMatrix embedding, position, token_type;
  WeightMatrix trained_position;  // of images of Architecture::trained_size, if that is another
  // True if `embedding` has only this member's rows, which are divided like outputs, because it may
  // be the output matrix, too.
  bool embedding_is_share = false;
  NormParameters embedding_norm, final_norm, transform_norm, relative_norm;
  Projection embedding_projection, patch, pooler;
  Vector relative_bias;            // (buckets, heads), or (2 * relative_span, width)
  Vector first_token;              // and the registers
  Vector logit_scale, logit_bias;  // of the similarity of texts and images
  Projection transform, output;    // output.weight is not given where the embedding is tied
  Projection classifier_dense, classifier, distilled;
  AttentionPooler attention_pooler;
  std::vector<LayerParameters> layers;
};

// The matrix of logits: the embedding where they are tied.
inline const WeightMatrix& output_matrix(const Parameters& p) {
  return p.output.given() ? p.output.weight : p.embedding;
}

// A vector or a matrix of a model's parameters, one of the two.
template <class V, class M>
struct MemberOf {
  V* vector = nullptr;
  M* matrix = nullptr;
  int64_t layer = -1;  // place in Parameters::layers; -1 outside of layers

  const void* data() const { return vector != nullptr ? vector->data : matrix->data; }
};
using Member = MemberOf<Vector, WeightMatrix>;
using ConstMember = MemberOf<const Vector, const WeightMatrix>;

// All members, given or not, in an order that is the same for all parameters of a model.
std::vector<Member> members_of(Parameters& parameters);
std::vector<ConstMember> members_of(const Parameters& parameters);

// A tensor of the files and its place in the parameters.
struct StoredParameter {
  std::string name;
  Dims shape;
  const WeightMatrix* matrix = nullptr;  // the parameter, or
  const Vector* vector = nullptr;
  int64_t first = 0;        // row of the matrix, or element of the vector
  int64_t rows = 0;         // as stored
  bool transposed = false;  // the matrix is the stored one, transposed
  bool plus_one = false;    // the vector is the stored one + 1

  // Copies the tensor's numbers from `from`, in the order of memory, to `to`, in the file's order.
  void copy(const float* from, float* to) const;
};

// A matrix that is not f32 as it is in memory, in the shape that files have; rows of blocks are
// bytes, kInt8. Nothing for other tensors.
ConstAnyTensor as_in_memory(const StoredParameter& stored);
// Writes rows of a matrix as f32. Errors: kMemory.
Status read_rows(const WeightMatrix& matrix, int64_t first, int64_t count, float* to);
// Writes the numbers of a tensor, f32, as the file has them. Errors: kMemory.
Status read_stored(const StoredParameter& stored, float* to);

// A module after the pooling: a Dense, or with out == 0 one that makes vectors of length 1.
struct SentenceStep {
  std::string name;  // of its tensors
  int64_t in = 0, out = 0;
  bool bias = false;
  std::optional<Activation> activation;
  bool tanh = false;  // the activation is tanh
  Projection dense;
};

// How embed() makes a vector.
struct Sentence {
  Pooling pooling = Pooling::kMean;
  bool pools_prompt = true;
  int64_t max_tokens = 0;           // longest sequence by the settings of the folder; 0: none
  int64_t width = 0;                // of a vector
  std::vector<SentenceStep> steps;  // after the pooling
  Status refusal;                   // not ok: a module that is not known
};

}  // namespace multihead::models

// The members of a Model, hidden from the public header.
struct multihead::models::Model::Internals {
  Architecture architecture;
  ModelInfo info;
  Parameters parameters;
  nn::Graph graph;  // of every layer
  Sentence sentence;
  // The other stack of an encoder–decoder model: a model by itself, whose memory this one has.
  std::unique_ptr<Internals> encoder;
  std::vector<StoredParameter> stored;
  std::vector<std::shared_ptr<const void>> owners;  // of memory that matrices are views of
  std::vector<engine::Buffer> memory;               // of the other matrices, and of vectors

  // Null if the model was not opened.
  static const Internals* of(const Model& model) { return model.internals_.get(); }
  static std::shared_ptr<const Internals> share(const Model& model) { return model.internals_; }
  static void take(Model& model, std::shared_ptr<const Internals> internals) {
    model.internals_ = std::move(internals);
  }
};
