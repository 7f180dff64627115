// Errors are returned values: every function that can refuse its input returns
// a Status, and a refused call has written nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

enum class StatusCode : uint8_t {
  kOk = 0,
  kShape = 1,   // a tensor's rank, shape or strides do not fit the call
  kOption = 2,  // an option has a value outside its definition, or contradicts another
  kMemory = 3,  // scratch or result memory could not be had
  kFormat = 4,  // a file or buffer is not what its format says
};

// Names the argument, what was expected and what came, so that a caller can
// print one sentence (`message()`) or build an error object from the parts.
// Success allocates nothing, and neither does out_of_memory().
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string argument, std::string expected, std::string got)
      : code_(code),
        parts_(std::make_shared<const Parts>(
            Parts{std::move(argument), std::move(expected), std::move(got)})) {}

  static Status ok_status() { return {}; }

  // kMemory: `bytes` could not be allocated; 0 where the number is not known.
  static Status out_of_memory(uint64_t bytes = 0) noexcept {
    Status status;
    status.code_ = StatusCode::kMemory;
    status.bytes_ = bytes;
    return status;
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  std::string argument() const {
    if (parts_ != nullptr) return parts_->argument;
    return ok() ? "" : "memory";
  }
  std::string expected() const { return without_marks(marked_expected()); }
  std::string got() const { return without_marks(marked_got()); }

  // The same with the names of arguments, options and functions in braces, "{num_heads} = 8", for
  // an interface in another language, which spells them its own way.
  std::string marked_expected() const {
    if (parts_ != nullptr) return parts_->expected;
    if (ok()) return {};
    return bytes_ == 0 ? "as much as the call needs" : std::to_string(bytes_) + " bytes";
  }
  std::string marked_got() const {
    if (parts_ != nullptr) return parts_->got;
    return ok() ? "" : "none left to allocate";
  }

  // "k: expected (B, H_kv, N_k, 64), got (1, 2, 8, 32)"; empty when ok.
  std::string message() const {
    if (ok()) return {};
    return argument() + ": expected " + expected() + ", got " + got();
  }

 private:
  struct Parts {
    std::string argument, expected, got;
  };

  // Other braces stay: a name that a caller made up may hold some.
  static std::string without_marks(const std::string& text) {
    std::string plain;
    for (size_t at = 0; at < text.size(); ++at) {
      const size_t end =
          text[at] == '{' ? text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.", at + 1) : at;
      if (end > at + 1 && end < text.size() && text[end] == '}') {
        plain.append(text, at + 1, end - at - 1);
        at = end;
      } else {
        plain += text[at];
      }
    }
    return plain;
  }

  StatusCode code_ = StatusCode::kOk;
  uint64_t bytes_ = 0;                  // of a kMemory status without parts
  std::shared_ptr<const Parts> parts_;  // null when ok, and for out_of_memory()
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
