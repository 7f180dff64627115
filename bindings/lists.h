// Reads lists of JavaScript, which have no place in the block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "argument_block.h"
#include "multihead/models.h"

namespace multihead::bindings {

// Reads lists that JavaScript wrote as texts, each followed by a zero, and numbers beside them.
class ListReader {
 public:
  ListReader(std::span<const char> texts, std::span<const double> numbers)
      : texts_(texts.data(), texts.size()), numbers_(numbers) {}

  explicit ListReader(std::span<const double> numbers) : numbers_(numbers) {}

  bool at_end() const { return texts_.empty(); }
  bool has_numbers() const { return !numbers_.empty(); }
  std::string_view text() {
    const std::string_view found = texts_.substr(0, texts_.find('\0'));
    texts_.remove_prefix(std::min(texts_.size(), found.size() + 1));
    return found;
  }
  double number() {
    if (numbers_.empty()) return 0;
    const double found = numbers_.front();
    numbers_ = numbers_.subspan(1);
    return found;
  }
  int64_t whole() { return static_cast<int64_t>(number()); }
  // Their number, and the numbers.
  std::vector<int64_t> wholes() {
    std::vector<int64_t> list;
    for (int64_t left = whole(); left > 0; --left) list.push_back(whole());
    return list;
  }
  // An address, the rank and the extents.
  template <class T>
  TensorView<T> tensor() {
    T* const data = pointer<T>(static_cast<uint32_t>(number()));
    Dims shape;
    for (const int64_t extent : wholes()) shape.push_back(extent);
    return {data, shape};
  }

 private:
  std::string_view texts_;
  std::span<const double> numbers_;
};

// Captures: site, layer, heads, output.
inline std::vector<models::Capture> captures_of(std::span<const double> numbers) {
  std::vector<models::Capture> captures;
  for (ListReader list(numbers); list.has_numbers();) {
    models::Capture& capture = captures.emplace_back();
    capture.site = static_cast<models::Site>(list.whole());
    capture.layer = list.whole();
    capture.heads = list.wholes();
    capture.out = list.tensor<float>();
  }
  return captures;
}

// Edits: site, layer, sequences, heads, tokens, action, factor, value.
inline std::vector<models::Edit> edits_of(std::span<const double> numbers) {
  std::vector<models::Edit> edits;
  for (ListReader list(numbers); list.has_numbers();) {
    models::Edit& edit = edits.emplace_back();
    edit.site = static_cast<models::Site>(list.whole());
    edit.layer = list.whole();
    edit.sequences = list.wholes();
    edit.heads = list.wholes();
    edit.tokens = list.wholes();
    edit.action = static_cast<models::Edit::Action>(list.whole());
    edit.factor = static_cast<float>(list.number());
    edit.value = list.tensor<const float>();
  }
  return edits;
}

// Rules: forced_bos and forced_eos, -1 for none; no_repeat_ngram_size,
// encoder_no_repeat_ngram_size, min_length, min_new_tokens; then the numbers of suppress,
// begin_suppress, of each bad word, ends and source, which are counted first. No numbers: no rules.
inline models::TokenRules rules_of(std::span<const double> numbers) {
  models::TokenRules rules;
  if (numbers.empty()) return rules;
  ListReader list(numbers);
  const auto ids = [&] {
    const std::vector<int64_t> wide = list.wholes();
    return std::vector<int32_t>(wide.begin(), wide.end());
  };
  for (std::optional<int32_t>* const forced : {&rules.forced_bos, &rules.forced_eos}) {
    const int64_t id = list.whole();
    if (id >= 0) *forced = static_cast<int32_t>(id);
  }
  for (int64_t* const size : {&rules.no_repeat_ngram_size, &rules.encoder_no_repeat_ngram_size,
                              &rules.min_length, &rules.min_new_tokens}) {
    *size = list.whole();
  }
  rules.suppress = ids();
  rules.begin_suppress = ids();
  for (int64_t left = list.whole(); left > 0; --left) rules.bad_words.push_back(ids());
  rules.ends = ids();
  rules.source = ids();
  return rules;
}

// The rules of a folder, which have no ends and no source.
inline std::vector<int32_t> numbers_of(const models::TokenRules& rules) {
  std::vector<int32_t> numbers = {rules.forced_bos.value_or(-1), rules.forced_eos.value_or(-1)};
  const auto add = [&](const std::vector<int32_t>& ids) {
    numbers.push_back(static_cast<int32_t>(ids.size()));
    numbers.insert(numbers.end(), ids.begin(), ids.end());
  };
  for (const int64_t size : {rules.no_repeat_ngram_size, rules.encoder_no_repeat_ngram_size,
                             rules.min_length, rules.min_new_tokens}) {
    numbers.push_back(static_cast<int32_t>(size));
  }
  add(rules.suppress);
  add(rules.begin_suppress);
  numbers.push_back(static_cast<int32_t>(rules.bad_words.size()));
  for (const std::vector<int32_t>& word : rules.bad_words) add(word);
  return numbers;
}

// The inputs of a call with its edits.
struct Edited {
  Edited(const models::ModelInputs& given, std::span<const double> numbers,
         std::span<const double> of_source = {})
      : edits(edits_of(numbers)), source_edits(edits_of(of_source)), inputs(given) {
    inputs.edits = edits;
    inputs.source_edits = source_edits;
  }
  std::vector<models::Edit> edits, source_edits;
  models::ModelInputs inputs;
};

}  // namespace multihead::bindings
