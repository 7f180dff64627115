#include "models/token_rules.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/error/error.h"
#include "models/config_reader.h"

namespace multihead::models {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The settings of generation, of which generation_config.json has newer values than config.json.
class Settings {
 public:
  Settings(const Config& config, int64_t vocabulary) : config_(config), vocabulary_(vocabulary) {}

  // The ids below a name: one, or a list of them. null and negative numbers are none.
  Status ids(const std::string& name, std::vector<int32_t>& list) const {
    for (const char* const file : {"generation_config.json/", ""}) {
      const std::string path = file + name;
      MULTIHEAD_TRY(add(path, list));
      for (size_t at = 0; config_.contains(path + "." + std::to_string(at)); ++at) {
        MULTIHEAD_TRY(add(path + "." + std::to_string(at), list));
      }
      if (!list.empty()) return {};
    }
    return {};
  }

  Status id(const std::string& name, std::optional<int32_t>& id) const {
    std::vector<int32_t> list;
    MULTIHEAD_TRY(ids(name, list));
    if (!list.empty()) id = list.front();
    return {};
  }

 private:
  Status add(const std::string& field, std::vector<int32_t>& list) const {
    const auto found = config_.find(field);
    if (found == config_.end() || found->second.kind == ConfigValue::Kind::kNull) return {};
    const ConfigValue& value = found->second;
    const bool is_number = value.kind == ConfigValue::Kind::kNumber;
    if (is_number && value.number < 0) return {};
    if (!is_number || value.number != std::floor(value.number) ||
        !(value.number < static_cast<double>(vocabulary_))) {
      return setting_error(field, "a token id below " + std::to_string(vocabulary_),
                           described(&value));
    }
    list.push_back(static_cast<int32_t>(value.number));
    return {};
  }

  const Config& config_;
  int64_t vocabulary_;
};

}  // namespace

Status read_token_rules(const Config& config, int64_t vocabulary, int32_t& decoder_start,
                        TokenRules& rules) {
  const Settings settings(config, vocabulary);
  std::optional<int32_t> start, bos;
  MULTIHEAD_TRY(settings.id("decoder_start_token_id", start));
  MULTIHEAD_TRY(settings.id("bos_token_id", bos));
  decoder_start = start ? *start : bos.value_or(-1);
  MULTIHEAD_TRY(settings.id("forced_bos_token_id", rules.forced_bos));
  MULTIHEAD_TRY(settings.id("forced_eos_token_id", rules.forced_eos));
  MULTIHEAD_TRY(settings.ids("suppress_tokens", rules.suppress));
  MULTIHEAD_TRY(settings.ids("begin_suppress_tokens", rules.begin_suppress));
  std::vector<int32_t> ends;
  MULTIHEAD_TRY(settings.ids("eos_token_id", ends));
  for (size_t at = 0;; ++at) {
    std::vector<int32_t> word;
    MULTIHEAD_TRY(settings.ids("bad_words_ids." + std::to_string(at), word));
    if (word.empty()) return {};
    // As in transformers, a text may always end.
    const bool is_end =
        word.size() == 1 && std::find(ends.begin(), ends.end(), word.front()) != ends.end();
    if (!is_end) rules.bad_words.push_back(word);
  }
}

Status check_rules(const TokenRules& rules, int64_t vocabulary) {
  const auto check = [&](const char* name, std::span<const int32_t> ids) -> Status {
    for (const int32_t id : ids) {
      if (id >= 0 && id < vocabulary) continue;
      return {StatusCode::kOption, name, "0 to " + std::to_string(vocabulary - 1),
              std::to_string(id)};
    }
    return {};
  };
  if (rules.forced_bos) MULTIHEAD_TRY(check("forced_bos", {&*rules.forced_bos, 1}));
  if (rules.forced_eos) MULTIHEAD_TRY(check("forced_eos", {&*rules.forced_eos, 1}));
  MULTIHEAD_TRY(check("suppress", rules.suppress));
  MULTIHEAD_TRY(check("begin_suppress", rules.begin_suppress));
  for (const std::vector<int32_t>& word : rules.bad_words) {
    if (word.empty()) return {StatusCode::kOption, "bad_words", "tokens in each", "none in one"};
    MULTIHEAD_TRY(check("bad_words", word));
  }
  return {};
}

void penalize(std::span<const int32_t> before, float penalty, std::vector<bool>& seen,
              std::span<float> logits) {
  if (penalty == 1.0F) return;
  // Each token once, however often it occurred.
  seen.assign(logits.size(), false);
  for (const int32_t id : before) {
    const auto at = static_cast<size_t>(id);
    if (id < 0 || at >= logits.size() || seen[at]) continue;
    seen[at] = true;
    logits[at] = logits[at] > 0 ? logits[at] / penalty : logits[at] * penalty;
  }
}

void apply_rules(const TokenRules& rules, std::span<const int32_t> before, int64_t begin,
                 int64_t end, std::span<float> logits) {
  const auto length = static_cast<int64_t>(before.size());
  const auto never = [&](int32_t id) { logits[static_cast<size_t>(id)] = kNever; };
  const auto always = [&](int32_t id) {
    std::fill(logits.begin(), logits.end(), kNever);
    logits[static_cast<size_t>(id)] = 0.0F;
  };
  std::for_each(rules.suppress.begin(), rules.suppress.end(), never);
  const bool after_forced = begin <= 1 && rules.forced_bos.has_value();
  if (length == begin + (after_forced ? 1 : 0)) {
    std::for_each(rules.begin_suppress.begin(), rules.begin_suppress.end(), never);
  }
  for (const std::vector<int32_t>& word : rules.bad_words) {
    const size_t first = word.size() - 1;
    if (first > before.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, before.end() - static_cast<int64_t>(first))) {
      never(word.back());
    }
  }
  if (rules.forced_bos && length == 1) always(*rules.forced_bos);
  if (rules.forced_eos && end > 0 && length == end - 1) always(*rules.forced_eos);
}

}  // namespace multihead::models
