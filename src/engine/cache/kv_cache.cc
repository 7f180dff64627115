#include "multihead/kv_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <utility>

#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/cache/cache_access.h"
#include "engine/cache/cached_rows.h"
#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "rules/arena.h"
#include "rules/integers.h"

namespace multihead {
namespace {

using Layout = KVCacheConfig::Layout;
using Type = KVCacheConfig::Type;

constexpr int64_t kMostExtent = std::numeric_limits<int32_t>::max();
// More bytes than any machine has; sizes saturate here.
constexpr int64_t kTooMuch = int64_t{1} << 61;

// Returns the product, or kTooMuch if it is larger. Factors must not be negative.
int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors) {
    if (factor == 0) return 0;
    result = result > kTooMuch / factor ? kTooMuch : result * factor;
  }
  return result;
}

Status validate(const KVCacheConfig& config) {
  MULTIHEAD_TRY(engine::validate_enumerator(Name::kLayout, config.layout, Layout::kPaged));
  MULTIHEAD_TRY(engine::validate_enumerator(Name::kType, config.type, Type::kInt8));
  const struct {
    Name name;
    int64_t value;
    int64_t least;
  } extents[] = {{Name::kBatch, config.batch, 1},
                 {Name::kNumKvHeads, config.num_kv_heads, 1},
                 {Name::kHeadDim, config.head_dim, 1},
                 {Name::kValueDim, config.value_dim, 1},
                 {Name::kCapacity, config.capacity, 1},
                 {Name::kPageSize, config.layout == Layout::kPaged ? config.page_size : 1, 1},
                 {Name::kPages, config.pages, 0}};
  for (const auto& [name, value, least] : extents) {
    if (value < least || value > kMostExtent) {
      return option_error(name, Message::kRange, least, kMostExtent, value);
    }
  }
  if (config.values_in_keys && config.value_dim > config.head_dim) {
    return option_error(Name::kValueDim, Message::kValueDimInKeys, config.head_dim,
                        config.value_dim);
  }
  return {};
}

}  // namespace

Status KVCache::create(const KVCacheConfig& config, KVCache& cache) {
  return Internals::create(config, nullptr, cache);
}

Status KVCache::Internals::create(const KVCacheConfig& config, const engine::Team* team,
                                  KVCache& cache) {
  // With a single key/value head, every member stores and computes it.
  if (team == nullptr || config.num_kv_heads <= 1) {
    return create(config, 0, config.num_kv_heads, cache);
  }
  return create(config, team->first_of(config.num_kv_heads), team->end_of(config.num_kv_heads),
                cache);
}

Status KVCache::Internals::create(const KVCacheConfig& config, int64_t first_head, int64_t end_head,
                                  KVCache& cache) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(validate(config));
    KVCache made;
    made.config_ = config;
    made.first_head_ = first_head;
    made.end_head_ = end_head;
    const bool paged = config.layout == Layout::kPaged;
    const int64_t page_table = paged ? product({config.batch, engine::pages_per_entry(config)}) : 0;
    if (paged && config.pages == 0) {
      // Page numbers have 32 bits.
      if (page_table > kMostExtent) return Status::out_of_memory();
      made.config_.pages = page_table;
    }
    const int64_t pages = paged ? made.config_.pages : 0;
    const int64_t heads = made.stored_heads();
    const int64_t rows = paged ? product({heads, pages, config.page_size})
                               : product({heads, config.batch, config.capacity});

    Parts& parts = made.parts_;
    const int64_t element = bytes_of(config.type);
    const bool has_scales = config.type == Type::kInt8;
    // Called twice: first for the size, then with the memory.
    const auto lay_out = [&](void* memory) {
      rules::Arena take(memory);
      const auto take_rows = [&](Store& store, int64_t width) {
        take(store.rows, static_cast<uint64_t>(product({rows, width * element})));
        if (has_scales) take(store.scales, static_cast<uint64_t>(rows));
      };
      take_rows(parts.keys, config.head_dim);
      if (!config.values_in_keys) take_rows(parts.values, config.value_dim);
      take(parts.lengths, static_cast<uint64_t>(config.batch));
      take(parts.firsts, static_cast<uint64_t>(config.batch));
      if (paged) {
        take(parts.page_table, static_cast<uint64_t>(page_table));
        take(parts.free_pages, static_cast<uint64_t>(pages));
      }
      return take;
    };
    const rules::Arena size = lay_out(nullptr);
    made.memory_.reset(engine::allocate(size.bytes()));
    if (made.memory_ == nullptr) return Status::out_of_memory(size.bytes());
    lay_out(made.memory_.get());
    made.bytes_ = static_cast<int64_t>(size.used());
    made.clear();
    cache = std::move(made);
    return {};
  });
}

