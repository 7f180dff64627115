// The parameters of a model in buffers of the GPU: number 0 has all vectors, the others a matrix
// each.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "models/parameters.h"
#include "webgpu/operations.h"

namespace multihead::webgpu {

// Matrices that only the CPU multiplies by, such as poolers and classifiers, are none of them.
class ModelBuffers {
 public:
  explicit ModelBuffers(const models::Model::Internals& model);

  // Matrix i has the buffer 1 + i. Their shapes are known before their numbers are.
  std::span<const WeightMatrix* const> matrices() const { return matrices_; }
  uint32_t count() const { return static_cast<uint32_t>(matrices_.size()) + 1; }
  uint64_t words(uint32_t buffer) const;
  // The contents of buffer 0, of a model whose vectors are in memory.
  std::vector<float> vectors() const;

  static MatrixForm form_of(const WeightMatrix& matrix);
  uint32_t number_of(const WeightMatrix& matrix) const;
  // The first word of a vector in buffer 0; kNone if it is not given.
  uint32_t word_of(const nn::Vector& vector) const;
  Norm norm_of(nn::NormKind kind, const nn::NormParameters& norm) const;

 private:
  void add(const nn::Vector& vector);
  void add(const WeightMatrix& matrix);
  void add(const nn::Projection& projection);
  void add(const nn::NormParameters& norm);

  std::vector<const WeightMatrix*> matrices_;
  std::vector<const nn::Vector*> vectors_;
  std::map<const WeightMatrix*, uint32_t> numbers_;
  std::map<const nn::Vector*, uint32_t> words_;
  uint32_t vector_words_ = 4;  // never empty
};

}  // namespace multihead::webgpu
