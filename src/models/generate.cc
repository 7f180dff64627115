// generate(): a session and a sampler.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "engine/error/error.h"
#include "multihead/models.h"

namespace multihead::models {

Status generate(const Model& model, std::span<const int32_t> prompt, const GenerateOptions& options,
                const std::function<bool(int32_t token)>& on_token, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (prompt.empty()) return {StatusCode::kOption, "prompt", "1 token or more", "none"};
    if (options.max_new_tokens < 0) {
      return {StatusCode::kOption, "max_new_tokens", "0 or more",
              std::to_string(options.max_new_tokens)};
    }
    const ModelInfo& info = model.info();
    // The tokens before the first new one.
    const std::vector<int32_t> start(1, info.decoder_start);
    std::span<const int32_t> first = prompt;
    if (info.has_encoder) first = options.decoder_prompt.empty() ? start : options.decoder_prompt;
    const auto given = static_cast<int64_t>(first.size());
    const int64_t limit =
        info.max_tokens > 0 ? info.max_tokens : std::numeric_limits<int64_t>::max() - 1;
    if (given > limit) {
      return {StatusCode::kOption, info.has_encoder ? "decoder_prompt" : "prompt",
              "at most " + std::to_string(limit) + " tokens", std::to_string(given)};
    }
    if (first.front() < 0 && info.has_encoder) {
      return {StatusCode::kOption, "decoder_prompt",
              "tokens, because the configuration has no decoder_start_token_id", "none"};
    }
    // The last token is given out, but needs no place in the session.
    const int64_t most = std::min(options.max_new_tokens, limit - given + 1);
    Session session;
    MULTIHEAD_TRY(Session::create(model,
                                  {.capacity = given + std::max<int64_t>(most, 1) - 1,
                                   .cache_type = options.cache_type,
                                   .head_scales = options.head_scales,
                                   .edits = options.edits},
                                  session));
    if (info.has_encoder) MULTIHEAD_TRY(session.encode(prompt, options.source_edits, context));
    const std::vector<int32_t>& stops = options.stop_ids ? *options.stop_ids : info.end_ids;
    std::vector<float> numbers(static_cast<size_t>(info.vocab_size));
    const Tensor logits(numbers.data(), {info.vocab_size});
    Sampler sampler(options.sampling, options.rules ? *options.rules : info.rules, given,
                    given + most);
    int32_t token = 0;
    for (int64_t count = 0; count < most; ++count) {
      MULTIHEAD_TRY(session.append(count == 0 ? first : std::span<const int32_t>(&token, 1), logits,
                                   context));
      MULTIHEAD_TRY(sampler.choose(logits, session.ids(), token));
      if (on_token && !on_token(token)) break;
      if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
    }
    return {};
  });
}

}  // namespace multihead::models
