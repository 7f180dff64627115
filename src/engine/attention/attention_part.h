// Computes one call of attention() in parts, for callers such as workers that share no memory.
// Every part is planned as the whole call, so the parts together give the bits of the whole call.
#pragma once

#include <cstdint>

#include "engine/attention/validate.h"
#include "multihead/context.h"

namespace multihead::engine {

// The parts that a call can be divided into. Key/value head h of batch entry b has index b * H_kv +
// h. The query heads that share it form one list of rows, query by query (see
// rules::AttentionParams).
struct AttentionParts {
  int64_t heads = 0;
  int64_t blocks = 0;      // blocks of rows per head; 1 if rows cannot be divided
  int64_t block_rows = 0;  // rows per block; the last may have fewer
  double operations = 0;   // upper bound of the whole call's multiplications and additions
};

// Heads first_head .. end_head - 1, times blocks first_block .. end_block - 1 of each head, within
// the limits of AttentionParts. The caller's memory begins at head first_in_memory <= first_head.
struct AttentionPart {
  int64_t first_in_memory = 0;
  int64_t first_head = 0, end_head = 0;
  int64_t first_block = 0, end_block = 0;
  bool varlen = false;  // as in divide_attention()
};

// Checks a call of attention() and computes how it can be divided. Reads options, but no element of
// a tensor, and writes nothing. With `varlen`, q, k and v (batch 1) are one sequence of a call of
// attention_varlen(), and the parts give the bits of that call.
Status divide_attention(const ForwardCall& call, bool varlen, AttentionParts& parts);

// Computes one part of a call. Shapes and options describe the whole call. The data of q, k, v,
// out, lse, weights and dropout_mask begin at head first_in_memory; mask, bias and captures are
// whole.
Status attention_part(const ForwardCall& call, const AttentionPart& part, Context& context);

}  // namespace multihead::engine
