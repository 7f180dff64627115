// Session: the next tokens of a causal model, with a KV cache for each layer; and generate().
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/cache_access.h"
#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "models/output.h"
#include "models/run.h"
#include "models/session.h"
#include "models/source.h"
#include "multihead/kv_cache.h"
#include "multihead/models.h"
#include "nn/graph/probe.h"

namespace multihead::models {

namespace {

// Room of new caches, in tokens.
constexpr int64_t kFirstRoom = 64;

// A ring takes this many tokens at a time, or as many as the window if that is less: see
// attend_cached() of nn/graph/forward.cc.
constexpr int64_t kMostOfRing = 128;

constexpr int32_t kOneToken[] = {0};

// True if the CPU computes all tokens in each call.
bool changes_weights(std::span<const Edit> edits) {
  return std::any_of(edits.begin(), edits.end(), [](const Edit& edit) {
    return nn::kWeighting.has(edit.site) || nn::kCrossWeighting.has(edit.site);
  });
}

// The capacity that was asked for, or the default one.
Status check_capacity(const ModelInfo& info, int64_t asked, int64_t& capacity) {
  constexpr int64_t kDefault = 1024;
  capacity = asked;
  if (asked == 0) capacity = info.max_tokens > 0 ? std::min(kDefault, info.max_tokens) : kDefault;
  if (capacity >= 1 && (info.max_tokens == 0 || capacity <= info.max_tokens)) return {};
  return {StatusCode::kOption, "capacity",
          info.max_tokens > 0 ? "1 to " + std::to_string(info.max_tokens) : "1 or more",
          std::to_string(asked)};
}

// Tokens of the ring of a layer that sees `window` tokens.
int64_t ring_capacity(int64_t window) { return window - 1 + std::min(window, kMostOfRing); }

// Calls `work` of a session that was created.
template <class State, class Work>
Status guarded(const State& state, const Work& work) {
  if (state == nullptr) return {StatusCode::kOption, "session", "one that was created", "none"};
  return engine::memory_guard(work);
}

}  // namespace

struct Session::State {
  std::shared_ptr<const Model::Internals> model;
  std::vector<float> head_scales;
  std::vector<Edit> edits;
  int64_t capacity = 0;
  // All tokens so far. The caches have the keys and values of the first ones: of all, but after
  // truncate() or a call that failed perhaps of none. On the CPU there are no caches if scores or
  // weights are edited.
  engine::Buffer ids;
  int64_t length = 0;
  std::vector<KVCache> caches;
  // Of an encoder–decoder model: the encoder's output, and the keys and values of each layer's
  // cross-attention, which the first pass computes. Sessions may share them.
  struct Encoded {
    engine::Buffer memory;
    std::vector<KVCache> caches;
    PassSource source;
  };
  std::shared_ptr<Encoded> encoded;
  DType cache_type = DType::kF32;
  int64_t rotated_for = 0;  // length of the sequence whose frequencies rotated the keys
  bool forked = false;      // nothing was appended since fork()
  Internals::Elsewhere elsewhere;

  const int32_t* first_id() const { return static_cast<const int32_t*>(ids.data()); }
  int64_t cached() const { return caches.empty() ? 0 : caches[0].length(0); }
  int64_t window(size_t layer) const { return model->architecture.layers[layer].window; }

  // Most tokens of a layer's cache.
  int64_t most_room(size_t layer) const {
    return window(layer) > 0 ? std::min(capacity, ring_capacity(window(layer))) : capacity;
  }

  // Keeps the keys and values of the first `tokens` tokens, or of none if a ring has lost keys that
  // the next token sees.
  void keep_cached(int64_t tokens) {
    bool lost = false;
    for (size_t layer = 0; layer < caches.size(); ++layer) {
      const int64_t first = caches[layer].first_kept(0);
      lost = lost || (first > 0 && first > tokens - (window(layer) - 1));
    }
    for (KVCache& cache : caches) {
      // Cannot fail: the length is not more than the cache's.
      static_cast<void>(cache.truncate(0, lost ? 0 : std::min(tokens, cache.length(0))));
    }
  }

