// What the weights of a head look like, in a number each: for finding the heads that look at the
// previous token, at the first one, or at what followed an earlier occurrence of this one.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/export.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace MULTIHEAD_PUBLIC multihead {

// (H) each, or empty where not asked for; means over the batch and the queries. Query i stands at
// position i + N_k - N_q among the keys. Where there is no query of the kind, 0.
struct HeadStatistics {
  // -sum w ln w in nats: 0 where one key has all, ln n where n share alike.
  std::span<float> entropy = {};
  // Weight on the key one before the query's position; of queries that have one.
  std::span<float> previous_token = {};
  // Weight on key 0, of queries that do not stand there.
  std::span<float> first_token = {};
  // Weight on keys right behind an earlier occurrence of the query's token, of queries that have
  // one (Olsson et al. 2022, arXiv:2209.11895).
  std::span<float> induction = {};
};

// weights (B, H, N_q, N_k) with N_q <= N_k, as MultiHeadAttention gives them; tokens (B * N_k), the
// identity of each key, for induction only. Errors: kShape. Nothing is written then.
[[nodiscard]] Status head_statistics(const ConstTensor& weights, std::span<const int32_t> tokens,
                                     const HeadStatistics& statistics);

}  // namespace multihead
