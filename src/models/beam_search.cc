// BeamSearch: the most likely sequences side by side. Definition: transformers,
// generation/utils.py, _beam_search: which candidates count, and when the search ends.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/runtime/team.h"
#include "models/generation_plan.h"
#include "models/metric.h"
#include "models/session.h"
#include "models/token_rules.h"
#include "multihead/models.h"

namespace multihead::models {
namespace {

struct Beam {
  std::vector<int32_t> ids;  // with those before the first new one
  double score = 0;          // sum of log-probabilities; of finished ones divided by the length
};

struct Candidate {
  double score = 0;
  size_t beam = 0;
  int32_t token = 0;
};

// The better one, of equal ones the first.
bool is_better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
}

}  // namespace

struct BeamSearch::State {
  std::vector<Session> sessions;  // one for each beam
  TokenRules rules;
  float repetition_penalty = 1.0F;
  std::vector<int32_t> stops;
  size_t beams = 0;
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kEstimate;
  int64_t begin = 0, end = 0;  // tokens before the first new one, and most tokens
  std::vector<Beam> running, finished;
  bool can_improve = true;
  std::vector<float> numbers;  // of one beam
  std::vector<bool> seen;

  double penalized(double score, int64_t new_tokens) const {
    return score / std::pow(static_cast<double>(new_tokens), length_penalty);
  }

  bool is_stop(int32_t token) const {
    return std::find(stops.begin(), stops.end(), token) != stops.end();
  }

  // The session that needs the fewest tokens for the ids, of which the last is new to all.
  Session& nearest(const std::vector<int32_t>& ids, std::vector<bool>& taken, int64_t& common) {
    size_t best = 0;
    common = -1;
    for (size_t at = 0; at < sessions.size(); ++at) {
      if (taken[at]) continue;
      const std::span<const int32_t> has = sessions[at].ids();
      const auto [end_of, other] = std::mismatch(has.begin(), has.end(), ids.begin(), ids.end());
      const int64_t equal = end_of - has.begin();
      if (equal <= common) continue;
      common = equal;
      best = at;
    }
    taken[best] = true;
    return sessions[best];
  }

  // Log-probabilities of the token after the ids, by the rules.
  Status rate(const Beam& beam, std::vector<bool>& taken, Context& context) {
    int64_t common = 0;
    Session& session = nearest(beam.ids, taken, common);
    const Tensor logits(numbers.data(), {static_cast<int64_t>(numbers.size())});
    MULTIHEAD_TRY(session.truncate(common));
    MULTIHEAD_TRY(
        session.append(std::span(beam.ids).subspan(static_cast<size_t>(common)), logits, context));
    const double sum = log_sum_exp(numbers);
    for (float& number : numbers) number = static_cast<float>(number - sum);
    penalize(beam.ids, repetition_penalty, seen, numbers);
    apply_rules(rules, beam.ids, begin, end, numbers);
    return {};
  }

  // The best candidates of all beams, the best first.
  Status find_candidates(size_t count, std::vector<Candidate>& best, Context& context) {
    std::vector<bool> taken(sessions.size());
    best.clear();
    for (size_t beam = 0; beam < running.size(); ++beam) {
      MULTIHEAD_TRY(rate(running[beam], taken, context));
      for (size_t token = 0; token < numbers.size(); ++token) {
        if (!(numbers[token] > -std::numeric_limits<float>::infinity())) continue;
        const Candidate next{running[beam].score + static_cast<double>(numbers[token]), beam,
                             static_cast<int32_t>(token)};
        // A heap whose first element is the worst one.
        if (best.size() == count && !is_better(next, best.front())) continue;
        if (best.size() == count) {
          std::pop_heap(best.begin(), best.end(), is_better);
          best.pop_back();
        }
        best.push_back(next);
        std::push_heap(best.begin(), best.end(), is_better);
      }
    }
    std::sort_heap(best.begin(), best.end(), is_better);
    if (!best.empty()) return {};
    return {StatusCode::kOption, "rules", "a token that may be chosen", "none"};
  }

  bool is_full() const { return finished.size() == beams; }

  void finish(Beam beam) {
    const auto place =
        std::upper_bound(finished.begin(), finished.end(), beam,
                         [](const Beam& a, const Beam& b) { return a.score > b.score; });
    finished.insert(place, std::move(beam));
    if (finished.size() > beams) finished.pop_back();
  }