  bool same_angles(int64_t a, int64_t b, bool dynamic = false) const {
    const std::vector<RopeFrequencies>& ropes = model->architecture.ropes;
    return std::all_of(ropes.begin(), ropes.end(), [&](const RopeFrequencies& rope) {
      return rope.same(a, b) || (dynamic && rope.dynamic());
    });
  }

  // Dynamic scaling changes with every token, and transformers keeps the keys as they are. What
  // follows a fork is one pass with all that it has.
  bool keeps_keys(int64_t after) const { return same_angles(rotated_for, after, !forked); }

  // Writes `next` behind the ids, and does not count them yet. They may be some of the ids.
  Status write_ids(std::span<const int32_t> next) {
    const auto before = static_cast<size_t>(length), after = before + next.size();
    engine::Buffer larger;
    const bool grows = after * sizeof(int32_t) > ids.bytes();
    const size_t bytes = std::max(after * sizeof(int32_t), 2 * ids.bytes());
    if (grows && !larger.reserve(bytes)) return Status::out_of_memory(bytes);
    auto* const to = static_cast<int32_t*>(grows ? larger.data() : ids.data());
    if (grows) std::copy_n(first_id(), before, to);
    std::copy(next.begin(), next.end(), to + before);
    if (grows) ids = std::move(larger);
    return {};
  }

  // Makes room for `tokens` tokens. The caches double, so that few tokens pay for it.
  Status reserve(int64_t tokens) {
    for (size_t layer = 0; layer < caches.size(); ++layer) {
      KVCache& cache = caches[layer];
      const int64_t room = cache.config().capacity;
      if (tokens <= room || cache.config().layout == KVCacheConfig::Layout::kRing) continue;
      const int64_t most = most_room(layer);
      if (tokens > most) {
        MULTIHEAD_TRY(KVCache::Internals::copy(cache, most, KVCacheConfig::Layout::kRing, cache));
        continue;
      }
      const auto resize = [&](int64_t to) {
        return KVCache::Internals::copy(cache, to, KVCacheConfig::Layout::kContiguous, cache);
      };
      const int64_t doubled = std::min(most, std::max(tokens, 2 * room));
      if (!resize(doubled).ok()) MULTIHEAD_TRY(resize(tokens));
    }
    return {};
  }

  // The pass that brings the caches to `after` tokens, for the output of the last one or of all.
  Pass pass_to(int64_t after, bool all = false) {
    const int64_t tokens = after - cached();
    return {.inputs = {.ids = {first_id() + cached(), static_cast<size_t>(tokens)},
                       .head_scales = head_scales,
                       .edits = edits},
            .tokens = tokens,
            .caches = caches,
            .source = encoded == nullptr ? PassSource() : encoded->source,
            .in_session = true,
            .end_layer = model->info.num_layers,
            .only_token = all ? -1 : tokens - 1};
  }

  Status run(int64_t after, const Tensor& logits, Context& context) {
    const int64_t before = cached();
    if (elsewhere.compute) return elsewhere.compute(pass_to(after));
    MULTIHEAD_TRY(reserve(after));
    Tensor state;
    const bool all = logits.given() && logits.shape.rank() == 2;
    MULTIHEAD_TRY(run_layers(*model, pass_to(after, all), state, context));
    if (!logits.given()) return {};
    const int64_t rows = all ? logits.shape[0] : 1, width = state.shape[1];
    const ConstTensor last(state.data + (state.shape[0] - rows) * width, {rows, width});
    MULTIHEAD_TRY(
        compute_logits(*model, last, {logits.data, {rows, model->info.vocab_size}}, context));
    if (all_finite(logits, context)) return {};
    keep_cached(before);
    return not_finite(*model, pass_to(after), "logits", context);
  }

