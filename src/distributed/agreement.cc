#include "distributed/agreement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace multihead::distributed {
namespace {

// FNV-1a, 64 bits (Fowler, Noll and Vo).
class Digest {
 public:
  template <class T>
  Digest& add(const T& value) requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    std::array<unsigned char, sizeof(T)> bytes{};
    std::memcpy(bytes.data(), &value, sizeof(T));
    for (const unsigned char byte : bytes) hash_ = (hash_ ^ byte) * 0x100000001b3U;
    return *this;
  }
  template <class T>
  Digest& add(std::span<const T> values) {
    add(values.size());
    for (const T& value : values) add(value);
    return *this;
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325U;
};

struct Field {
  const char* name;
  Digest digest;
};

// Lists everything that must be the same on all ranks, by its name in the interface.
auto fields_of(const Call& call) {
  const AttentionOptions& o = call.options;
  const engine::AttentionShape& s = call.shape;
  const Sharding& sharding = call.sharding;
  const auto shape_of = [&](const auto& view) {
    // Digest of the extents, except the queries' extent, which differs between ranks. Extents of 1
    // mark shared axes.
    Digest digest;
    digest.add(view.given());
    const int rank = view.shape.rank();
    for (int axis = 0; axis < rank; ++axis) {
      digest.add(axis == rank - 2 ? int64_t{0} : view.shape[axis]);
    }
    return digest;
  };
  return std::to_array<Field>({
      {"call", Digest().add(call.kind)},
      {"sharding.method", Digest().add(sharding.method)},
      {"sharding.layout", Digest().add(sharding.layout)},
      {"sharding.queries", Digest().add(sharding.queries)},
      {"sharding.keys", Digest().add(sharding.keys)},
      {"batch", Digest().add(s.batch)},
      {"heads", Digest().add(s.heads).add(s.kv_heads)},
      {"d_k and d_v", Digest().add(s.head_dim).add(s.value_dim)},
      {"element types", Digest().add(call.q.dtype).add(call.k.dtype).add(call.v.dtype)},
      {"cu_q", Digest().add(call.cu_q)},
      {"cu_k", Digest().add(call.cu_k)},
      {"scale", Digest().add(o.scale.has_value()).add(o.scale.value_or(0.0F))},
      {"causal", Digest().add(o.causal.alignment).add(o.causal.offset)},
      {"window", Digest()
                     .add(o.window.left)
                     .add(o.window.right)
                     .add(o.window.alignment)
                     .add(o.window.offset)},
      {"kv_lengths", Digest().add(o.kv_lengths)},
      {"alibi_slopes", Digest().add(o.alibi_slopes)},
      {"softcap", Digest().add(o.softcap)},
      {"sinks", Digest().add(o.sinks)},
      {"qk_norm", Digest()
                      .add(o.qk_norm.enabled)
                      .add(o.qk_norm.eps)
                      .add(o.qk_norm.q_gain)
                      .add(o.qk_norm.k_gain)},
      {"rope", Digest().add(o.rope.style).add(o.rope.base).add(o.rope.rotary_dim)},
      {"dropout", Digest().add(o.dropout.probability).add(o.dropout.seed)},
      {"precision", Digest().add(o.precision)},
      {"mask", shape_of(o.mask)},
      {"bias", shape_of(o.bias)},
  });
}
using Fields = decltype(fields_of(std::declval<const Call&>()));

// The message of each rank.
struct Header {
  uint64_t refused = 0;
  int64_t queries = 0, keys = 0;
  std::array<uint64_t, std::tuple_size_v<Fields>> digests{};
};

Status differs(const char* name, size_t rank) {
  return {StatusCode::kOption, name, "the same on every rank",
          "another on rank " + std::to_string(rank) + " than on rank 0"};
}

Status refused_by(size_t rank) {
  return {StatusCode::kOption, "communicator", "arguments that every rank accepts",
          "some that rank " + std::to_string(rank) + " refused"};
}

// Collects `own` of every rank, in rank order.
template <class T>
Status exchange(const T& own, double time_limit, Communicator::Internals& ranks,
                std::vector<T>& all) {
  Transport& transport = *ranks.transport;
  const auto size = static_cast<size_t>(transport.size());
  if (!ranks.notes.reserve(size * sizeof(T))) return Status::out_of_memory(size * sizeof(T));
  all.resize(size);
  ranks.awaited = size > 1;
  auto* const memory = static_cast<T*>(ranks.notes.data());
  const int rank = transport.rank();
  memory[rank] = own;
  for (int other = 0; other < transport.size(); ++other) {
    if (other == rank) continue;
    transport.receive(other, memory + other, sizeof(T));
    transport.send(other, memory + rank, sizeof(T));
  }
  MULTIHEAD_TRY(ranks.finish(time_limit));
  std::copy_n(memory, size, all.begin());
  return {};
}

Status check_rows(const char* name, const Call& call, const std::vector<int64_t>& counts,
                  int64_t total, bool replicated) {
  const auto ranks = static_cast<int>(counts.size());
  const auto refuse = [&](std::string_view expected, std::string_view got) -> Status {
    return {StatusCode::kShape, name, expected, got};
  };
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t count = counts[static_cast<size_t>(rank)];
    int64_t expected = count;
    if (replicated) expected = total;
    if (!replicated && call.sharding.layout == Layout::kZigzag) {
      const auto ranges = rows_of_rank(total, Layout::kZigzag, ranks, rank);
      expected = ranges[0].count() + ranges[1].count();
    }
    if (count == expected) continue;
    return refuse(std::to_string(expected) + " rows on rank " + std::to_string(rank),
                  std::to_string(count));
  }
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (replicated || sum == total) return {};
  return refuse(std::to_string(total) + " rows over all ranks", std::to_string(sum));
}

