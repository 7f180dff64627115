// The modules of sentence-transformers that make a vector of the last hidden states. Definitions:
// the sentence-transformers library, Pooling, Dense, Normalize.
#pragma once

#include <vector>

#include "models/architecture.h"
#include "models/parameters.h"
#include "multihead/models.h"
#include "multihead/status.h"

namespace multihead::models {

struct Pass;

// Reads the modules and settings of the folder into `sentence`. Errors: kOption, naming file and
// setting. A module that is not known is an error of embed(): sentence.refusal.
Status read_sentence(const Config& config, const Architecture& architecture, Sentence& sentence);

// Computes the vectors (batch, info.vector_dim) of the last hidden states (rows, width). Each
// sequence has a token that is not padding. Errors: kMemory.
Status compute_vectors(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       Pooling pooling, bool normalize, std::vector<float>& vectors,
                       Context& context);

}  // namespace multihead::models