  Status encode(std::span<const int32_t> ids_of_source, std::span<const Edit> of_source,
                Context& context) {
    length = 0;
    keep_cached(0);
    encoded = nullptr;
    auto made = std::make_shared<Encoded>();
    Pass pass{.inputs = {.source = ids_of_source, .source_edits = of_source}};
    MULTIHEAD_TRY(check_source(*model, pass));
    if (model->encoder == nullptr) {
      return {StatusCode::kOption, "model", "one with an encoder", model->info.model_type};
    }
    MULTIHEAD_TRY(run_encoder(*model, pass, made->memory, context));
    made->caches.resize(caches.size());
    for (KVCache& cache : made->caches) {
      MULTIHEAD_TRY(KVCache::Internals::create({.num_kv_heads = model->info.num_kv_heads,
                                                .head_dim = model->info.head_dim,
                                                .value_dim = model->info.head_dim,
                                                .capacity = pass.source.tokens,
                                                .type = cache_type},
                                               engine::team_of(context), cache));
    }
    made->source = pass.source;
    made->source.caches = made->caches;
    encoded = std::move(made);
    return {};
  }

  // A session that begins with the first `tokens` tokens of this one.
  Status fork(int64_t tokens, int64_t most, std::unique_ptr<State>& made) const {
    if (tokens < 0 || tokens > length) {
      return {StatusCode::kOption, "length", "0 to " + std::to_string(length),
              std::to_string(tokens)};
    }
    if (elsewhere.compute) {
      return {StatusCode::kOption, "session", "one that the CPU computes", "one on a GPU"};
    }
    auto other = std::make_unique<State>();
    other->model = model;
    other->head_scales = head_scales;
    other->edits = edits;
    MULTIHEAD_TRY(check_capacity(model->info, most == 0 ? capacity : most, other->capacity));
    if (tokens > other->capacity) {
      return {StatusCode::kOption, "capacity", std::to_string(tokens) + " or more",
              std::to_string(most)};
    }
    if (tokens > 0) MULTIHEAD_TRY(other->write_ids({first_id(), static_cast<size_t>(tokens)}));
    other->length = tokens;
    other->encoded = encoded;
    other->cache_type = cache_type;
    other->rotated_for = rotated_for;
    other->forked = true;
    other->caches.resize(caches.size());
    for (size_t layer = 0; layer < caches.size(); ++layer) {
      const KVCacheConfig& config = caches[layer].config();
      const bool is_ring = config.layout == KVCacheConfig::Layout::kRing;
      const int64_t room = std::min(other->most_room(layer), tokens + kFirstRoom);
      MULTIHEAD_TRY(KVCache::Internals::copy(caches[layer], is_ring ? config.capacity : room,
                                             config.layout, other->caches[layer]));
    }
    other->keep_cached(tokens);
    made = std::move(other);
    return {};
  }

  // True if the next token can be in one pass with the next token of `other`.
  bool goes_with(const State& other) const {
    return model == other.model && model->encoder == nullptr && model->architecture.buckets == 0 &&
           edits.empty() && other.edits.empty() && head_scales == other.head_scales &&
           !elsewhere.compute && !other.elsewhere.compute && cached() > 0 && cached() == length &&
           !forked && keeps_keys(length + 1);
  }

  // One pass over the next token of each; `logits` (texts, vocabulary). After an error, or if the
  // logits are not finite, the lengths are as before.
  static Status step(std::span<State* const> texts, std::span<const int32_t> ids,
                     const Tensor& logits, bool& finite, Context& context) {
    const State& first = *texts.front();
    std::vector<std::span<KVCache>> caches;
    for (size_t at = 0; at < texts.size(); ++at) {
      MULTIHEAD_TRY(texts[at]->write_ids(ids.subspan(at, 1)));
      MULTIHEAD_TRY(texts[at]->reserve(texts[at]->length + 1));
      caches.emplace_back(texts[at]->caches);
    }
    const Pass pass{.inputs = {.ids = ids, .head_scales = first.head_scales},
                    .tokens = static_cast<int64_t>(ids.size()),
                    .caches = caches.front(),
                    .texts = caches,
                    .in_session = true,
                    .end_layer = first.model->info.num_layers};
    Tensor state;
    Status status = run_layers(*first.model, pass, state, context);
    if (status.ok()) status = compute_logits(*first.model, state, logits, context);
    finite = status.ok() && all_finite(logits, context);
    for (State* const text : texts) {
      if (finite)
        text->rotated_for = ++text->length;
      else
        text->keep_cached(text->length);
    }
    return status;
  }

