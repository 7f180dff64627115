// generate(): a session and a sampler, or a search with beams.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/error/error.h"
#include "models/generation_plan.h"
#include "multihead/models.h"

namespace multihead::models {
namespace {

Status search(const Model& model, std::span<const int32_t> prompt, const GenerateOptions& options,
              const std::function<bool(int32_t token)>& on_token, Context& context) {
  BeamSearch beams;
  MULTIHEAD_TRY(BeamSearch::create(model, prompt, options, beams, context));
  for (bool done = false; !done;) MULTIHEAD_TRY(beams.step(done, context));
  for (const int32_t token : beams.ids()) {
    if (on_token && !on_token(token)) break;
  }
  return {};
}

// Adds the tokens that follow the first occurrence of the longest end of `ids` that occurred.
void look_up(std::span<const int32_t> ids, int64_t longest, int64_t most,
             std::vector<int32_t>& next) {
  const auto length = static_cast<int64_t>(ids.size());
  for (int64_t n = std::min(longest, length - 1); n > 0 && most > 0; --n) {
    const auto found = std::search(ids.begin(), ids.end() - 1, ids.end() - n, ids.end());
    if (found == ids.end() - 1) continue;
    const auto first = found + n;
    next.insert(next.end(), first, first + std::min<int64_t>(most, ids.end() - first));
    return;
  }
}

}  // namespace

Status generate(const Model& model, std::span<const int32_t> prompt, const GenerateOptions& options,
                const std::function<bool(int32_t token)>& on_token, Context& context) {
  return engine::memory_guard([&]() -> Status {
    GenerationPlan plan;
    MULTIHEAD_TRY(plan_generation(model, prompt, options, plan));
    if (plan.beams != 1) return search(model, prompt, options, on_token, context);
    Session session;
    MULTIHEAD_TRY(Session::create(model, plan.session, session));
    const ModelInfo& info = model.info();
    if (info.has_encoder) MULTIHEAD_TRY(session.encode(prompt, options.source_edits, context));
    const int64_t vocabulary = info.vocab_size;
    const int64_t most_rows = 1 + options.prompt_lookup_num_tokens;
    std::vector<float> numbers(static_cast<size_t>(most_rows * vocabulary));
    const auto given = static_cast<int64_t>(plan.first.size());
    Sampler sampler(plan.sampling, plan.rules, given, given + plan.most);
    int64_t accepted = 0;
    int64_t& accepted_so_far = options.accepted == nullptr ? accepted : *options.accepted;
    accepted_so_far = 0;
    // The tokens to append, and how many of them are followed by a choice.
    std::vector<int32_t> next = plan.first, known = plan.first;
    int64_t rows = 1;
    for (int64_t count = 0; count < plan.most;) {
      const Tensor logits = rows == 1 ? Tensor(numbers.data(), {vocabulary})
                                      : Tensor(numbers.data(), {rows, vocabulary});
      MULTIHEAD_TRY(session.append(next, logits, context));
      const auto first = static_cast<size_t>(session.length() - rows + 1);
      int32_t token = 0;
      size_t row = 0;
      for (bool goes_on = true; goes_on; ++row) {
        const std::span<const int32_t> before = session.ids().first(first + row);
        const std::span<float> values = std::span(numbers).subspan(
            row * static_cast<size_t>(vocabulary), static_cast<size_t>(vocabulary));
        if (options.logits_processor) MULTIHEAD_TRY(options.logits_processor(before, values));
        MULTIHEAD_TRY(sampler.choose({values.data(), {vocabulary}}, before, token));
        known.push_back(token);
        ++count;
        if (row > 0) ++accepted_so_far;
        if (on_token && !on_token(token)) return {};
        if (std::find(plan.stops.begin(), plan.stops.end(), token) != plan.stops.end()) return {};
        goes_on = row + 1 < static_cast<size_t>(rows) && next[row + 1] == token;
      }
      MULTIHEAD_TRY(session.truncate(static_cast<int64_t>(first + row) - 1));
      next.assign(1, token);
      look_up(known, options.max_matching_ngram_size,
              std::min(options.prompt_lookup_num_tokens, plan.most - count - 1), next);
      rows = static_cast<int64_t>(next.size());
    }
    return {};
  });
}

}  // namespace multihead::models
