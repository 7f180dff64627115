// Transformer::embed(): adds token and position embeddings.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/runtime/team.h"
#include "multihead/transformer.h"

namespace multihead {

// `gathered` has room for the embeddings of all tokens, and `places` for one index per token. Both
// are used only in a team.
Status Transformer::embed(std::span<const int32_t> tokens, int64_t before, int64_t length,
                          float* gathered, int32_t* places, float* to, Context& context) const {
  const int64_t width = config_.block.attention.embed_dim;
  engine::Embeddings embeddings{
      .tokens = weights_.embedding.data,
      .positions = config_.max_positions == 0 ? nullptr : weights_.position.data,
      .width = width};
  if (places == nullptr) {
    engine::embed(tokens, embeddings, before, length, to, context);
    return {};
  }
  // Each team member holds some rows of the embedding table. Sort the tokens by member: each member
  // writes its tokens' rows of `gathered`, the members exchange them, and `gathered` is then the
  // table.
  engine::Team& team = *engine::team_of(context);
  std::vector<int64_t> ends;
  int32_t place = 0;
  for (int member = 0; member < team.members(); ++member) {
    const int64_t first = team.first_output(config_.vocab_size, member);
    const int64_t end = team.first_output(config_.vocab_size, member + 1);
    ends.push_back(place);
    for (size_t n = 0; n < tokens.size(); ++n) {
      if (tokens[n] < first || tokens[n] >= end) continue;
      if (member == team.rank()) {
        std::copy_n(embeddings.tokens + (tokens[n] - first) * width, width,
                    gathered + place * width);
      }
      places[n] = place++;
    }
  }
  ends.push_back(place);
  MULTIHEAD_TRY(team.exchange_rows(gathered, width * static_cast<int64_t>(sizeof(float)),
                                   [&](int member) { return ends[static_cast<size_t>(member)]; }));
  embeddings.tokens = gathered;
  engine::embed({places, tokens.size()}, embeddings, before, length, to, context);
  return {};
}

}  // namespace multihead
