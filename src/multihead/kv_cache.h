/// \file
/// A KV cache: keys and values of past tokens, for decoding one or several tokens at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "multihead/attention.h"
#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Shape and storage of a KVCache.
struct KVCacheConfig {
  /// Order of an entry's tokens in memory.
  enum class Layout : uint8_t {
    kContiguous,  ///< (B, H_kv, capacity, d)
    kRing,        ///< as kContiguous; new tokens overwrite the oldest, for windows; < 2^31 in total
    kPaged,  ///< pages of page_size tokens, taken from a pool as sequences grow (arXiv:2309.06180)
  };
  /// Element type of storage; kInt8 has one scale per token and head.
  using Type = DType;

  int64_t batch = 1;         ///< batch entries, B; 1 or more
  int64_t num_kv_heads = 0;  ///< key and value heads, H_kv; 1 or more
  int64_t head_dim = 0;      ///< d_k; 1 or more
  int64_t value_dim = 0;     ///< d_v; 1 or more
  /// A token's value is the first value_dim numbers of its key and is not stored again. For latent
  /// attention (arXiv:2405.04434), where the latent is both key and value. append() then takes no
  /// values.
  bool values_in_keys = false;
  int64_t capacity = 0;                 ///< tokens of one entry; 1 or more
  Layout layout = Layout::kContiguous;  ///< order of tokens in memory
  Type type = Type::kF32;               ///< type of the stored keys and values
  int64_t page_size = 16;               ///< tokens, 1 or more; read only with kPaged
  int64_t pages = 0;  ///< pages in the pool; 0: enough for every entry at full capacity
};

/// Keys and values of past tokens. Lengths of batch entries are independent. A call that fails
/// changes nothing. create() allocates all memory. A moved-from cache has no batch entries.
class KVCache {
 public:
  /// A cache without batch entries; see create().
  KVCache() { config_.batch = 0; }
  ~KVCache() = default;
  /// Movable, not copyable.
  KVCache(KVCache&& other) noexcept : KVCache() { swap(other); }
  /// Movable, not copyable.
  KVCache& operator=(KVCache&& other) noexcept {
    KVCache moved(std::move(other));
    swap(moved);
    return *this;
  }
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  /// Errors: kOption (an unknown layout or type, extents that are not positive, `pages` that are
  /// negative, values_in_keys wider than keys), kMemory. `cache` is unchanged then.
  [[nodiscard]] static Status create(const KVCacheConfig& config, KVCache& cache);

  /// Appends n tokens, k (B, H_kv, n, d_k) and v (B, H_kv, n, d_v), in f32, f16 or bf16. With
  /// `counts` (B), entry b takes only its first counts[b] tokens. Numbers are rounded to the
  /// cache's type: to nearest, ties to even, and to an infinity beyond the type's range (f16: from
  /// 65520 on). In kInt8, a row that contains a NaN or an infinity becomes a row of NaN or
  /// infinities. Many tokens are written by the threads of `context`; without one, and in
  /// WebAssembly, by the calling thread. Errors: kShape; kOption if an entry would exceed its
  /// capacity, or the pool has no page left.
  [[nodiscard]] Status append(const ConstAnyTensor& k, const ConstAnyTensor& v,
                              std::span<const int32_t> counts = {}, Context* context = nullptr);

  /// attention() of q (B, H_q, N_q, d_k) over the cached tokens. The N_q queries belong to the
  /// newest tokens of each entry, and N_k, for masks, biases and weights, is the longest length().
  /// Key j is token j, also in a ring, where overwritten tokens are hidden. ALiBi distances count
  /// from the end of each entry. options.causal is none or bottom_right, which aligns with the end
  /// of each entry. kv_lengths, rope and qk_norm are kOption errors: rotate() and normalize before
  /// append(). So is a window that reaches back to tokens that a ring has overwritten: with
  /// options.window.left, attend to at most capacity - left tokens at once.
  [[nodiscard]] Status attend(const ConstAnyTensor& q, const AttentionOptions& options,
                              const AttentionOutputs& outputs, Context& context) const;

  /// Truncates one entry to its first `length` tokens. In a ring, tokens that were overwritten stay
  /// hidden. Errors: kOption (no such entry; `length` negative or more than length()).
  [[nodiscard]] Status truncate(int64_t batch, int64_t length);
  /// Truncates every entry to no tokens; frees no memory.
  void clear();

  /// The config given to create().
  const KVCacheConfig& config() const { return config_; }
  /// Number of tokens of an entry: appended tokens minus truncated tokens; 0 if there is no such
  /// entry.
  int64_t length(int64_t batch) const { return has_entry(batch) ? parts_.lengths[batch] : 0; }
  /// Index of the first token that has not been overwritten; more than 0 only in a ring, 0 if there
  /// is no such entry.
  int64_t first_kept(int64_t batch) const { return has_entry(batch) ? parts_.firsts[batch] : 0; }
  /// Bytes of keys, values, scales and tables.
  int64_t bytes() const { return bytes_; }
  /// kPaged: (B, pages per entry) page numbers, -1 for pages not yet allocated.
  std::span<const int32_t> page_table() const;

  struct Internals;  ///< for the library's own use

 private:
  // (B, heads, capacity, width), or (pages * page_size, heads, width) for pages. `heads` counts
  // only the stored heads.
  struct Store {
    std::byte* rows = nullptr;
    float* scales = nullptr;  // one per row; kInt8 only
  };
  // Arrays in the cache's memory.
  struct Parts {
    Store keys, values;             // no values if config_.values_in_keys
    int32_t* lengths = nullptr;     // (B)
    int32_t* firsts = nullptr;      // (B)
    int32_t* page_table = nullptr;  // (B, pages per entry); kPaged only
    int32_t* free_pages = nullptr;  // (pages): the first free_pages_ are free; kPaged only
  };
  struct Free {
    void operator()(void* memory) const;
  };

  void swap(KVCache& other) noexcept;
  bool has_entry(int64_t batch) const { return batch >= 0 && batch < config_.batch; }
  void claim_pages(int64_t batch, int64_t end);  // for positions up to end - 1
  const Store& values() const { return config_.values_in_keys ? parts_.keys : parts_.values; }
  int64_t stored_heads() const { return end_head_ - first_head_; }

  KVCacheConfig config_;
  std::unique_ptr<void, Free> memory_;
  Parts parts_;
  int64_t first_head_ = 0, end_head_ = 0;  // stored key/value heads
  int64_t free_pages_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
