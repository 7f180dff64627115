// Prefetches rows, a few cache lines at a time.
#if defined(MULTIHEAD_CPU_ATTENTION_BLOCK_PREFETCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BLOCK_PREFETCH_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BLOCK_PREFETCH_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BLOCK_PREFETCH_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kCacheLine = 64;

// Prefetches into the second-level cache. The number of outstanding prefetches is then limited by
// memory, not by the few misses that the first-level cache can have in flight.
HWY_INLINE void prefetch(const char* at) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  __builtin_prefetch(at, 0, 2);
#else
  hwy::Prefetch(at);
#endif
}

// Prefetches listed rows in the order of memory. Hardware prefetchers fail if prefetches or loads
// jump between rows (alternating between four rows: 10 GB/s instead of 26).
class PrefetchedList {
 public:
  // The list must have one entry after the last prefetched row. If `rows` is null, nothing is
  // prefetched.
  HWY_INLINE PrefetchedList(const char* const* rows, size_t row_bytes)
      : rows_(rows), bytes_(row_bytes), row_(rows == nullptr ? nullptr : *rows) {}

  template <size_t kLines>
  HWY_INLINE void ask() {
    if (!kPrefetches || row_ == nullptr) return;
    for (size_t i = 0; i < kLines; ++i) prefetch(row_ + at_ + i * kCacheLine);
    at_ += kLines * kCacheLine;
    if (at_ < bytes_) return;
    at_ = 0;
    row_ = *++rows_;
  }

 private:
  const char* const* rows_;
  size_t bytes_, at_ = 0;
  const char* row_;
};

// Rows that will be needed later. Each ask(), called between tiles, prefetches a few of their cache
// lines: prefetching all lines at once would make the prefetches wait for each other, and the
// products for the prefetches.
class PrefetchedRows {
 public:
  // Rows first .. last - 1 of `group` heads, beginning with head `head`. Rows are ordered by query,
  // then by head, see AttentionParams::group().
  struct Part {
    int64_t batch, head, group, first, last, width;
  };

  void add(const StoredRows& stored, const Part& part) {
    if (stored.data == nullptr || !stored.in_order()) return;
    if (part.first >= part.last || part.width == 0) return;
    const int64_t unit = bytes_of(stored.type);
    Rows rows{.data = static_cast<const char*>(stored.data) +
                      row_offset(stored.stride, part.batch, part.head, 0) * unit,
              .head_stride = stored.stride[1] * unit,
              .query_stride = stored.stride[2] * unit,
              .group = part.group,
              .next = part.first,
              .last = part.last,
              .bytes = static_cast<size_t>(part.width * unit)};
    if (part.group == 1 && stored.stride[2] == part.width) {
      // Treat adjacent rows without gaps as one long row.
      rows.data += part.first * rows.query_stride;
      rows.bytes *= static_cast<size_t>(part.last - part.first);
      rows.next = 0;
      rows.last = 1;
    }
    lines_ += static_cast<size_t>(rows.last - rows.next) * ceil_div(rows.bytes, kCacheLine);
    rows_[count_++] = rows;
  }

  size_t lines() const { return lines_; }

  HWY_INLINE void ask(size_t lines) {
    while (lines > 0 && done_ < count_) {
      Rows& rows = rows_[done_];
      if (offset_ == 0) row_ = rows.at(rows.next);
      for (; lines > 0 && offset_ < rows.bytes; --lines, offset_ += kCacheLine) {
        prefetch(row_ + offset_);
      }
      if (offset_ < rows.bytes) return;
      offset_ = 0;
      if (++rows.next == rows.last) ++done_;
    }
  }

 private:
  struct Rows {
    const char* data;
    int64_t head_stride, query_stride;  // in bytes
    int64_t group, next, last;
    size_t bytes;

    const char* at(int64_t row) const {
      return data + row % group * head_stride + row / group * query_stride;
    }
  };

  std::array<Rows, 4> rows_;
  size_t count_ = 0, done_ = 0, offset_ = 0, lines_ = 0;
  const char* row_ = nullptr;
};

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_PREFETCH_INL_H_
