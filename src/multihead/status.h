/// \file
/// Errors are returned as values: every function that can refuse its input returns a Status. A
/// refused call writes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Kinds of errors.
enum class StatusCode : uint8_t {
  kOk = 0,      ///< no error
  kShape = 1,   ///< a tensor's rank, shape or strides do not fit the call
  kOption = 2,  ///< an option has a value outside its definition, or contradicts another
  kMemory = 3,  ///< scratch or result memory could not be allocated
  kFormat = 4,  ///< a file or buffer does not have its format
  /// another process did not answer in time, or left (multihead/distributed.h)
  kExchange = 5,
  kDevice = 6,  ///< a GPU cannot be used, or CUDA reported an error (multihead/cuda.h)
  /// the caller's callback ended the call (multihead/models.h, ContextOptions::cancelled); a call
  /// that was ended may have written some of its outputs
  kAborted = 7,
};

/// An error names the argument, the expected value and the actual value, so that a caller can print
/// one sentence (`message()`) or build an error object from the parts. Success is a null pointer.
/// An error points to a record of numbers; the sentences are created on request.
class [[nodiscard]] MULTIHEAD_TRIVIAL_ABI Status {
 public:
  /// No error.
  Status() noexcept = default;
  /// An error with the caller's own text. Each part is shortened to 4096 characters. Control
  /// characters, bidirectional controls and invalid UTF-8 become escapes such as "\u202e".
  Status(StatusCode code, std::string_view argument, std::string_view expected,
         std::string_view got);
  /// Copies share the record.
  Status(const Status& other) noexcept : record_(other.record_) {
    if (record_ != nullptr) share();
  }
  /// `other` becomes a success.
  Status(Status&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  /// Takes over the error.
  Status& operator=(Status other) noexcept {
    std::swap(record_, other.record_);
    return *this;
  }
  ~Status() {
    if (record_ != nullptr) release();
  }

  /// No error.
  static Status ok_status() noexcept { return {}; }

  /// kMemory: `bytes` could not be allocated; 0 if the number is not known. Allocates nothing
  /// itself, unless another such error still exists.
  static Status out_of_memory(uint64_t bytes = 0) noexcept;

  /// True if there is no error.
  bool ok() const noexcept { return record_ == nullptr; }
  /// The kind of error; kOk if there is none.
  StatusCode code() const noexcept;

  /// Name of the refused argument; empty when ok.
  std::string argument() const;
  /// Expected value of the argument; empty when ok.
  std::string expected() const;
  /// Actual value of the argument; empty when ok.
  std::string got() const;
  /// One sentence from the three parts; empty when ok: "k: expected (B, H_kv, N_k, 64), got (1, 2,
  /// 8, 32)"
  std::string message() const;

  struct Record;
  /// Null when ok. For the library itself, and for bindings that build their own sentences.
  const Record* record() const noexcept { return record_; }
  /// Takes over a record that has no other owner.
  explicit Status(Record* record) noexcept : record_(record) {}

 private:
  void share() const noexcept;
  void release() noexcept;

  Record* record_ = nullptr;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
