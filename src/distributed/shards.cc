#include "distributed/call.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace multihead::distributed {

std::array<RowRange, 2> rows_of_rank(int64_t rows, Layout layout, int ranks, int rank) {
  if (ranks <= 0 || rank < 0 || rank >= ranks || rows < 0) return {};
  const int64_t parts = layout == Layout::kZigzag ? 2 * int64_t{ranks} : ranks;
  const auto part = [&](int64_t index) -> RowRange {
    // Avoids rows * index / parts, which may overflow.
    const auto begin = [&](int64_t i) { return rows / parts * i + rows % parts * i / parts; };
    return {begin(index), begin(index + 1)};
  };
  if (layout == Layout::kContiguous) return {part(rank), {}};
  return {part(rank), part(parts - 1 - rank)};
}

std::vector<Chunk> chunks_of(const Sharding& sharding, std::span<const int64_t> counts,
                             int64_t total, int rank) {
  std::vector<Chunk> chunks;
  if (sharding.layout == Layout::kContiguous) {
    const auto index = static_cast<size_t>(rank);
    int64_t first = 0;
    for (const int64_t count : counts.first(index)) first += count;
    if (counts[index] > 0) chunks.push_back({first, counts[index], 0});
    return chunks;
  }
  int64_t local = 0;
  for (const RowRange& range :
       rows_of_rank(total, sharding.layout, static_cast<int>(counts.size()), rank)) {
    if (range.count() > 0) chunks.push_back({range.first, range.count(), local});
    local += range.count();
  }
  return chunks;
}

std::vector<Segment> segments_of(const Chunk& chunk, std::span<const int32_t> cu) {
  std::vector<Segment> segments;
  const int64_t end = chunk.first + chunk.count;
  // The last sequence that begins at or before the first row contains it.
  const auto after = std::upper_bound(cu.begin(), cu.end(), chunk.first);
  for (auto s = after - cu.begin() - 1; s + 1 < std::ssize(cu); ++s) {
    const int64_t begin = cu[static_cast<size_t>(s)];
    if (begin >= end) break;
    const int64_t first = std::max(begin, chunk.first);
    const int64_t count = std::min<int64_t>(cu[static_cast<size_t>(s) + 1], end) - first;
    if (count <= 0) continue;
    segments.push_back({s, first - begin, count, chunk.local + first - chunk.first});
  }
  return segments;
}

std::vector<Segment> segments_of(std::span<const Chunk> chunks, std::span<const int32_t> cu) {
  std::vector<Segment> segments;
  for (const Chunk& chunk : chunks) {
    const std::vector<Segment> more = segments_of(chunk, cu);
    segments.insert(segments.end(), more.begin(), more.end());
  }
  return segments;
}

}  // namespace multihead::distributed