Status KVCache::Internals::copy(const KVCache& cache, int64_t capacity, Layout layout,
                                KVCache& made) {
  KVCacheConfig config = cache.config_;
  config.capacity = capacity;
  config.layout = layout;
  KVCache other;
  MULTIHEAD_TRY(create(config, cache.first_head_, cache.end_head_, other));
  const auto copy = [&](const Store& from, const Store& to, int64_t width) {
    const int64_t row_bytes = width * bytes_of(config.type);
    for (int64_t i = 0; i < config.batch * cache.stored_heads(); ++i) {
      const int64_t count = std::min(capacity, cache.length(i / cache.stored_heads()));
      const int64_t first = i * cache.config_.capacity, target = i * capacity;
      std::copy_n(from.rows + first * row_bytes, count * row_bytes, to.rows + target * row_bytes);
      if (to.scales != nullptr) std::copy_n(from.scales + first, count, to.scales + target);
    }
  };
  copy(cache.parts_.keys, other.parts_.keys, config.head_dim);
  if (!config.values_in_keys) copy(cache.parts_.values, other.parts_.values, config.value_dim);
  std::copy_n(cache.parts_.lengths, config.batch, other.parts_.lengths);
  std::copy_n(cache.parts_.firsts, config.batch, other.parts_.firsts);
  made = std::move(other);
  return {};
}

void KVCache::Free::operator()(void* memory) const { engine::release(memory); }

void KVCache::swap(KVCache& other) noexcept {
  std::swap(config_, other.config_);
  std::swap(memory_, other.memory_);
  std::swap(parts_, other.parts_);
  std::swap(first_head_, other.first_head_);
  std::swap(end_head_, other.end_head_);
  std::swap(free_pages_, other.free_pages_);
  std::swap(bytes_, other.bytes_);
}

void KVCache::clear() {
  std::fill_n(parts_.lengths, config_.batch, 0);
  std::fill_n(parts_.firsts, config_.batch, 0);
  if (config_.layout != Layout::kPaged) return;
  std::fill_n(parts_.page_table, config_.batch * engine::pages_per_entry(config_), -1);
  // Pages are taken from the end of the list, so page 0 is first.
  free_pages_ = config_.pages;
  for (int64_t i = 0; i < free_pages_; ++i) {
    parts_.free_pages[i] = static_cast<int32_t>(free_pages_ - 1 - i);
  }
}

std::span<const int32_t> KVCache::page_table() const {
  if (parts_.page_table == nullptr) return {};
  return {parts_.page_table, static_cast<size_t>(config_.batch * engine::pages_per_entry(config_))};
}

Status KVCache::append(const ConstAnyTensor& k, const ConstAnyTensor& v,
                       std::span<const int32_t> counts, Context* context) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(engine::validate_rank(Name::kK, Axes::kCacheK, k, 4));
    const int64_t tokens = k.shape[2];
    const auto shape_of = [&](int64_t width) {
      return Dims{config_.batch, config_.num_kv_heads, tokens, width};
    };
    MULTIHEAD_TRY(engine::validate_exact(Name::kK, Axes::kCacheK, k, shape_of(config_.head_dim)));
    if (!config_.values_in_keys) {
      MULTIHEAD_TRY(
          engine::validate_exact(Name::kV, Axes::kCacheV, v, shape_of(config_.value_dim)));
    } else if (v.given()) {
      return option_error(Name::kV, Message::kValuesInKeys);
    }
    if (!counts.empty() && static_cast<int64_t>(counts.size()) != config_.batch) {
      return shape_error(Name::kCounts, Message::kValuePerBatchEntry, config_.batch,
                         static_cast<int64_t>(counts.size()));
    }
    const auto count_of = [&](int64_t b) {
      return counts.empty() ? tokens : int64_t{counts[static_cast<size_t>(b)]};
    };
    int64_t new_pages = 0;
    for (int64_t b = 0; b < config_.batch; ++b) {
      const int64_t count = count_of(b);
      if (count < 0 || count > tokens) {
        return option_error(Name::kCounts, Message::kCountRange, tokens, count);
      }
      const int64_t end = length(b) + count;
      const int64_t most = config_.layout == Layout::kRing ? kMostExtent : config_.capacity;
      if (end > most) {
        return option_error(Name::kK, Message::kCacheRoom, count, b, most, length(b));
      }
      if (config_.layout == Layout::kPaged) {
        const auto pages_of = [&](int64_t n) { return rules::ceil_div(n, config_.page_size); };
        new_pages += pages_of(end) - pages_of(length(b));
      }
    }
    if (new_pages > free_pages_) {
      return option_error(Name::kK, Message::kFreePages, new_pages, free_pages_);
    }

    for (int64_t b = 0; b < config_.batch; ++b) claim_pages(b, length(b) + count_of(b));
    const auto appended = [&](const ConstAnyTensor& from, const Store& store, int64_t width) {
      return engine::AppendedRows{from, {.rows = store.rows, .scales = store.scales}, width};
    };
    const engine::AppendedRows rows[] = {appended(k, parts_.keys, config_.head_dim),
                                         appended(v, parts_.values, config_.value_dim)};
    engine::append_rows({.config = config_,
                         .first_head = first_head_,
                         .end_head = end_head_,
                         .lengths = {parts_.lengths, static_cast<size_t>(config_.batch)},
                         .counts = counts,
                         .page_table = parts_.page_table,
                         .rows = std::span(rows).first(config_.values_in_keys ? 1 : 2)},
                        context);
    for (int64_t b = 0; b < config_.batch; ++b) {
      auto& length_of_entry = parts_.lengths[b];
      length_of_entry += static_cast<int32_t>(count_of(b));
      if (config_.layout == Layout::kRing) {
        auto& first = parts_.firsts[b];
        first = std::max(first, static_cast<int32_t>(length_of_entry - config_.capacity));
      }
    }
    return {};
  });
}

