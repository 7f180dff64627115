/// \file
/// Errors are returned values: every function that can refuse its input returns a Status, and a
/// refused call has written nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// What kind of error a Status is.
enum class StatusCode : uint8_t {
  kOk = 0,      ///< no error
  kShape = 1,   ///< a tensor's rank, shape or strides do not fit the call
  kOption = 2,  ///< an option has a value outside its definition, or contradicts another
  kMemory = 3,  ///< scratch or result memory could not be had
  kFormat = 4,  ///< a file or buffer is not what its format says
  /// another process did not answer in time, or left (multihead/distributed.h)
  kExchange = 5,
  kDevice = 6,  ///< a GPU cannot be used, or CUDA reported an error (multihead/cuda.h)
};

/// Names the argument, what was expected and what came, so that a caller can print one sentence
/// (`message()`) or build an error object from the parts. Success is a null pointer. An error
/// points to a record of numbers; the sentences are made on request.
class [[nodiscard]] MULTIHEAD_TRIVIAL_ABI Status {
 public:
  /// No error.
  Status() noexcept = default;
  /// An error in words of the caller's own. Each part is shortened to 4096 characters. Control
  /// characters, bidirectional controls and invalid UTF-8 in it become escapes such as "\u202e".
  Status(StatusCode code, std::string_view argument, std::string_view expected,
         std::string_view got);
  /// Copies share the record.
  Status(const Status& other) noexcept : record_(other.record_) {
    if (record_ != nullptr) share();
  }
  /// The other becomes a success.
  Status(Status&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  /// Takes the error over.
  Status& operator=(Status other) noexcept {
    std::swap(record_, other.record_);
    return *this;
  }
  ~Status() {
    if (record_ != nullptr) release();
  }

  /// No error.
  static Status ok_status() noexcept { return {}; }

  /// kMemory: `bytes` could not be allocated; 0 where the number is not known. The first such error
  /// at a time allocates nothing.
  static Status out_of_memory(uint64_t bytes = 0) noexcept;

  /// Whether this is no error.
  bool ok() const noexcept { return record_ == nullptr; }
  /// The kind of error; kOk if there is none.
  StatusCode code() const noexcept;

  /// Name of the argument that was refused; empty when ok.
  std::string argument() const;
  /// What that argument should have been; empty when ok.
  std::string expected() const;
  /// What came instead; empty when ok.
  std::string got() const;
  /// One sentence of the three, empty when ok: "k: expected (B, H_kv, N_k, 64), got (1, 2, 8, 32)"
  std::string message() const;

  struct Record;
  /// Null when ok. For the library itself, and for bindings that make sentences of their own.
  const Record* record() const noexcept { return record_; }
  /// Takes over a record that nobody else has.
  explicit Status(Record* record) noexcept : record_(record) {}

 private:
  void share() const noexcept;
  void release() noexcept;

  Record* record_ = nullptr;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
