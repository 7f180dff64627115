// Places of dropout in a model, except the attention weights. Each place draws its own random
// numbers from the seed of its layer; see rules/dropout_mask.h.
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
