#include "distributed/seen_keys.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "distributed/tiles.h"
#include "rules/visibility.h"

namespace multihead::distributed {
namespace {

using rules::KeyRange;

// Range of a tile's keys, counted in the whole problem, that any of its queries sees. Both ends of
// a query's visible range rise with the query, so the first and the last query bound it.
KeyRange seen_in(const Call& call, const Tile& tile) {
  const auto& [queries, keys] = tile;
  const auto s = static_cast<size_t>(queries.sequence);
  rules::Visibility rule = rules::make_visibility(call.options, call.cu_q[s + 1] - call.cu_q[s],
                                                  call.cu_k[s + 1] - call.cu_k[s]);
  rule.first_query = queries.first;
  rule.first_key = keys.first;
  rule.shard_keys = keys.count;
  KeyRange seen{keys.count, 0};
  for (int64_t batch = 0; batch < call.shape.batch; ++batch) {
    const rules::EntryVisibility entry = rule.entry(batch);
    const int64_t first = entry.seen_by(0).first, end = entry.seen_by(queries.count - 1).last;
    if (first >= end) continue;
    seen = {std::min(seen.first, first), std::max(seen.last, end)};
  }
  const int64_t before = call.cu_k[s] + keys.first;
  return {before + seen.first, before + std::max(seen.first, seen.last)};
}

}  // namespace

int64_t count_of(std::span<const Chunk> chunks) {
  int64_t rows = 0;
  for (const Chunk& chunk : chunks) rows += chunk.count;
  return rows;
}

Chunks seen_keys(const Call& call, const Shards& shards, std::span<const Chunk> keys,
                 int first_rank, int end_rank) {
  Chunks seen;
  int64_t local = 0;
  for (const Chunk& chunk : keys) {
    std::vector<KeyRange> ranges;
    const auto ranks = static_cast<int>(shards.queries.size());
    for (int rank = first_rank; rank < end_rank; ++rank) {
      const std::vector<Segment> queries =
          segments_of(shards.query_chunks(call, rank % ranks), call.cu_q);
      for (const Tile& tile : tiles_of(queries, chunk, call.cu_k)) {
        const KeyRange range = seen_in(call, tile);
        if (!range.empty()) ranges.push_back(range);
      }
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const KeyRange& a, const KeyRange& b) { return a.first < b.first; });
    const size_t first_of_chunk = seen.size();
    for (const KeyRange& range : ranges) {
      Chunk* const last = seen.size() > first_of_chunk ? &seen.back() : nullptr;
      if (last != nullptr && range.first <= last->first + last->count) {
        last->count = std::max(last->count, range.last - last->first);
      } else {
        seen.push_back({range.first, range.last - range.first, 0});
      }
    }
    for (size_t i = first_of_chunk; i < seen.size(); ++i) {
      seen[i].local = local;
      local += seen[i].count;
    }
  }
  return seen;
}

int64_t local_row(std::span<const Chunk> held, const Chunk& chunk) {
  const Chunk& whole = *std::find_if(held.begin(), held.end(), [&](const Chunk& candidate) {
    return candidate.first <= chunk.first &&
           chunk.first + chunk.count <= candidate.first + candidate.count;
  });
  return whole.local + chunk.first - whole.first;
}

namespace {

// Sends the rows `outgoing` of the keys `held` in `memory`, if there are any. `narrowed` is scratch
// for a copy of these rows, which is not needed if all rows are sent.
void send_keys(const Task& task, int to, std::span<const Chunk> held, const KeyMemory& memory,
               std::span<const Chunk> outgoing, const KeyMemory& narrowed) {
  const Layouts layouts = task.layouts();
  const int64_t rows = count_of(held), wanted = count_of(outgoing);
  if (rows == wanted) return send(task.transport(), to, layouts, memory, rows);
  const auto narrow = [&](const AnyTensor& from, const AnyTensor& copies) {
    for (const Chunk& chunk : outgoing) {
      copy(rows_of(ConstAnyTensor(from), local_row(held, chunk), chunk.count),
           rows_of(copies, chunk.local, chunk.count), task.context);
    }
  };
  narrow(layouts.k(memory, rows), layouts.k(narrowed, wanted));
  narrow(layouts.v(memory, rows), layouts.v(narrowed, wanted));
  send(task.transport(), to, layouts, narrowed, wanted);
}

}  // namespace

