/// \file
/// The library multihead::lab, for teaching and experiments: includes experiments.h and
/// head_statistics.h, and changes modules to show what their parts are for.
#pragma once

#include "multihead/experiments.h"      // IWYU pragma: export
#include "multihead/export.h"           // IWYU pragma: export
#include "multihead/head_statistics.h"  // IWYU pragma: export
#include "multihead/multi_head_attention.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// 1/sqrt(embed_dim), a common mistake for 1/sqrt(head_dim): as AttentionOptions::scale of a
/// module's call, it shows the mistake's effect.
float embed_dim_scale(const MultiHeadAttentionConfig& config);

/// Returns a copy of `module` whose output is the merged heads (B, N_q, H * value_dim), without the
/// output projection. It shares the parameters and the caches of `module`; state_dict() and named()
/// still have the output projection.
MultiHeadAttention without_out_proj(const MultiHeadAttention& module);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