  Status step(bool& done, Context& context) {
    std::vector<Candidate> best;
    // At least as many go on as there are beams, whatever ends.
    const size_t kept = std::max<size_t>(2, 1 + stops.size()) * beams;
    MULTIHEAD_TRY(find_candidates(kept, best, context));
    const auto length = static_cast<int64_t>(running.front().ids.size()) + 1;
    const bool closed = !can_improve || (is_full() && early_stopping == EarlyStopping::kFirstFull);
    std::vector<Beam> next;
    bool all_end = true;
    for (size_t rank = 0; rank < best.size(); ++rank) {
      const Candidate& candidate = best[rank];
      const bool ends = length >= end || is_stop(candidate.token);
      all_end = all_end && ends;
      const bool counts = ends ? rank < beams && !closed : next.size() < beams;
      if (!counts) continue;
      Beam beam{running[candidate.beam].ids, candidate.score};
      beam.ids.push_back(candidate.token);
      if (!ends) {
        next.push_back(std::move(beam));
        continue;
      }
      beam.score = penalized(beam.score, length - begin);
      finish(std::move(beam));
    }
    done = all_end;
    if (all_end) return {};
    running = std::move(next);
    const bool longest = early_stopping == EarlyStopping::kNever && length_penalty > 0;
    const double possible = penalized(running.front().score, (longest ? end : length) - begin);
    can_improve = can_improve && (!is_full() || possible > finished.back().score);
    done = !can_improve || (is_full() && early_stopping == EarlyStopping::kFirstFull);
    return {};
  }
};

BeamSearch::BeamSearch() = default;
BeamSearch::~BeamSearch() = default;
BeamSearch::BeamSearch(BeamSearch&&) noexcept = default;
BeamSearch& BeamSearch::operator=(BeamSearch&&) noexcept = default;

Status BeamSearch::create(const Model& model, std::span<const int32_t> prompt,
                          const GenerateOptions& options, BeamSearch& search, Context& context) {
  return engine::memory_guard([&]() -> Status {
    GenerationPlan plan;
    MULTIHEAD_TRY(plan_generation(model, prompt, options, plan));
    constexpr int64_t kMostBeams = 64;
    if (plan.beams < 1 || plan.beams > kMostBeams) {
      return {StatusCode::kOption, "num_beams", "1 to 64", std::to_string(plan.beams)};
    }
    if (options.sampling.temperature != 0.0F) {
      return {StatusCode::kOption, "temperature", "0 with beams", "more"};
    }
    if (options.logits_processor || options.prompt_lookup_num_tokens != 0) {
      return {StatusCode::kOption,
              options.logits_processor ? "logits_processor" : "prompt_lookup_num_tokens",
              "none with beams", "one"};
    }
    const GenerationDefaults& defaults = model.info().generation;
    const float length_penalty = options.length_penalty.value_or(defaults.length_penalty);
    if (!std::isfinite(length_penalty)) {
      return {StatusCode::kOption, "length_penalty", "a finite number", "NaN or an infinity"};
    }
    MULTIHEAD_TRY(check_rules(plan.rules, model.info().vocab_size));
    auto state = std::make_unique<State>();
    state->beams = static_cast<size_t>(plan.beams);
    for (size_t at = 0; at < state->beams; ++at) {
      Session& session = state->sessions.emplace_back();
      MULTIHEAD_TRY(
          Session::Internals::create(model, plan.session, engine::team_of(context), session));
      if (!model.info().has_encoder) continue;
      if (at > 0) Session::Internals::share_source(state->sessions.front(), session);
      if (at == 0) MULTIHEAD_TRY(session.encode(prompt, options.source_edits, context));
    }
    state->rules = plan.rules;
    state->repetition_penalty = *plan.sampling.repetition_penalty;
    state->stops = plan.stops;
    state->length_penalty = static_cast<double>(length_penalty);
    state->early_stopping = options.early_stopping.value_or(defaults.early_stopping);
    state->begin = static_cast<int64_t>(plan.first.size());
    state->end = state->begin + plan.most;
    state->numbers.resize(static_cast<size_t>(model.info().vocab_size));
    state->running.push_back({{plan.first.begin(), plan.first.end()}, 0});
    search.state_ = std::move(state);
    return {};
  });
}

Status BeamSearch::step(bool& done, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (state_ == nullptr) {
      return {StatusCode::kOption, "search", "one that was created", "none"};
    }
    if (state_->end == state_->begin) {
      done = true;
      return {};
    }
    return state_->step(done, context);
  });
}

std::span<const int32_t> BeamSearch::ids() const {
  if (state_ == nullptr) return {};
  const State& s = *state_;
  const Beam& best = s.finished.empty() ? s.running.front() : s.finished.front();
  return std::span(best.ids).subspan(static_cast<size_t>(s.begin));
}

}  // namespace multihead::models