  Status append(std::span<const int32_t> next, const Tensor& logits, Context& context) {
    Pass pass{.inputs = {.ids = next}, .caches = caches};
    MULTIHEAD_TRY(check_inputs(*model, pass));
    if (model->encoder != nullptr && encoded == nullptr) {
      return {StatusCode::kOption, "session", "a source: encode() comes first", "none"};
    }
    if (pass.tokens > capacity - length) {
      return {StatusCode::kOption, "ids",
              "at most " + std::to_string(capacity - length) + " more tokens in a session of " +
                  std::to_string(capacity),
              std::to_string(pass.tokens)};
    }
    const bool of_each = logits.shape.rank() == 2;
    const Dims shape =
        of_each ? Dims{pass.tokens, model->info.vocab_size} : Dims{model->info.vocab_size};
    if (logits.given() && logits.data == nullptr) {
      return {StatusCode::kShape, "logits", shape.to_string(), "a null pointer"};
    }
    if (logits.given() &&
        (!(logits.shape == shape) || !(logits.strides == contiguous_strides(shape)))) {
      return {StatusCode::kShape, "logits", shape.to_string(), logits.shape.to_string()};
    }
    const int64_t after = length + pass.tokens;
    if (of_each && !same_angles(length + 1, after)) {
      return append_each({next.begin(), next.end()}, logits, context);
    }
    MULTIHEAD_TRY(write_ids(next));
    // LongRoPE beyond its original length, or back: all keys are rotated by other angles.
    if (cached() > 0 && !keeps_keys(after)) keep_cached(0);
    const int64_t before = cached();
    Status status = engine::memory_guard([&] { return run(after, logits, context); });
    if (!status.ok()) {
      keep_cached(before);
      return status;
    }
    length = rotated_for = after;
    forked = false;
    return {};
  }

  // Tokens whose angles differ, one after the other.
  Status append_each(const std::vector<int32_t>& next, const Tensor& logits, Context& context) {
    const int64_t before = length, width = logits.shape[1];
    for (size_t at = 0; at < next.size(); ++at) {
      const Tensor row(logits.data + static_cast<int64_t>(at) * width, {width});
      const Status status = append({&next[at], 1}, row, context);
      if (!status.ok()) keep_cached(length = before);
      MULTIHEAD_TRY(status);
    }
    return {};
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
                                  const engine::Team* team, Session& session,
                                  const Elsewhere& elsewhere) {
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
    MULTIHEAD_TRY(check_capacity(info, options.capacity, state->capacity));
    Pass pass{
        .inputs = {.ids = kOneToken, .head_scales = options.head_scales, .edits = options.edits},
        .source = {.tokens = 1},
        .in_session = true};
    MULTIHEAD_TRY(check_inputs(*model.internals_, pass));
    state->head_scales = options.head_scales;
    state->edits = options.edits;
    state->cache_type = options.cache_type;
    state->elsewhere = elsewhere;
    const bool caches = elsewhere.compute != nullptr || !changes_weights(options.edits);
    const auto layers = caches ? static_cast<size_t>(info.num_layers) : size_t{0};
    state->caches.resize(layers);
    for (size_t layer = 0; layer < layers; ++layer) {
      KVCacheConfig config{.num_kv_heads = info.num_kv_heads,
                           .head_dim = info.head_dim,
                           .value_dim = info.head_dim,
                           .capacity = std::min(kFirstRoom, state->most_room(layer)),
                           .type = options.cache_type};
      KVCache& cache = state->caches[layer];
      if (elsewhere.compute) {
        config.capacity = state->capacity;
        MULTIHEAD_TRY(elsewhere.make_cache(config, cache));
      } else {
        MULTIHEAD_TRY(KVCache::Internals::create(config, team, cache));
      }
    }
    session.state_ = std::move(state);
    return {};
  });
}

