// Session: the next tokens of a causal model, with a KV cache for each layer; and generate().
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/cache_access.h"
#include "engine/error/error.h"
#include "engine/error/guard.h"
#include "engine/runtime/team.h"
#include "models/output.h"
#include "models/run.h"
#include "models/session.h"
#include "multihead/kv_cache.h"
#include "multihead/models.h"

namespace multihead::models {

struct Session::State {
  std::shared_ptr<const Model::Internals> model;
  std::vector<KVCache> caches;
  int64_t capacity = 0;
  // All tokens so far, for frequencies that change with the length.
  std::vector<int32_t> ids;

  int64_t length() const { return static_cast<int64_t>(ids.size()); }

  Status truncate(int64_t length) {
    for (KVCache& cache : caches)
      MULTIHEAD_TRY(cache.truncate(0, std::min(length, cache.length(0))));
    ids.resize(static_cast<size_t>(length));
    return {};
  }

  bool keeps_keys(int64_t after) const {
    const std::vector<RopeFrequencies>& ropes = model->architecture.ropes;
    return std::all_of(ropes.begin(), ropes.end(),
                       [&](const RopeFrequencies& rope) { return rope.same(length(), after); });
  }

  Status append(std::span<const int32_t> next, const Tensor& logits, Context& context) {
    Pass pass{.inputs = {.ids = next}, .caches = caches, .end_layer = model->info.num_layers};
    MULTIHEAD_TRY(check_inputs(*model, pass));
    const int64_t before = length(), after = before + pass.tokens;
    if (after > capacity) {
      return {StatusCode::kOption, "ids",
              "at most " + std::to_string(capacity - before) + " more tokens in a session of " +
                  std::to_string(capacity),
              std::to_string(pass.tokens)};
    }
    const Dims shape{model->info.vocab_size};
    if (logits.given() && (!(logits.shape == shape) || logits.strides[0] != 1)) {
      return {StatusCode::kShape, "logits", shape.to_string(), logits.shape.to_string()};
    }
    const bool again = before > 0 && !keeps_keys(after);
    ids.insert(ids.end(), next.begin(), next.end());
    if (again) {
      // LongRoPE beyond its original length: all keys are rotated by other angles.
      for (KVCache& cache : caches) cache.clear();
      pass.inputs.ids = ids;
      pass.tokens = after;
    }
    Tensor state;
    Status status = run_layers(*model, pass, true, state, context);
    if (status.ok() && logits.given()) {
      status = compute_logits(*model, state, {logits.data, {1, shape[0]}}, context);
    }
    if (!status.ok()) MULTIHEAD_TRY(truncate(again ? 0 : before));
    return status;
  }
};

Session::Session() = default;
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Status Session::create(const Model& model, const SessionOptions& options, Session& session) {
  return Internals::create(model, options, nullptr, session);
}

Status Session::Internals::create(const Model& model, const SessionOptions& options,
                                  const engine::Team* team, Session& session) {
  return engine::memory_guard([&]() -> Status {
    if (model.internals_ == nullptr) {
      return {StatusCode::kOption, "model", "one that was opened", "none"};
    }
    const ModelInfo& info = model.info();
    if (info.output != Output::kLanguageModel || !info.causal) {
      return {StatusCode::kOption, "model", "a causal language model",
              info.model_type + " without one"};
    }
    auto state = std::make_unique<State>();
    state->model = model.internals_;
    state->capacity = options.capacity;
    if (options.capacity == 0) {
      constexpr int64_t kDefault = 1024;
      state->capacity = info.max_tokens > 0 ? std::min(kDefault, info.max_tokens) : kDefault;
    }
    if (state->capacity < 1 || (info.max_tokens > 0 && state->capacity > info.max_tokens)) {
      return {StatusCode::kOption, "capacity",
              info.max_tokens > 0 ? "1 to " + std::to_string(info.max_tokens) : "1 or more",
              std::to_string(options.capacity)};
    }
    state->ids.reserve(static_cast<size_t>(state->capacity));
    for (int64_t layer = 0; layer < info.num_layers; ++layer) {
      MULTIHEAD_TRY(KVCache::Internals::create({.num_kv_heads = info.num_kv_heads,
                                                .head_dim = info.head_dim,
                                                .value_dim = info.head_dim,
                                                .capacity = state->capacity,
                                                .type = options.cache_type},
                                               team, state->caches.emplace_back()));
    }
    session.state_ = std::move(state);
    return {};
  });
}

Status Session::append(std::span<const int32_t> ids, const Tensor& logits, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (state_ == nullptr) {
      return {StatusCode::kOption, "session", "one that was created", "none"};
    }
    return state_->append(ids, logits, context);
  });
}

