// KVCache: random sequences of append, attend, truncate and clear, compared with a plain model that
// stores every token.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "fuzz/bytes.h"
#include "multihead/kv_cache.h"
#include "rules/element.h"

namespace {

using namespace multihead;  // NOLINT(google-build-using-namespace)
using fuzz::Bytes;
using Layout = KVCacheConfig::Layout;
using Type = KVCacheConfig::Type;

// Returns a token's vector, rounded to the cache's type.
std::vector<float> kept(std::vector<float> row, Type type) {
  float largest = 0.0F;
  for (const float value : row) largest = std::max(largest, std::abs(value));
  const float scale = largest / 127.0F;
  for (float& value : row) {
    switch (type) {
      case Type::kF16:
        value = rules::to_float(rules::to_float16(value));
        break;
      case Type::kBF16:
        value = rules::to_float(rules::to_bfloat16(value));
        break;
      case Type::kInt8:
        value = scale == 0.0F ? 0.0F : std::nearbyint(value / scale) * scale;
        break;
      case Type::kF32:
        break;
    }
  }
  return row;
}

struct Token {
  std::vector<std::vector<float>> keys, values;  // per head
  bool gone = false;                             // overwritten by a ring
};

struct Model {
  KVCacheConfig config;
  std::vector<std::deque<Token>> entries;

  int64_t pages() const {
    int64_t used = 0;
    for (const auto& entry : entries) {
      used += (static_cast<int64_t>(entry.size()) + config.page_size - 1) / config.page_size;
    }
    return used;
  }
  int64_t longest() const {
    size_t length = 0;
    for (const auto& entry : entries) length = std::max(length, entry.size());
    return static_cast<int64_t>(length);
  }
  void append(int64_t b, Token token) {
    auto& entry = entries[static_cast<size_t>(b)];
    entry.push_back(std::move(token));
    const auto length = static_cast<int64_t>(entry.size());
    if (config.layout == Layout::kRing && length > config.capacity) {
      entry[static_cast<size_t>(length - config.capacity - 1)].gone = true;
    }
  }
};

float small(Bytes& from) { return static_cast<float>(from.integer(-8, 8)) / 8.0F; }

class Sequence {
 public:
  explicit Sequence(Bytes& from) : from_(from) {}

  void run() {
    KVCacheConfig config;
    config.batch = from_.integer(from_.one_in(64) ? -1 : 1, 3);
    config.num_kv_heads = from_.integer(from_.one_in(64) ? 0 : 1, 2);
    config.head_dim = from_.integer(from_.one_in(64) ? -1 : 1, 9);
    config.values_in_keys = from_.one_in(4);
    config.value_dim = from_.integer(
        1, config.values_in_keys && config.head_dim > 0 && !from_.one_in(16) ? config.head_dim : 9);
    config.capacity = from_.integer(from_.one_in(64) ? 0 : 1, 12);
    config.layout = static_cast<Layout>(from_.integer(0, from_.one_in(64) ? 255 : 2));
    config.type = static_cast<Type>(from_.integer(0, from_.one_in(64) ? 255 : 3));
    config.page_size = from_.integer(from_.one_in(64) ? -1 : 1, 5);
    config.pages = from_.one_in(3) ? from_.integer(from_.one_in(16) ? -1 : 1, 9) : 0;
    if (from_.one_in(64)) {
      (from_.one_in(2) ? config.batch : config.capacity) = from_.integer(INT64_MIN, INT64_MAX);
    }
    const Status status = KVCache::create(config, cache_);
    fuzz::check_words(status);
    if (!status.ok()) {
      FUZZ_CHECK(cache_.config().batch == 0, "a cache that was refused");
      return;
    }
    // A legal cache of millions of entries is small, but its model in this test would not be.
    constexpr int64_t kMostEntries = 1024;
    if (config.batch > kMostEntries) return;
    model_.config = config;
    model_.entries.resize(static_cast<size_t>(config.batch));
    while (from_.left() > 0) {
      switch (from_.integer(0, 7)) {
        case 0:
        case 1:
        case 2:
        case 3:
          append();
          break;
        case 4:
        case 5:
          attend();
          break;
        case 6:
          truncate();
          break;
        default:
          if (from_.one_in(8)) clear();
      }
      check_lengths();
    }
  }

