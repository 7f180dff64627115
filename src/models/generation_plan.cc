#include "models/generation_plan.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace multihead::models {

Status plan_generation(const Model& model, std::span<const int32_t> prompt,
                       const GenerateOptions& options, GenerationPlan& plan) {
  if (prompt.empty()) return {StatusCode::kOption, "prompt", "1 token or more", "none"};
  if (options.max_new_tokens.value_or(0) < 0) {
    return {StatusCode::kOption, "max_new_tokens", "0 or more",
            std::to_string(*options.max_new_tokens)};
  }
  constexpr int64_t kMostLookedUp = 64;
  if (options.prompt_lookup_num_tokens < 0 || options.prompt_lookup_num_tokens > kMostLookedUp) {
    return {StatusCode::kOption, "prompt_lookup_num_tokens", "0 to 64",
            std::to_string(options.prompt_lookup_num_tokens)};
  }
  if (options.max_matching_ngram_size < 1) {
    return {StatusCode::kOption, "max_matching_ngram_size", "1 or more",
            std::to_string(options.max_matching_ngram_size)};
  }
  const ModelInfo& info = model.info();
  plan.first.assign(prompt.begin(), prompt.end());
  if (info.has_encoder) {
    plan.first = options.decoder_prompt;
    if (plan.first.empty()) plan.first.push_back(info.decoder_start);
    if (plan.first.front() < 0) {
      return {StatusCode::kOption, "decoder_prompt",
              "tokens, because the configuration has no decoder_start_token_id", "none"};
    }
  }
  const auto given = static_cast<int64_t>(plan.first.size());
  const int64_t limit =
      info.max_tokens > 0 ? info.max_tokens : std::numeric_limits<int64_t>::max() - 1;
  if (given > limit) {
    return {StatusCode::kOption, info.has_encoder ? "decoder_prompt" : "prompt",
            "at most " + std::to_string(limit) + " tokens", std::to_string(given)};
  }
  const GenerationDefaults& defaults = info.generation;
  int64_t most = 128;
  if (info.has_encoder && defaults.max_new_tokens > 0) {
    most = defaults.max_new_tokens;
  } else if (info.has_encoder && defaults.max_length > 0) {
    most = std::max<int64_t>(1, defaults.max_length - given);
  }
  // The last token is given out, but needs no place in the session.
  plan.most = std::min(options.max_new_tokens.value_or(most), limit - given + 1);
  plan.session = {.capacity = given + std::max<int64_t>(plan.most, 1) - 1,
                  .cache_type = options.cache_type,
                  .head_scales = options.head_scales,
                  .edits = options.edits};
  plan.rules = options.rules ? *options.rules : info.rules;
  plan.stops = options.stop_ids ? *options.stop_ids : info.end_ids;
  plan.rules.ends = plan.stops;
  if (plan.rules.encoder_no_repeat_ngram_size > 0) {
    plan.rules.source.assign(prompt.begin(), prompt.end());
  }
  plan.sampling = options.sampling;
  if (!plan.sampling.repetition_penalty) {
    plan.sampling.repetition_penalty = defaults.repetition_penalty;
  }
  const bool steps = options.sampling.temperature != 0.0F || options.logits_processor ||
                     options.prompt_lookup_num_tokens != 0;
  plan.beams = options.num_beams.value_or(steps ? 1 : defaults.num_beams);
  return {};
}

}  // namespace multihead::models