int64_t Session::length() const { return state_ == nullptr ? 0 : state_->length(); }

int64_t Session::capacity() const { return state_ == nullptr ? 0 : state_->capacity; }

int64_t Session::bytes() const {
  int64_t sum = 0;
  if (state_ != nullptr) {
    for (const KVCache& cache : state_->caches) sum += cache.bytes();
  }
  return sum;
}

Status Session::truncate(int64_t length) {
  return engine::memory_guard([&]() -> Status {
    if (length < 0 || length > this->length()) {
      return {StatusCode::kOption, "length", "0 to " + std::to_string(this->length()),
              std::to_string(length)};
    }
    // Keys that were rotated for a longer sequence are computed again.
    if (state_ == nullptr) return {};
    if (length > 0 && !state_->keeps_keys(length)) {
      std::vector<int32_t> kept(state_->ids.begin(), state_->ids.begin() + length);
      MULTIHEAD_TRY(state_->truncate(0));
      Context context(1);
      return state_->append(kept, {}, context);
    }
    return state_->truncate(length);
  });
}

Status generate(const Model& model, std::span<const int32_t> prompt, const GenerateOptions& options,
                const std::function<bool(int32_t token)>& on_token, Context& context) {
  return engine::memory_guard([&]() -> Status {
    const auto given = static_cast<int64_t>(prompt.size());
    if (given == 0) return {StatusCode::kOption, "prompt", "1 token or more", "none"};
    if (options.max_new_tokens < 0) {
      return {StatusCode::kOption, "max_new_tokens", "0 or more",
              std::to_string(options.max_new_tokens)};
    }
    const ModelInfo& info = model.info();
    int64_t most = given + options.max_new_tokens;
    if (info.max_tokens > 0) most = std::min(most, info.max_tokens);
    if (given > most) {
      return {StatusCode::kOption, "prompt", "at most " + std::to_string(most) + " tokens",
              std::to_string(given)};
    }
    Session session;
    MULTIHEAD_TRY(
        Session::create(model, {.capacity = most, .cache_type = options.cache_type}, session));
    const std::vector<int32_t>& stops = options.stop_ids ? *options.stop_ids : info.end_ids;
    std::vector<float> numbers(static_cast<size_t>(info.vocab_size));
    const Tensor logits(numbers.data(), {info.vocab_size});
    std::vector<int32_t> all(prompt.begin(), prompt.end());
    all.reserve(static_cast<size_t>(most) + 1);
    Sampler sampler(options.sampling);
    std::span<const int32_t> next = prompt;
    // The last token is given out, but needs no place in the session.
    const int64_t end =
        std::min(given + options.max_new_tokens,
                 info.max_tokens > 0 ? info.max_tokens + 1 : given + options.max_new_tokens);
    while (static_cast<int64_t>(all.size()) < end) {
      MULTIHEAD_TRY(session.append(next, logits, context));
      int32_t token = 0;
      MULTIHEAD_TRY(sampler.choose(logits, all, token));
      all.push_back(token);
      next = {&all.back(), 1};
      if (on_token && !on_token(token)) break;
      if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
    }
    return {};
  });
}

}  // namespace multihead::models
