// Tokens that a generation must or may not choose.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/architecture.h"
#include "multihead/models.h"
#include "multihead/status.h"

namespace multihead::models {

// Reads the ids that end a text, rules, defaults and the decoder's first token. `fields`: stands
// before the names in config.json. Errors: kOption, naming a setting that is no number, or no list
// of token ids.
Status read_generation(const Config& config, const std::string& fields, Architecture& architecture);

// kOption, naming the rule, unless all its tokens are below `vocabulary`.
Status check_rules(const TokenRules& rules, int64_t vocabulary);

// Makes the logits of tokens that occurred before less likely: SamplingOptions::repetition_penalty.
// `seen` is memory for the next call.
void penalize(std::span<const int32_t> before, float penalty, std::vector<bool>& seen,
              std::span<float> logits);

// Makes the logits of tokens that are not allowed after `before` -inf. The generation began after
// `begin` tokens and has at most `end`; 0: no end.
void apply_rules(const TokenRules& rules, std::span<const int32_t> before, int64_t begin,
                 int64_t end, std::span<float> logits);

}  // namespace multihead::models
