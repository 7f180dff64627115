// Merges two attention results over disjoint keys.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rules/attention_params.h"

namespace multihead::cuda {

// The merged result replaces `a`. out: (B, H, N, width); lse: (B, H, N).
struct MergeParams {
  rules::Rows<float> out_a, lse_a;
  rules::Rows<const float> out_b, lse_b;
  int64_t batch = 0, heads = 0, rows = 0, width = 0;
};
static_assert(std::is_trivially_copyable_v<MergeParams>);

}  // namespace multihead::cuda
