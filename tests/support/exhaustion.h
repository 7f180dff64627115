// Tests a call while its n-th memory request fails, for every n.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>

#include "multihead/state_dict.h"
#include "multihead/status.h"

namespace multihead::testing {

// A call with its own objects.
struct Attempt {
  std::function<Status()> call;
  // Returns the result, which must have the same bits after every success.
  std::function<std::string()> result;
  // Optional: returns the state that a failed call must not change.
  std::function<std::string()> state = {};
  // True if the call, made again with the same context, allocates nothing.
  bool repeats_without_memory = false;
};

// Makes the call on new objects twice for every n: with only the n-th request failing, and with all
// requests from the n-th on failing. The call must succeed or return kMemory. After kMemory the
// state must be unchanged, and the same call must then give the right bits. A call that repeats
// without memory is also made again while every request fails.
void expect_survives_exhaustion(const char* name, const std::function<Attempt()>& make);

// Makes a call with invalid arguments in the same way: it must return its own error, or kMemory.
void expect_refusal_survives_exhaustion(const char* name, const std::function<Status()>& call);

// Returns the bytes of numbers, for comparisons in which NaN equals itself.
template <class T>
std::string bits_of(const T& values) {
  const size_t bytes = values.size() * sizeof(*values.data());
  std::string bits(bytes, '\0');
  if (bytes > 0) std::memcpy(bits.data(), values.data(), bytes);
  return bits;
}

// Returns the names, shapes and numbers of a state dict.
std::string bits_of_dict(const StateDict& dict);

}  // namespace multihead::testing
