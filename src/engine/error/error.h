// Errors as data. An error is a code, an argument, a message (both from messages.inc) and numbers.
// Its sentences are made only on request, by messages.cc or bindings/src/runtime/messages.ts.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#if defined(__cpp_exceptions)
#include <new>
#include <stdexcept>
#endif

#include "multihead/status.h"
#include "multihead/tensor.h"
#include "rules/shared.h"

// Returns the error of a Status expression from the calling function; goes on if there is none.
#define MULTIHEAD_TRY(...)                                                    \
  do {                                                                        \
    if (::multihead::Status tried = (__VA_ARGS__); !tried.ok()) return tried; \
  } while (false)

namespace multihead::engine {

enum class Name : uint8_t {
#define MULTIHEAD_NAME(name, cpp, javascript) name,
#include "engine/error/messages.inc"
};

enum class Axes : uint8_t {
#define MULTIHEAD_AXES(name, text) name,
#include "engine/error/messages.inc"
};

enum class Message : uint8_t {
#define MULTIHEAD_MESSAGE(name, ...) name,
#include "engine/error/messages.inc"
};

// The numbers fill in {0} to {3} of the message.
MULTIHEAD_SHARED Status option_error(Name argument, Message message, int64_t first = 0,
                                     int64_t second = 0, int64_t third = 0, int64_t fourth = 0);
// `real` fills in {real}, `first` {0}.
Status real_error(Name argument, Message message, double real, int64_t first = 0);

MULTIHEAD_SHARED Status shape_error(Name argument, Message message, int64_t first = 0,
                                    int64_t second = 0, int64_t third = 0);
// `given` fills in {given}.
Status shape_error(Name argument, Message message, const Dims& given, int64_t first = 0,
                   int64_t second = 0);
// `axes`, `shape` and `given` fill in {axes}, {shape} and {given}.
MULTIHEAD_SHARED Status shape_error(Name argument, Message message, Axes axes, const Dims& shape,
                                    const Dims& given, int64_t first = 0, int64_t second = 0,
                                    int64_t third = 0);

// `text` fills in {text}, after it was made printable. It may be a list of names: shorten long
// names before the call.
Status text_error(StatusCode code, Name argument, Message message, std::string_view text,
                  int64_t first = 0);

// Returns the error with argument `to` if its argument is `from`.
Status renamed(const Status& status, Name from, Name to);

// Returns kOption if `value` is not one of the enumerators 0 .. `last`, which have no gaps.
template <class Enum>
Status validate_enumerator(Name argument, Enum value, Enum last) {
  static_assert(std::is_unsigned_v<std::underlying_type_t<Enum>>);
  if (value <= last) return {};
  return option_error(argument, Message::kEnumerator, static_cast<int>(last) + 1,
                      static_cast<int>(value));
}

// Runs the work of a public call, which returns a Status; a failed allocation in it gives kMemory,
// even if the standard library throws. If `work` throws,
// it must have left every object unchanged. In a build without exceptions (WebAssembly) a failed
// operator new ends the program before this.
template <class Work>
Status memory_guard(Work&& work) {
#if defined(__cpp_exceptions)
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory();
  } catch (const std::length_error&) {  // a container exceeded its max_size()
    return Status::out_of_memory();
  }
#else
  return std::forward<Work>(work)();
#endif
}

}  // namespace multihead::engine

namespace multihead {

// Every room makes errors of these.
using engine::Axes;
using engine::Message;
using engine::Name;
using engine::option_error;
using engine::real_error;
using engine::shape_error;

struct Status::Record {
  StatusCode code = StatusCode::kOk;
  engine::Message message{};
  engine::Name argument{};
  engine::Axes axes{};
  std::array<int64_t, 4> numbers{};
  double real = 0;
  Dims shape, given;
  std::string text;
  // Argument and expectation in the caller's words, for Message::kWords; `text` has the third part.
  std::string own_argument, own_expected;
  std::atomic<uint32_t> uses = 1;
};

}  // namespace multihead