 private:
  void append() {
    const KVCacheConfig& c = model_.config;
    const int64_t tokens = from_.integer(0, 4);
    const bool wrong = from_.one_in(24);
    std::vector<float> k(static_cast<size_t>(c.batch * c.num_kv_heads * tokens * c.head_dim));
    std::vector<float> v(static_cast<size_t>(c.batch * c.num_kv_heads * tokens * c.value_dim));
    for (float& value : k) value = small(from_);
    for (float& value : v) value = small(from_);
    std::vector<int32_t> counts;
    if (from_.one_in(3)) {
      for (int64_t b = 0; b < c.batch; ++b) {
        counts.push_back(static_cast<int32_t>(from_.integer(from_.one_in(32) ? -1 : 0, tokens)));
      }
      if (from_.one_in(32)) counts.push_back(0);
    }
    Dims k_shape{c.batch, c.num_kv_heads, tokens, c.head_dim};
    const Dims v_shape{c.batch, c.num_kv_heads, tokens, c.value_dim};
    if (wrong) k_shape[from_.pick({0, 1, 3})] = from_.integer(-2, 4);
    ConstAnyTensor key = ConstTensor(k.data(), k_shape);
    if (from_.one_in(32)) key.dtype = static_cast<DType>(from_.integer(3, 255));
    const ConstAnyTensor value = c.values_in_keys ? ConstTensor() : ConstTensor(v.data(), v_shape);

    const auto count_of = [&](int64_t b) {
      return counts.empty() ? tokens : int64_t{counts[static_cast<size_t>(b)]};
    };
    bool legal = k_shape == Dims{c.batch, c.num_kv_heads, tokens, c.head_dim} &&
                 key.dtype <= DType::kBF16 &&
                 (counts.empty() || static_cast<int64_t>(counts.size()) == c.batch);
    int64_t pages = 0;
    for (int64_t b = 0; legal && b < c.batch; ++b) {
      const auto length = static_cast<int64_t>(model_.entries[static_cast<size_t>(b)].size());
      const int64_t after = length + count_of(b);
      legal = count_of(b) >= 0 && count_of(b) <= tokens &&
              (c.layout == Layout::kRing || after <= c.capacity);
      if (c.layout == Layout::kPaged) pages += (after + c.page_size - 1) / c.page_size;
    }
    if (c.layout == Layout::kPaged) {
      const int64_t each = (c.capacity + c.page_size - 1) / c.page_size;
      legal = legal && pages <= (c.pages == 0 ? c.batch * each : c.pages);
    }
    const Status status = cache_.append(key, value, counts);
    fuzz::check_words(status);
    FUZZ_CHECK(status.ok() == legal, "append: %s", status.message().c_str());
    if (!legal) return;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t n = 0; n < count_of(b); ++n) {
        Token token;
        for (int64_t h = 0; h < c.num_kv_heads; ++h) {
          const auto row = [&](const std::vector<float>& rows, int64_t width) {
            const auto* const first = rows.data() + ((b * c.num_kv_heads + h) * tokens + n) * width;
            return std::vector<float>(first, first + width);
          };
          token.keys.push_back(kept(row(k, c.head_dim), c.type));
          std::vector<float> of_value;
          if (c.values_in_keys) {
            of_value = token.keys.back();
            of_value.resize(static_cast<size_t>(c.value_dim));
          } else {
            of_value = kept(row(v, c.value_dim), c.type);
          }
          token.values.push_back(std::move(of_value));
        }
        model_.append(b, std::move(token));
      }
    }
  }

  void attend() {
    const KVCacheConfig& c = model_.config;
    const int64_t group = from_.integer(1, 3), heads = c.num_kv_heads * group;
    const int64_t queries = from_.integer(0, 3), keys = model_.longest();
    std::vector<float> q(static_cast<size_t>(c.batch * heads * queries * c.head_dim));
    for (float& value : q) value = small(from_);
    AttentionOptions options;
    if (c.head_dim == 0) options.scale = 1.0F;  // there is no default for width 0
    const bool causal = from_.one_in(2);
    if (causal) options.causal = Causal::bottom_right();
    if (from_.one_in(3)) options.window.left = from_.integer(0, 5);
    if (from_.one_in(6)) options.window.right = from_.integer(0, 3);
    const Dims out_shape{c.batch, heads, queries, c.value_dim};
    const Dims lse_shape{c.batch, heads, queries};
    std::vector<float> out(static_cast<size_t>(out_shape.elements()), 42.0F);
    std::vector<float> lse(static_cast<size_t>(lse_shape.elements()), 42.0F);
    const Status status = cache_.attend(
        ConstTensor(q.data(), {c.batch, heads, queries, c.head_dim}), options,
        {.out = Tensor(out.data(), out_shape), .lse = {lse.data(), lse_shape}}, context_);
    fuzz::check_words(status);
    if (loses(queries, options.window.left)) {
      FUZZ_CHECK(status.code() == StatusCode::kOption && status.argument() == "q", "attend: %s",
                 status.message().c_str());
      FUZZ_CHECK(std::count(out.begin(), out.end(), 42.0F) == std::ssize(out), "out was written");
      return;
    }
    FUZZ_CHECK(status.ok(), "attend over %lld: %s", static_cast<long long>(keys),
               status.message().c_str());
    const double scale = c.head_dim == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(c.head_dim));
    for (int64_t b = 0; b < c.batch; ++b) {
      const auto& entry = model_.entries[static_cast<size_t>(b)];
      const auto length = static_cast<int64_t>(entry.size());
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < queries; ++i) {
          const int64_t row = (b * heads + h) * queries + i;
          const int64_t position = i + length - queries;
          double sum = 0;
          std::vector<double> expected(static_cast<size_t>(c.value_dim));
          for (int64_t j = 0; j < length; ++j) {
            const Token& token = entry[static_cast<size_t>(j)];
            const bool visible = !token.gone && (!causal || j <= position) &&
                                 (options.window.left < 0 || j >= position - options.window.left) &&
                                 (options.window.right < 0 || j <= position + options.window.right);
            if (!visible) continue;
            const auto head = static_cast<size_t>(h / group);
            double score = 0;
            for (int64_t d = 0; d < c.head_dim; ++d) {
              score += static_cast<double>(q[static_cast<size_t>(row * c.head_dim + d)]) *
                       static_cast<double>(token.keys[head][static_cast<size_t>(d)]);
            }
            const double weight = std::exp(score * scale);
            sum += weight;
            for (size_t d = 0; d < expected.size(); ++d) {
              expected[d] += weight * static_cast<double>(token.values[head][d]);
            }
          }
          const double got_lse = static_cast<double>(lse[static_cast<size_t>(row)]);
          FUZZ_CHECK(sum > 0 ? std::abs(got_lse - std::log(sum)) < 1e-4 : std::isinf(got_lse),
                     "lse %g of %g", got_lse, std::log(sum));
          for (size_t d = 0; d < expected.size(); ++d) {
            const double value = sum > 0 ? expected[d] / sum : 0.0;
            const auto got = static_cast<double>(out[static_cast<size_t>(row * c.value_dim) + d]);
            FUZZ_CHECK(std::abs(got - value) < 1e-4, "entry %lld head %lld query %lld: %g, not %g",
                       static_cast<long long>(b), static_cast<long long>(h),
                       static_cast<long long>(i), got, value);
          }
        }
      }
    }
  }

  // True if the window of one of the last `queries` tokens has tokens that are gone.
  bool loses(int64_t queries, int64_t left) const {
    if (queries == 0 || left < 0) return false;
    for (const auto& entry : model_.entries) {
      const auto first = std::max<int64_t>(0, std::ssize(entry) - queries - left);
      if (std::any_of(entry.begin() + first, entry.end(), [](const Token& t) { return t.gone; })) {
        return true;
      }
    }
    return false;
  }

  void truncate() {
    const int64_t b =
        from_.integer(from_.one_in(16) ? -1 : 0, model_.config.batch - (from_.one_in(16) ? 0 : 1));
    const int64_t length = from_.integer(from_.one_in(16) ? -1 : 0, 14);
    const bool exists = b >= 0 && b < model_.config.batch;
    const bool legal =
        exists && length >= 0 &&
        length <= static_cast<int64_t>(model_.entries[static_cast<size_t>(b)].size());
    const Status status = cache_.truncate(b, length);
    fuzz::check_words(status);
    FUZZ_CHECK(status.ok() == legal, "truncate: %s", status.message().c_str());
    if (legal) model_.entries[static_cast<size_t>(b)].resize(static_cast<size_t>(length));
  }

  void clear() {
    cache_.clear();
    for (auto& entry : model_.entries) entry.clear();
  }

  void check_lengths() const {
    for (int64_t b = 0; b < model_.config.batch; ++b) {
      const auto& entry = model_.entries[static_cast<size_t>(b)];
      FUZZ_CHECK(cache_.length(b) == static_cast<int64_t>(entry.size()), "length %lld",
                 static_cast<long long>(cache_.length(b)));
      // The cache has all tokens from first_kept() on, and no token that a ring has overwritten.
      const int64_t first = cache_.first_kept(b);
      FUZZ_CHECK(first >= 0 && first <= cache_.length(b), "first %lld",
                 static_cast<long long>(first));
      for (int64_t j = 0; j < cache_.length(b); ++j) {
        FUZZ_CHECK(entry[static_cast<size_t>(j)].gone == (j < first), "token %lld of %lld",
                   static_cast<long long>(j), static_cast<long long>(cache_.length(b)));
      }
    }
    if (model_.config.layout != Layout::kPaged) return;
    std::vector<int32_t> pages;
    for (const int32_t page : cache_.page_table()) {
      if (page >= 0) pages.push_back(page);
    }
    FUZZ_CHECK(static_cast<int64_t>(pages.size()) == model_.pages(), "%zu pages", pages.size());
    std::sort(pages.begin(), pages.end());
    FUZZ_CHECK(std::adjacent_find(pages.begin(), pages.end()) == pages.end(), "a page twice");
  }

  Bytes& from_;
  KVCache cache_;
  Model model_;
  Context context_{1};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes from(data, size);
  Sequence(from).run();
  return 0;
}
