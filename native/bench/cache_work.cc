// Benchmarks of a KVCache: one decode step over it, and appending tokens.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "inputs.h"
#include "multihead/kv_cache.h"
#include "oracle_error.h"
#include "work.h"

namespace multihead::bench {
namespace {

KVCacheConfig::Type type_of(std::string_view dtype) {
  using Type = KVCacheConfig::Type;
  return dtype == "int8"   ? Type::kInt8
         : dtype == "f16"  ? Type::kF16
         : dtype == "bf16" ? Type::kBF16
                           : Type::kF32;
}

// Rounds like the cache: each row has one scale, its largest magnitude / 127.
void round_to_int8(std::vector<float>& values, int64_t width) {
  for (auto row = values.begin(); row != values.end(); row += width) {
    float largest = 0;
    for (auto x = row; x != row + width; ++x) largest = std::max(largest, std::abs(*x));
    const float factor = largest / 127.0F;
    if (factor == 0) continue;
    for (auto x = row; x != row + width; ++x) *x = std::nearbyint(*x / factor) * factor;
  }
}

class CacheWork : public Work {
 public:
  explicit CacheWork(const Case& which)
      : shape_(which.shape),
        q_shape_{shape_.batch, shape_.heads, 1, shape_.width},
        k_shape_{shape_.batch, shape_.kv_heads, shape_.keys, shape_.width},
        q_(random_floats(q_shape_.elements(), kQuerySeed)),
        k_(k_shape_.elements(), kKeySeed, dtype_of(which.dtype)),
        v_(k_shape_.elements(), kValueSeed, dtype_of(which.dtype)),
        out_(q_.size()) {
    const KVCacheConfig config{.batch = shape_.batch,
                               .num_kv_heads = shape_.kv_heads,
                               .head_dim = shape_.width,
                               .value_dim = shape_.width,
                               .capacity = shape_.keys,
                               .type = type_of(which.dtype)};
    require(KVCache::create(config, cache_));
    const Dims strides = contiguous_strides(k_shape_);
    require(cache_.append(k_.view(k_shape_, strides), v_.view(k_shape_, strides)));
    if (config.type == KVCacheConfig::Type::kInt8) {
      round_to_int8(k_.floats, shape_.width);
      round_to_int8(v_.floats, shape_.width);
    }
  }

  Status run(Context& context) override {
    return cache_.attend({q_.data(), q_shape_}, {}, {.out = Tensor{out_.data(), q_shape_}},
                         context);
  }

  std::span<const float> output() const override { return out_; }

  double operations() const override {
    return 4.0 * static_cast<double>(shape_.batch * shape_.heads * shape_.width * shape_.keys);
  }

  // A step reads the whole cache, including the scales.
  double bytes() const override { return static_cast<double>(cache_.bytes()); }

  double error() const override { return error_of(out_); }

 protected:
  double error_of(const std::vector<float>& out) const {
    return error_on_sample({q_.data(), q_shape_}, {k_.floats.data(), k_shape_},
                           {v_.floats.data(), k_shape_}, {}, {out.data(), q_shape_});
  }

  static void require(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  }

  Shape shape_;
  Dims q_shape_, k_shape_;
  std::vector<float> q_;
  Numbers k_, v_;
  KVCache cache_;
  std::vector<float> out_;
};

// Appends all tokens, as floats, to an empty cache.
class AppendWork : public CacheWork {
 public:
  using CacheWork::CacheWork;

  Status run(Context& context) override {
    cache_.clear();
    return cache_.append({k_.floats.data(), k_shape_}, {v_.floats.data(), k_shape_}, {}, &context);
  }

  double operations() const override { return 0; }

  double bytes() const override {
    return static_cast<double>((k_.floats.size() + v_.floats.size()) * sizeof(float)) +
           CacheWork::bytes();
  }

  // Attends to the tokens.
  double error() const override {
    Context context(1);
    std::vector<float> out(q_.size());
    require(
        cache_.attend({q_.data(), q_shape_}, {}, {.out = Tensor{out.data(), q_shape_}}, context));
    return error_of(out);
  }
};

}  // namespace

std::unique_ptr<Work> make_cache(const Case& which) { return std::make_unique<CacheWork>(which); }
std::unique_ptr<Work> make_append(const Case& which) { return std::make_unique<AppendWork>(which); }

}  // namespace multihead::bench
