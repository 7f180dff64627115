// One call of attention() in parts, for callers that compute them apart, such as workers that share
// no memory. Every part is planned as the whole call, so that the parts together give its bits.
#pragma once

#include <cstdint>

#include "multihead/attention.h"

namespace multihead::engine {

// How a call can be divided. Key/value head h of batch entry b counts as head b * H_kv + h. The
// query heads that share it form one list of rows, query by query (see rules::AttentionParams).
struct AttentionParts {
  int64_t heads = 0;
  int64_t blocks = 0;      // of the rows of each head; 1 where the rows stay together
  int64_t block_rows = 0;  // rows of a block; the last may have fewer
  double operations = 0;   // multiplications and additions of the whole call, at most
};

// Heads first_head .. end_head - 1, and of each the blocks first_block .. end_block - 1, within
// what AttentionParts says. The caller's memory begins at head first_in_memory, at most first_head.
struct AttentionPart {
  int64_t first_in_memory = 0;
  int64_t first_head = 0, end_head = 0;
  int64_t first_block = 0, end_block = 0;
  bool packed = false;  // as in divide_attention()
};

// Checks a call of attention() and says how it can be divided. Reads options, but no element of a
// tensor, and writes nothing. `packed`: q, k and v, with a batch of one, are one sequence of a call
// of attention_varlen(), whose bits the parts then give.
Status divide_attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        bool packed, AttentionParts& parts);

// Computes one part of a call. All shapes and options are those of the whole call. The data of q,
// k, v, out, lse, weights and dropout_mask begin at the part's first head in memory; mask, bias and
// captures are whole.
Status attention_part(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                      const AttentionOptions& options, const AttentionOutputs& outputs,
                      const AttentionPart& part, Context& context);

}  // namespace multihead::engine
