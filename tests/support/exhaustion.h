// A call while memory fails at its n-th request, for every n.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>

#include "multihead/status.h"

namespace multihead::testing {

// A call on objects of its own.
struct Attempt {
  std::function<Status()> call;
  // What it gives: the same bits whenever it succeeds.
  std::function<std::string()> result;
  // What it leaves as it is where it fails. Optional.
  std::function<std::string()> state = {};
};

// For every n, once with only the n-th request failing and once with all from there on: a call on
// fresh objects either succeeds or is kMemory, and then the state is what it was, and the same call
// again gives the right bits.
void expect_survives_exhaustion(const char* name, const std::function<Attempt()>& make);

// The same of a call that is refused: with its own error, or kMemory.
void expect_refusal_survives_exhaustion(const char* name, const std::function<Status()>& call);

// The bytes of numbers, which are compared as such: NaN equals itself.
template <class T>
std::string bits_of(const T& values) {
  const size_t bytes = values.size() * sizeof(*values.data());
  std::string bits(bytes, '\0');
  if (bytes > 0) std::memcpy(bits.data(), values.data(), bytes);
  return bits;
}

}  // namespace multihead::testing