RingKeys::RingKeys(const Task& task, bool keeps_rows) : task_(task), keeps_rows_(keeps_rows) {
  for (int step = 0; step < task.size(); ++step) {
    held_.push_back(rows(owner(task.rank(), step), step));
    most_rows_ = std::max(most_rows_, count_of(held_.back()));
  }
  held_.emplace_back();
}

Chunks RingKeys::seen(int owner, int step) const {
  Chunks all = task_.shards.key_chunks(task_.call, owner);
  if (step == 0) return all;
  return seen_keys(task_.call, task_.shards, all, owner + step, owner + task_.size());
}

int RingKeys::last_step(int owner) const {
  int step = task_.size() - 1;
  while (step > 0 && seen(owner, step).empty()) --step;
  return step;
}

Chunks RingKeys::rows(int owner, int step) const {
  if (!keeps_rows_) return seen(owner, step);
  if (step > last_step(owner)) return {};
  return seen(owner, std::min(step, 1));
}

void RingKeys::take(rules::Arena& arena) {
  const Layouts layouts = task_.layouts();
  for (KeyMemory& memory : memory_) layouts.take(arena, memory, most_rows_);
  layouts.take(arena, narrowed_, most_rows_);
}

void RingKeys::exchange(int step) const {
  const int size = task_.size(), rank = task_.rank();
  if (step + 1 >= size) return;
  receive(task_.transport(), (rank - 1 + size) % size, task_.layouts(), memory(step + 1),
          count(step + 1));
  send_keys(task_, (rank + 1) % size, held(step), memory(step), rows(owner(rank, step), step + 1),
            narrowed_);
}

GatheredKeys::GatheredKeys(const Task& task) : task_(task) {
  const Call& call = task.call;
  const Shards& shards = task.shards;
  const int rank = task.rank();
  const auto ranks = static_cast<int>(shards.keys.size());
  const Chunks own = shards.key_chunks(call, rank);
  for (int other = 0; other < ranks; ++other) {
    const Chunks keys = shards.key_chunks(call, other);
    incoming_.push_back(other == rank ? own : seen_keys(call, shards, keys, rank, rank + 1));
    outgoing_.push_back(other == rank ? own : seen_keys(call, shards, own, other, other + 1));
  }
  received_.resize(incoming_.size());
  narrowed_.resize(outgoing_.size());
}

void GatheredKeys::take(rules::Arena& arena) {
  const Layouts layouts = task_.layouts();
  const auto own = static_cast<size_t>(task_.rank());
  for (size_t other = 0; other < received_.size(); ++other) {
    layouts.take(arena, received_[other], count_of(incoming_[other]));
    const bool narrows = count_of(outgoing_[other]) != count_of(outgoing_[own]);
    layouts.take(arena, narrowed_[other], narrows ? count_of(outgoing_[other]) : 0);
  }
  layouts.take(arena, whole_, task_.call.sharding.keys);
}

Status GatheredKeys::start() const {
  const int rank = task_.rank();
  const KeyMemory& own = received_[static_cast<size_t>(rank)];
  MULTIHEAD_TRY(pack(task_, own));
  for (int other = 0; other < task_.size(); ++other) {
    if (other == rank) continue;
    const auto at = static_cast<size_t>(other);
    receive(task_.transport(), other, task_.layouts(), received_[at], count_of(received(other)));
    send_keys(task_, other, sent(rank), own, sent(other), narrowed_[at]);
  }
  return {};
}

void GatheredKeys::join() const {
  const Layouts layouts = task_.layouts();
  int64_t rows = 0;
  for (const Chunks& chunks : incoming_) rows += count_of(chunks);
  if (rows < task_.call.sharding.keys) {
    // Heads without numbers have no address.
    const size_t of_k = layouts.k_bytes(task_.call.sharding.keys);
    const size_t of_v = layouts.v_bytes(task_.call.sharding.keys);
    if (of_k > 0) std::memset(whole_.k, 0, of_k);
    if (of_v > 0) std::memset(whole_.v, 0, of_v);
  }
  for (size_t other = 0; other < received_.size(); ++other) {
    const int64_t count = count_of(incoming_[other]);
    scatter(incoming_[other], layouts.k(received_[other], count), k(), task_.context);
    scatter(incoming_[other], layouts.v(received_[other], count), v(), task_.context);
  }
}

}  // namespace multihead::distributed
