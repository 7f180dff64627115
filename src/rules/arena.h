// Divides one block of memory into arrays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "rules/integers.h"

namespace multihead::rules {

// Lays out arrays in one block of memory; each array begins at a new cache line. Lay out everything
// twice: first without memory, which gives null arrays and the size, then with bytes() bytes of
// memory. Sizes are 64-bit and saturate, so that allocate() refuses sizes that would overflow.
class Arena {
 public:
  static constexpr uint64_t kAlignment = 64;

  explicit Arena(void* memory) : base_(static_cast<std::byte*>(memory)) {}

  template <class T>
  void operator()(T*& array, uint64_t count) {
    array = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    const uint64_t bytes = count > kMost / sizeof(T) ? kMost : count * sizeof(T);
    used_ = std::min(used_ + bytes, kMost);
    bytes_ = std::min(round_up(bytes_ + bytes, kAlignment), kMost);
  }

  uint64_t bytes() const { return bytes_; }
  // Returns the number of bytes without the gaps between arrays.
  uint64_t used() const { return used_; }

 private:
  static constexpr uint64_t kMost = uint64_t{1} << 61;  // more than the memory of any machine

  std::byte* base_;
  uint64_t bytes_ = 0, used_ = 0;
};

}  // namespace multihead::rules
