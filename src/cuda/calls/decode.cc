// decode() on the device: check, plan, enqueue.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/calls/checks.h"
#include "cuda/calls/entry.h"
#include "cuda/plan/plan.h"
#include "cuda/runtime/runtime.h"
#include "engine/cache/cached_rows.h"
#include "engine/error/error.h"
#include "multihead/cuda.h"

namespace multihead::cuda {
namespace {

using Layout = KVCacheConfig::Layout;

Status wrong(const char* argument, const std::string& expected, int64_t got) {
  return {StatusCode::kOption, argument, expected, std::to_string(got)};
}

int64_t pages_of(const CacheView& cache) {
  const KVCacheConfig& config = cache.config;
  if (config.layout != Layout::kPaged) return 0;
  return config.pages != 0 ? config.pages : config.batch * engine::pages_per_entry(config);
}

// Checks the numbers of the view and the sizes of its arrays.
Status validate_view(const CacheView& cache) {
  const KVCacheConfig& config = cache.config;
  for (Status status : {engine::validate_enumerator(Name::kLayout, config.layout, Layout::kPaged),
                        engine::validate_enumerator(Name::kType, config.type, DType::kInt8)}) {
    if (!status.ok()) return status;
  }
  constexpr int64_t kMost = INT32_MAX;
  const struct {
    const char* argument;
    int64_t value, least;
  } extents[] = {{"batch", config.batch, 0},         {"num_kv_heads", config.num_kv_heads, 1},
                 {"head_dim", config.head_dim, 1},   {"value_dim", config.value_dim, 1},
                 {"capacity", config.capacity, 0},   {"max_length", cache.max_length, 0},
                 {"page_size", config.page_size, 1}, {"pages", config.pages, 0}};
  for (const auto& [argument, value, least] : extents) {
    if (value < least || value > kMost) {
      return wrong(argument, std::to_string(least) + " to " + std::to_string(kMost), value);
    }
  }
  if (config.layout != Layout::kRing && cache.max_length > config.capacity) {
    return wrong("max_length", "at most capacity = " + std::to_string(config.capacity),
                 cache.max_length);
  }
  if (config.layout == Layout::kRing && config.capacity == 0 && cache.max_length > 0) {
    return wrong("capacity", "1 or more in a ring", 0);
  }
  if (config.values_in_keys && config.value_dim > config.head_dim) {
    return wrong("value_dim", "at most head_dim = " + std::to_string(config.head_dim),
                 config.value_dim);
  }
  const bool paged = config.layout == Layout::kPaged;
  const struct {
    const char* argument;
    int64_t size, expected;
  } arrays[] = {
      {"lengths", static_cast<int64_t>(cache.lengths.size()), config.batch},
      {"firsts", static_cast<int64_t>(cache.firsts.size()), config.batch},
      {"page_table", static_cast<int64_t>(cache.page_table.size()),
       paged ? config.batch * engine::pages_per_entry(config) : 0},
  };
  for (const auto& [argument, size, expected] : arrays) {
    if (size != expected) return wrong(argument, std::to_string(expected) + " values", size);
  }
  if (config.type == DType::kInt8) {
    if (cache.key_scales == nullptr) return {StatusCode::kOption, "key_scales", "an array", "none"};
    if (cache.value_scales == nullptr && !config.values_in_keys) {
      return {StatusCode::kOption, "value_scales", "an array", "none"};
    }
  }
  return {};
}

struct Call {
  const ConstAnyTensor& q;
  const CacheView& cache;
  const AttentionOptions& options;
  const AttentionOutputs& outputs;
  mutable engine::CacheCall of_cache{};  // set by validate()

  // Runs all checks that need no address.
  Status validate(engine::AttentionShape& shape) const {
    MULTIHEAD_TRY(validate_view(cache));
    const KVCacheConfig& config = cache.config;
    const bool in_keys = config.values_in_keys, int8 = config.type == DType::kInt8;
    const auto* const keys = static_cast<const std::byte*>(cache.keys);
    const float* const key_scales = int8 ? cache.key_scales : nullptr;
    MULTIHEAD_TRY(engine::make_cache_call(
        config,
        {.keys = keys,
         .values = in_keys ? keys : static_cast<const std::byte*>(cache.values),
         .key_scales = key_scales,
         .value_scales = in_keys ? key_scales : (int8 ? cache.value_scales : nullptr),
         .lengths = cache.lengths,
         .firsts = cache.firsts.data(),
         .page_table = cache.page_table.data()},
        cache.max_length, q, options, outputs, engine::Values::kOnDevice, of_cache));
    shape = of_cache.shape;
    return validate_widths(shape);
  }

  CallPlan plan(const engine::AttentionShape& /*shape*/, const Device& device) const {
    return plan_cache(of_cache, outputs, pages_of(cache), device);
  }

  Status validate_memory_of_call() const {
    const bool reads_values = !cache.config.values_in_keys;
    const int64_t element = bytes_of(cache.config.type);
    const std::array addresses = {
        address_of("q", q),
        Address{"keys", cache.keys, element},
        Address{"values", reads_values ? cache.values : nullptr, element},
        Address{"key_scales", cache.key_scales, sizeof(float)},
        Address{"value_scales", cache.value_scales, sizeof(float)},
        address_of("lengths", cache.lengths),
        address_of("firsts", cache.firsts),
        address_of("page_table", cache.page_table),
    };
    MULTIHEAD_TRY(validate_addresses(addresses));
    MULTIHEAD_TRY(validate_option_addresses(options));
    return validate_output_addresses(outputs);
  }
};

}  // namespace

Status decode_workspace(const ConstAnyTensor& q, const CacheView& cache,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        uint64_t& bytes) {
  return workspace_of(Call{q, cache, options, outputs}, bytes);
}

Status decode(const ConstAnyTensor& q, const CacheView& cache, const AttentionOptions& options,
              const AttentionOutputs& outputs, const Workspace& workspace, Stream stream) {
  return run_call(Call{q, cache, options, outputs}, workspace, stream);
}

std::string explain_decode(const ConstAnyTensor& q, const CacheView& cache,
                           const AttentionOptions& options, const AttentionOutputs& outputs) {
  const Call call{q, cache, options, outputs};
  engine::AttentionShape shape;
  if (!call.validate(shape).ok()) return {};
  const Device device = device_to_explain();
  return explain(call.plan(shape, device), device);
}

}  // namespace multihead::cuda
