#include "engine/cache/cached_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/elementwise/elementwise.h"
#include "engine/runtime/jobs.h"

namespace multihead::engine {
namespace {

using Layout = KVCacheConfig::Layout;

// A token is numbered by its batch entry, head, and place among the entry's new tokens. Where the
// heads of a token are adjacent in memory, or an entry has a single new token, heads are the inner
// loop, else tokens.
class Appending {
 public:
  explicit Appending(const AppendedTokens& tokens)
      : of_(tokens), heads_(tokens.end_head - tokens.first_head) {}

  // Number of rows of all entries.
  int64_t rows() const {
    int64_t rows = 0;
    for (int64_t b = 0; b < of_.config.batch; ++b) rows += heads_ * written(b);
    return rows;
  }

  // Numbers of a token in one head.
  double numbers() const {
    double numbers = 0;
    for (const AppendedRows& rows : of_.rows) numbers += static_cast<double>(rows.width);
    return numbers;
  }

  // Writes rows first to end - 1 of all entries.
  void write(int64_t first, int64_t end) const {
    for (int64_t b = 0; end > 0; ++b) {
      const int64_t rows = heads_ * written(b);
      if (first < rows) write_entry(b, first, std::min(end, rows));
      first = std::max<int64_t>(0, first - rows);
      end -= rows;
    }
  }

 private:
  int64_t given(int64_t b) const {
    return of_.counts.empty() ? of_.rows[0].from.shape[2] : of_.counts[static_cast<size_t>(b)];
  }

  // Number of the entry's tokens that are written: its last ones.
  int64_t written(int64_t b) const {
    const int64_t count = given(b);
    return of_.config.layout == Layout::kRing ? std::min(count, of_.config.capacity) : count;
  }

  void write_entry(int64_t b, int64_t first, int64_t end) const {
    const int64_t tokens = written(b);
    const bool paged = of_.config.layout == Layout::kPaged;
    const bool over_heads = heads_ > 1 && (paged || tokens == 1);
    const int64_t inner = over_heads ? heads_ : tokens;
    while (first < end) {
      const int64_t outer = first / inner, at = first % inner;
      const int64_t token = given(b) - tokens + (over_heads ? outer : at);
      const int64_t head = over_heads ? at : outer;
      const Slot slot = slot_of(b, of_.lengths[static_cast<size_t>(b)] + token);
      int64_t count = std::min(end - first, inner - at);
      if (!over_heads) count = std::min(count, slot.following);
      // Rows are numbered (pages * page_size, heads), or (B, heads, capacity).
      const int64_t row = paged ? slot.index * heads_ + head
                                : (b * heads_ + head) * of_.config.capacity + slot.index;
      const int64_t step = over_heads && !paged ? of_.config.capacity : 1;
      for (const AppendedRows& rows : of_.rows) {
        const Dims& strides = rows.from.strides;
        const int64_t from =
            b * strides[0] + (of_.first_head + head) * strides[1] + token * strides[2];
        convert(rows, from, strides[over_heads ? 1 : 2], row, step, count);
      }
      first += count;
    }
  }

  struct Slot {
    int64_t index;
    int64_t following;  // number of positions, this one included, in adjacent slots
  };

  Slot slot_of(int64_t b, int64_t position) const {
    const KVCacheConfig& config = of_.config;
    if (config.layout == Layout::kContiguous) return {position, config.capacity - position};
    if (config.layout == Layout::kRing) {
      const int64_t slot = position % config.capacity;
      return {slot, config.capacity - slot};
    }
    const int64_t page = of_.page_table[b * pages_per_entry(config) + position / config.page_size];
    const int64_t in_page = position % config.page_size;
    return {page * config.page_size + in_page, config.page_size - in_page};
  }

  // Writes `count` rows: of the source from element `at` on, `stride` apart, to rows row, row +
  // step, ... of the cache.
  void convert(const AppendedRows& rows, int64_t at, int64_t stride, int64_t row, int64_t step,
               int64_t count) const {
    const DType from_type = rows.from.dtype, to_type = of_.config.type;
    cpu::convert_rows(
        {.from = static_cast<const std::byte*>(rows.from.data) + at * bytes_of(from_type),
         .from_type = from_type,
         .from_stride = stride,
         .to = rows.to.rows + row * rows.width * bytes_of(to_type),
         .to_type = to_type,
         .to_stride = step * rows.width,
         .scales = rows.to.scales == nullptr ? nullptr : rows.to.scales + row,
         .scale_stride = step,
         .rows = count,
         .width = rows.width});
  }

  const AppendedTokens& of_;
  int64_t heads_;
};

}  // namespace

void append_rows(const AppendedTokens& tokens, const Context* context) {
  const Appending appending(tokens);
  const int64_t rows = appending.rows();
  // A number counts as an operation: the second thread joins where one takes 50 us (f32) to 110 us
  // (int8) on Zen 4. For 1 million numbers two threads take 0.40 to 0.55 of the time of one.
  over_ranges(context, "append", appending.numbers() * static_cast<double>(rows), rows,
              [&](int64_t first, int64_t end) { appending.write(first, end); });
}

}  // namespace multihead::engine