void Session::Internals::share_source(const Session& from, Session& to) {
  to.state_->encoded = from.state_->encoded;
}

Status Session::encode(std::span<const int32_t> source, std::span<const Edit> edits,
                       Context& context) {
  return guarded(state_, [&] { return state_->encode(source, edits, context); });
}

Status Session::append(std::span<const int32_t> ids, const Tensor& logits, Context& context) {
  return guarded(state_, [&] { return state_->append(ids, logits, context); });
}

Status Session::step(std::span<Session* const> sessions, std::span<const int32_t> ids,
                     const Tensor& logits, Context& context) {
  return engine::memory_guard([&]() -> Status {
    const auto count = static_cast<int64_t>(sessions.size());
    std::vector<State*> texts;
    bool together = true;
    for (Session* const session : sessions) {
      State* const text = session == nullptr ? nullptr : session->state_.get();
      const bool is_new = std::find(texts.begin(), texts.end(), text) == texts.end();
      if (text == nullptr || !is_new) {
        return {StatusCode::kOption, "sessions", "different ones that were created",
                text == nullptr ? "none" : "one twice"};
      }
      texts.push_back(text);
      together = together && text->goes_with(*texts.front()) && text->length < text->capacity;
    }
    if (count == 0 || ids.size() != sessions.size()) {
      return {StatusCode::kShape, "ids", "a token for each of 1 or more sessions",
              std::to_string(ids.size())};
    }
    const Dims shape{count, texts.front()->model->info.vocab_size};
    if (logits.data == nullptr || !(logits.shape == shape) ||
        !(logits.strides == contiguous_strides(shape))) {
      return {StatusCode::kShape, "logits", shape.to_string(), logits.shape.to_string()};
    }
    Pass pass{.inputs = {.ids = ids}};
    MULTIHEAD_TRY(check_inputs(*texts.front()->model, pass));
    bool finite = false;
    if (together && count > 1) {
      MULTIHEAD_TRY(State::step(texts, ids, logits, finite, context));
      if (finite) return {};
    }
    // One after the other. This also says which layer's output is not finite.
    for (size_t at = 0; at < texts.size(); ++at) {
      const Tensor row(logits.data + static_cast<int64_t>(at) * shape[1], {shape[1]});
      const Status status = texts[at]->append(ids.subspan(at, 1), row, context);
      if (status.ok()) continue;
      for (size_t done = 0; done < at; ++done) texts[done]->keep_cached(--texts[done]->length);
      return status;
    }
    return {};
  });
}

int64_t Session::length() const { return state_ == nullptr ? 0 : state_->length; }

std::span<const int32_t> Session::ids() const {
  if (state_ == nullptr) return {};
  return {state_->first_id(), static_cast<size_t>(state_->length)};
}

int64_t Session::capacity() const { return state_ == nullptr ? 0 : state_->capacity; }

int64_t Session::bytes() const {
  int64_t sum = 0;
  if (state_ != nullptr) {
    for (const KVCache& cache : state_->caches) sum += cache.bytes();
    if (state_->encoded != nullptr) {
      for (const KVCache& cache : state_->encoded->caches) sum += cache.bytes();
    }
  }
  return sum;
}

Status Session::fork(int64_t length, int64_t capacity, Session& other) const {
  return guarded(state_, [&] { return state_->fork(length, capacity, other.state_); });
}

Status Session::truncate(int64_t length) {
  return engine::memory_guard([&]() -> Status {
    if (length < 0 || length > this->length()) {
      return {StatusCode::kOption, "length", "0 to " + std::to_string(this->length()),
              std::to_string(length)};
    }
    if (state_ == nullptr) return {};
    state_->keep_cached(length);
    state_->length = length;
    return {};
  });
}

}  // namespace multihead::models
