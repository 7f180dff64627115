// Captures of scores and weights for chosen rows, and the dropout mask.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/params.h"
#include "multihead/attention.h"

namespace multihead::cuda {

// Captures one stage of the scores, (B, heads, rows, N_k).
struct ScoresParams {
  ForwardParams forward;
  int64_t pool_pages = 0;  // see SplitParams
  ScoreStage stage = ScoreStage::kWeights;
  rules::Rows<float> out;
  // The heads of `out` are query heads first_head, first_head + 1, ...
  int64_t first_head = 0, heads = 0;
  int64_t first_row = 0, rows = 0;
};
static_assert(std::is_trivially_copyable_v<ScoresParams> && sizeof(ScoresParams) <= 4096);

}  // namespace multihead::cuda
