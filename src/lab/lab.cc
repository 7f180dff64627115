#include "multihead/lab.h"

#include <cmath>

#include "nn/attention/attention_parameters.h"

namespace multihead {

float embed_dim_scale(const MultiHeadAttentionConfig& config) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.embed_dim)));
}

MultiHeadAttention without_out_proj(const MultiHeadAttention& module) {
  return MultiHeadAttention::Internals::without_out_proj(module);
}

}  // namespace multihead
