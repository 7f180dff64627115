// The dropouts of a model, apart from that of the attention weights. Each draws its own numbers
// from the seed of its layer; see rules/dropout_mask.h.
#pragma once

#include <cstdint>

namespace multihead::nn {

enum DropoutSite : uint32_t {
  kModuleOutput = 0,
  kAttentionBranch = 1,
  kMlpBranch = 2,
  kEmbeddings = 3,
};

}  // namespace multihead::nn