// Compares the messages of all ranks; every rank reaches the same result.
Status compare(const Call& call, const Status& own, const Fields& fields,
               const std::vector<Header>& all, Shards& shards) {
  if (!own.ok()) return own;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].refused != 0) return refused_by(rank);
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank].digests[i] != all[0].digests[i]) return differs(fields[i].name, rank);
    }
  }
  for (const Header& header : all) {
    shards.queries.push_back(header.queries);
    shards.keys.push_back(header.keys);
  }
  const Sharding& sharding = call.sharding;
  const bool decodes = sharding.method == Method::kDecode;
  MULTIHEAD_TRY(check_rows("q", call, shards.queries, sharding.queries, decodes));
  MULTIHEAD_TRY(check_rows("k", call, shards.keys, sharding.keys, false));
  const auto size = static_cast<int64_t>(all.size());
  if (sharding.method == Method::kHeads && call.shape.kv_heads < size) {
    return {StatusCode::kOption, "sharding.method",
            "a key/value head for each of the " + std::to_string(size) + " ranks with heads",
            std::to_string(call.shape.kv_heads)};
  }
  return {};
}

// Returns the result of a step. After an error, every rank leaves the call.
Status outcome(Status status, Communicator::Internals& ranks) {
  if (!status.ok()) ranks.awaited = false;
  return status;
}

}  // namespace

Status agree(const Call& call, const Status& own, Communicator::Internals& ranks, Shards& shards) {
  const Fields fields = fields_of(call);
  static_assert(std::is_trivially_copyable_v<Header>);
  Header header{
      .refused = own.ok() ? 0U : 1U, .queries = call.shape.queries, .keys = call.shape.keys};
  for (size_t i = 0; i < fields.size(); ++i) header.digests[i] = fields[i].digest.value();
  std::vector<Header> all;
  // If the rank refused its time limit, wait with the default limit.
  const double limit = own.ok() ? call.sharding.time_limit : Sharding().time_limit;
  if (Status status = exchange(header, limit, ranks, all); !status.ok()) {
    return own.ok() ? status : own;
  }
  return outcome(compare(call, own, fields, all, shards), ranks);
}

Status agree(const Status& own, double time_limit, Communicator::Internals& ranks) {
  std::vector<uint64_t> all;
  const uint64_t refused = own.ok() ? 0U : 1U;
  if (Status status = exchange(refused, time_limit, ranks, all); !status.ok()) {
    return own.ok() ? status : own;
  }
  if (!own.ok()) return outcome(own, ranks);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != 0) return outcome(refused_by(rank), ranks);
  }
  return {};
}

Status agree_to_write(const Status& own, const Call& call, Communicator::Internals& ranks) {
  if (!own.ok()) return own;
  Status status = agree(own, call.sharding.time_limit, ranks);
  if (status.ok()) ranks.awaited = false;
  return status;
}

}  // namespace multihead::distributed
