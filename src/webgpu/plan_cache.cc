#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/attention/plan.h"
#include "engine/cache/cache_access.h"
#include "engine/cache/cached_rows.h"
#include "engine/error/error.h"
#include "rules/attention_params.h"
#include "webgpu/params.h"
#include "webgpu/plan_attention.h"
#include "webgpu/planner.h"

namespace multihead::webgpu {

Status create_cache(const KVCacheConfig& config, KVCache& cache) {
  if (config.type == DType::kInt8) {
    return {StatusCode::kOption, "type", "f32, f16 or bf16 on a GPU: caches of int8 are the CPU's",
            "int8"};
  }
  return KVCache::Internals::create(config, 0, 0, cache);
}

namespace {

const std::byte* address_of(uint32_t operand) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(operand));
}

// Rows of a cache in memory, for bindings: pages have no batch axis.
Extents stored_extents(const KVCacheConfig& config, int64_t width) {
  if (config.layout == KVCacheConfig::Layout::kPaged) {
    return {1, config.num_kv_heads, config.pages * config.page_size, width};
  }
  return {config.batch, config.num_kv_heads, config.capacity, width};
}

// The row that each of the tokens takes: kNone for those that the entry does not take, or that
// later ones of the same call overwrite.
std::vector<uint32_t> targets_of(const KVCache& cache, std::span<const int32_t> counts,
                                 int64_t tokens) {
  const KVCacheConfig& config = cache.config();
  std::vector<uint32_t> targets;
  for (int64_t b = 0; b < config.batch; ++b) {
    const int64_t count = counts.empty() ? tokens : counts[static_cast<size_t>(b)];
    for (int64_t token = 0; token < tokens; ++token) {
      int64_t row = cache.length(b) - count + token;
      const bool lost = token >= count || row < cache.first_kept(b);
      if (config.layout == KVCacheConfig::Layout::kRing) row %= config.capacity;
      if (config.layout == KVCacheConfig::Layout::kPaged && !lost) {
        const int64_t entry_pages = engine::pages_per_entry(config);
        const auto page = static_cast<size_t>(b * entry_pages + row / config.page_size);
        row = cache.page_table()[page] * config.page_size + row % config.page_size;
      }
      targets.push_back(lost ? kNone : static_cast<uint32_t>(row));
    }
  }
  return targets;
}

}  // namespace

Status plan_append(KVCache& cache, const CacheOperands& rows, const ConstAnyTensor& k,
                   const ConstAnyTensor& v, std::span<const int32_t> counts, Planner& to) {
  const KVCacheConfig& config = cache.config();
  const int64_t tokens = k.shape.rank() == 4 ? std::max<int64_t>(0, k.shape[2]) : 0;
  Extents e{config.batch, config.num_kv_heads, tokens, config.head_dim};
  const auto bind = [&](const char* name, const ConstAnyTensor& from, uint32_t operand) {
    const rules::StoredRows rows_of = engine::stored_rows(from);
    const rules::StoredRows place =
        engine::cached_rows(config, address_of(operand), nullptr, nullptr, e[3]);
    return Planner::Move{
        to.rows(name, rows_of.data, rows_of.type, rows_of.stride, e),
        to.rows(name, place.data, place.type, place.stride, stored_extents(config, e[3]))};
  };
  const Planner::Move keys = bind("k", k, rows.keys);
  e[3] = v.given() ? config.value_dim : 0;
  const Planner::Move values = bind("v", v, rows.values);
  // The cache has no heads, so this checks and counts only; no tokens, if the GPU refuses them.
  const std::vector<int32_t> none(static_cast<size_t>(config.batch));
  MULTIHEAD_TRY(cache.append(k, v, to.ok() ? counts : none));
  if (tokens == 0 || !to.ok()) return to.status();
  RowsBlock block = as_they_are();
  block.targets = to.put(targets_of(cache, counts, tokens));
  block.width2 = word(e[3]);
  e[3] = config.head_dim;
  to.move_rows(keys, e, block, block.width2 > 0 ? &values : nullptr);
  return to.status();
}

Status plan_attend(const KVCache& cache, const CacheOperands& rows, const ConstAnyTensor& q,
                   const AttentionOptions& options, const AttentionOutputs& outputs, Planner& to) {
  const KVCacheConfig& config = cache.config();
  std::vector<int32_t> lengths, firsts;
  for (int64_t b = 0; b < config.batch; ++b) {
    lengths.push_back(static_cast<int32_t>(cache.length(b)));
    firsts.push_back(static_cast<int32_t>(cache.first_kept(b)));
  }
  const int64_t keys = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const uint32_t values = config.values_in_keys ? rows.keys : rows.values;
  engine::CacheCall call;
  MULTIHEAD_TRY(engine::make_cache_call(config,
                                        {.keys = address_of(rows.keys),
                                         .values = address_of(values),
                                         .lengths = lengths,
                                         .firsts = firsts.data(),
                                         .page_table = cache.page_table().data()},
                                        keys, q, options, outputs, engine::Values::kReadable,
                                        call));
  MULTIHEAD_TRY(KVCache::Internals::validate_ring(cache, Name::kQ, 0, q.shape[2], options.window));
  const Problem problem{
      .params = engine::attention_params(call.inputs, call.shape, call.options, outputs),
      .options = call.options,
      .q = extents_of(call.shape, true),
      .k = stored_extents(config, config.head_dim)};
  return plan_problem(problem, to);
}

}  // namespace multihead::webgpu
