/// \file
/// Part of multihead::lab. Statistics of attention weights, to find heads that attend to the
/// previous token, to the first token, or to tokens that follow an earlier occurrence of the
/// query's token.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/export.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Each span holds one number per head (H), or is empty to skip the statistic. The numbers are
/// means over batch entries and queries; 0 if there are none. Query i has position i + N_k - N_q
/// among the keys.
struct HeadStatistics {
  /// -sum w ln w, in nats: 0 if one key has all the weight, ln n if n keys have 1/n each.
  std::span<float> entropy = {};
  /// Weight on the key before the query's position, over queries that have one.
  std::span<float> previous_token = {};
  /// Weight on key 0, over queries at later positions.
  std::span<float> first_token = {};
  /// Weight on the keys that follow earlier occurrences of the query's token, over queries whose
  /// token has occurred before (Olsson et al. 2022, arXiv:2209.11895).
  std::span<float> induction = {};
};

/// weights (B, H, N_q, N_k) with N_q <= N_k, as MultiHeadAttention returns them. tokens (B * N_k),
/// the token of each key, is read for `induction` only. Errors: kShape; nothing is written.
[[nodiscard]] Status head_statistics(const ConstTensor& weights, std::span<const int32_t> tokens,
                                     const HeadStatistics& statistics);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