void KVCache::claim_pages(int64_t batch, int64_t end) {
  if (config_.layout != Layout::kPaged) return;
  int32_t* const pages = parts_.page_table + batch * engine::pages_per_entry(config_);
  for (int64_t page = length(batch) / config_.page_size; page * config_.page_size < end; ++page) {
    if (pages[page] < 0) pages[page] = parts_.free_pages[--free_pages_];
  }
}

Status KVCache::Internals::validate_ring(const KVCache& cache, Name argument, int64_t appended,
                                         int64_t queries, const Window& window) {
  const KVCacheConfig& config = cache.config();
  if (config.layout != Layout::kRing || window.left < 0 || queries == 0) return {};
  const int64_t left = std::min(window.left, kMostExtent), most = config.capacity - left;
  for (int64_t b = 0; b < config.batch; ++b) {
    const int64_t end = cache.length(b) + appended;
    const int64_t kept = std::max(cache.first_kept(b), end - config.capacity);
    const int64_t needed = std::max<int64_t>(0, end - queries - left);
    if (needed >= kept) continue;
    if (queries > most) {
      return option_error(argument, Message::kTokensInRing, std::max<int64_t>(0, most),
                          config.capacity, left, queries);
    }
    return option_error(argument, Message::kWindowInRing, kept, needed);
  }
  return {};
}

Status KVCache::attend(const ConstAnyTensor& q, const AttentionOptions& options,
                       const AttentionOutputs& outputs, Context& context) const {
  return engine::memory_guard([&]() -> Status {
    engine::CacheCall call;
    const std::span<const int32_t> lengths(parts_.lengths, static_cast<size_t>(config_.batch));
    const int64_t keys = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    MULTIHEAD_TRY(engine::make_cache_call(config_,
                                          {.keys = parts_.keys.rows,
                                           .values = values().rows,
                                           .key_scales = parts_.keys.scales,
                                           .value_scales = values().scales,
                                           .lengths = lengths,
                                           .firsts = parts_.firsts,
                                           .page_table = parts_.page_table},
                                          keys, q, options, outputs, engine::Values::kReadable,
                                          call));
    MULTIHEAD_TRY(Internals::validate_ring(*this, Name::kQ, 0, q.shape[2], options.window));
    MULTIHEAD_TRY(engine::validate_apart({q, {}, {}, options, outputs}));
    engine::ForwardPlan plan = engine::plan_forward(call.inputs, call.shape, call.options, outputs);
    if (stored_heads() == config_.num_kv_heads) return engine::run(plan, context);
    // The plan covers all heads, not just the stored ones, so that each head gets the same bits as
    // on a single instance.
    const auto stored = [&](const Store& store, int64_t width) {
      return engine::cached_rows(config_, first_head_, end_head_,
                                 {.rows = store.rows, .scales = store.scales}, parts_.page_table,
                                 width);
    };
    plan.params.k = stored(parts_.keys, config_.head_dim);
    plan.params.v = stored(values(), config_.values_in_keys ? config_.head_dim : config_.value_dim);
    plan.stored_heads = {first_head_, end_head_};
    return engine::run(plan, context);
  });
}

Status KVCache::truncate(int64_t batch, int64_t new_length) {
  return engine::memory_guard([&]() -> Status {
    if (!has_entry(batch)) {
      return option_error(Name::kBatch, Message::kRange, 0, config_.batch - 1, batch);
    }
    if (new_length < 0 || new_length > length(batch)) {
      return option_error(Name::kLength, Message::kRange, 0, length(batch), new_length);
    }
    if (config_.layout == Layout::kPaged) {
      const int64_t kept = rules::ceil_div(new_length, config_.page_size);
      const int64_t used = rules::ceil_div(length(batch), config_.page_size);
      for (int64_t page = used; page-- > kept;) {
        int32_t& number = parts_.page_table[batch * engine::pages_per_entry(config_) + page];
        parts_.free_pages[free_pages_++] = number;
        number = -1;
      }
    }
    parts_.lengths[batch] = static_cast<int32_t>(new_length);
    int32_t& first = parts_.firsts[batch];
    first = new_length == 0 ? 0 : std::min(first, parts_.lengths[batch]);
    return {};
  });
}

}  // namespace multihead
