#include "models/token_rules.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "models/config_reader.h"

namespace multihead::models {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Settings with ids of tokens, behind a prefix. kMostRows as `vocabulary`: any ids.
class Settings {
 public:
  Settings(const Config& config, std::string prefix, int64_t vocabulary)
      : config_(config), prefix_(std::move(prefix)), vocabulary_(vocabulary) {}

  // The ids below a name: one, or a list of them. null and negative numbers are none.
  Status ids(const std::string& name, std::vector<int32_t>& list) const {
    const std::string path = prefix_ + name;
    MULTIHEAD_TRY(add(path, list));
    for (size_t at = 0; config_.contains(path + "." + std::to_string(at)); ++at) {
      MULTIHEAD_TRY(add(path + "." + std::to_string(at), list));
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
      const std::string below = " below " + std::to_string(vocabulary_);
      return setting_error(field, "a token id" + (vocabulary_ == kMostRows ? "" : below),
                           described(&value));
    }
    list.push_back(static_cast<int32_t>(value.number));
    return {};
  }

  const Config& config_;
  std::string prefix_;
  int64_t vocabulary_;
};

}  // namespace

Status read_generation(const Config& config, const std::string& fields, Architecture& a) {
  std::string prefix = "generation_config.json/";
  // A file may name an end that the vocabulary does not have.
  const auto add_ends = [&](const std::string& before) -> Status {
    std::vector<int32_t> ids;
    MULTIHEAD_TRY(Settings(config, before, kMostRows).ids("eos_token_id", ids));
    for (const int32_t id : ids) {
      const auto same = std::find(a.end_ids.begin(), a.end_ids.end(), id);
      if (same == a.end_ids.end()) a.end_ids.push_back(id);
    }
    return {};
  };
  MULTIHEAD_TRY(add_ends(fields));
  if (a.end_ids.empty() && !fields.empty()) MULTIHEAD_TRY(add_ends(""));
  MULTIHEAD_TRY(add_ends(prefix));
  // As transformers, which reads config.json for the rest only if the other file is missing.
  if (!ConfigReader(config, prefix).has_members()) prefix.clear();
  const Settings settings(config, prefix, a.vocabulary), of_model(config, "", a.vocabulary);
  if (a.family->encoder != nullptr) {
    std::optional<int32_t> start;
    MULTIHEAD_TRY(settings.id("decoder_start_token_id", start));
    if (!start) MULTIHEAD_TRY(of_model.id("decoder_start_token_id", start));
    if (!start) MULTIHEAD_TRY(settings.id("bos_token_id", start));
    if (!start) MULTIHEAD_TRY(of_model.id("bos_token_id", start));
    a.decoder_start = start.value_or(-1);
  }
  TokenRules& rules = a.rules;
  MULTIHEAD_TRY(settings.id("forced_bos_token_id", rules.forced_bos));
  MULTIHEAD_TRY(settings.id("forced_eos_token_id", rules.forced_eos));
  MULTIHEAD_TRY(settings.ids("suppress_tokens", rules.suppress));
  MULTIHEAD_TRY(settings.ids("begin_suppress_tokens", rules.begin_suppress));
  for (size_t at = 0;; ++at) {
    std::vector<int32_t> word;
    MULTIHEAD_TRY(settings.ids("bad_words_ids." + std::to_string(at), word));
    if (word.empty()) break;
    // As in transformers, a text may always end.
    const bool is_end = word.size() == 1 && std::find(a.end_ids.begin(), a.end_ids.end(),
                                                      word.front()) != a.end_ids.end();
    if (!is_end) rules.bad_words.push_back(word);
  }
  ConfigReader reader(config, prefix);
  const auto number = [&](const char* name, double absent, double least) {
    return reader.has(name) ? reader.number(name, absent, {.least = least}) : absent;
  };
  const auto count = [&](const char* name) {
    return static_cast<int64_t>(std::min(number(name, 0, 0), static_cast<double>(kMostRows)));
  };
  rules.no_repeat_ngram_size = count("no_repeat_ngram_size");
  rules.encoder_no_repeat_ngram_size = count("encoder_no_repeat_ngram_size");
  rules.min_length = count("min_length");
  rules.min_new_tokens = count("min_new_tokens");
  GenerationDefaults& defaults = a.generation;
  defaults.max_new_tokens = count("max_new_tokens");
  defaults.max_length = count("max_length");
  defaults.num_beams = std::max<int64_t>(1, count("num_beams"));
  defaults.length_penalty = static_cast<float>(number("length_penalty", 1, -kMostNumber));
  defaults.repetition_penalty = static_cast<float>(number("repetition_penalty", 1, 1e-30));
  const ConfigValue* const stopping = reader.find("early_stopping");
  if (stopping != nullptr && stopping->text == "never") {
    defaults.early_stopping = EarlyStopping::kNever;
  } else if (reader.flag("early_stopping", false)) {
    defaults.early_stopping = EarlyStopping::kFirstFull;
  }
  return reader.status();
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
  for (const auto& [name, value] :
       {std::pair{"no_repeat_ngram_size", rules.no_repeat_ngram_size},
        {"encoder_no_repeat_ngram_size", rules.encoder_no_repeat_ngram_size},
        {"min_length", rules.min_length},
        {"min_new_tokens", rules.min_new_tokens}}) {
    if (value < 0) return {StatusCode::kOption, name, "0 or more", std::to_string(value)};
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
  // Ends and tokens of the encoder may be none of this vocabulary.
  const auto never = [&](int32_t id) {
    if (id >= 0 && static_cast<size_t>(id) < logits.size())
      logits[static_cast<size_t>(id)] = kNever;
  };
  const auto always = [&](int32_t id) {
    std::fill(logits.begin(), logits.end(), kNever);
    logits[static_cast<size_t>(id)] = 0.0F;
  };
  const auto ends_with = [&](const int32_t* first, const int32_t* end) {
    return static_cast<size_t>(end - first) <= before.size() &&
           std::equal(first, end, before.end() - (end - first));
  };
  // Forbids what would complete a sequence of n tokens that `text` has.
  const auto never_again = [&](std::span<const int32_t> text, int64_t n) {
    for (int64_t at = 0; n > 0 && at + n <= static_cast<int64_t>(text.size()); ++at) {
      const int32_t* const last = text.data() + at + n - 1;
      if (ends_with(text.data() + at, last)) never(*last);
    }
  };
  never_again(before, rules.no_repeat_ngram_size);
  never_again(rules.source, rules.encoder_no_repeat_ngram_size);
  for (const std::vector<int32_t>& word : rules.bad_words) {
    // In transformers only words count that are not longer than the text.
    if (word.size() > std::max<size_t>(1, before.size())) continue;
    if (ends_with(word.data(), word.data() + word.size() - 1)) never(word.back());
  }
  const bool is_short =
      rules.min_new_tokens > 0 ? length < begin + rules.min_new_tokens : length < rules.min_length;
  if (is_short) std::for_each(rules.ends.begin(), rules.ends.end(), never);
  std::for_each(rules.suppress.begin(), rules.suppress.end(), never);
  const bool after_forced = begin <= 1 && rules.forced_bos.has_value();
  if (length == begin + (after_forced ? 1 : 0)) {
    std::for_each(rules.begin_suppress.begin(), rules.begin_suppress.end(), never);
  }
  if (rules.forced_bos && length == 1) always(*rules.forced_bos);
  if (rules.forced_eos && end > 0 && length == end - 1) always(*rules.forced_eos);
}

}  // namespace multihead::models
