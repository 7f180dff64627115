// Helpers of the fuzz targets: numbers from a fuzzer's bytes, and a check that ends the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "multihead/status.h"

// libFuzzer reports a failure when the program ends.
#define FUZZ_CHECK(condition, ...)                                                  \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                            \
      std::fputc('\n', stderr);                                                     \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

namespace multihead::fuzz {

// A source of numbers; returns zeros after the last byte.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  size_t left() const { return left_; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // Returns a number in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    const auto range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
    uint64_t value = byte();
    if (range == 0 || range > 256) {
      for (int i = 1; i < 8; ++i) value = value << 8U | byte();
    }
    return static_cast<int64_t>(static_cast<uint64_t>(low) + (range == 0 ? value : value % range));
  }
  // True once in `count` times; false after the last byte.
  bool one_in(int count) { return byte() % count == count - 1; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + integer(0, static_cast<int64_t>(values.size()) - 1));
  }
  // Returns a number in [-1, 1]; one in 64 is a special value.
  float number() {
    const uint8_t value = byte();
    if (value >= 252) return special();
    return (static_cast<float>(value) - 126.0F) / 126.0F;
  }
  // Returns any float, for options.
  float special() {
    const auto bits = static_cast<uint32_t>(integer(0, UINT32_MAX));
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Every error must state the expected and the given value. The argument may be empty, because
// tensors in a state dict may have an empty name.
inline void check_words(const Status& status) {
  if (status.ok()) return;
  FUZZ_CHECK(!status.expected().empty(), "%s", status.message().c_str());
  FUZZ_CHECK(!status.got().empty(), "%s", status.message().c_str());
}

}  // namespace multihead::fuzz
