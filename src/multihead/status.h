// Errors are returned values: every function that can refuse its input returns
// a Status, and a refused call has written nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

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
// Success holds none of these and allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string argument, std::string expected, std::string got)
      : code_(code),
        parts_(std::make_shared<const Parts>(
            Parts{std::move(argument), std::move(expected), std::move(got)})) {}

  static Status ok_status() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& argument() const { return parts().argument; }
  const std::string& expected() const { return parts().expected; }
  const std::string& got() const { return parts().got; }

  // "k: expected (B, H_kv, N_k, 64), got (1, 2, 8, 32)"; empty when ok.
  std::string message() const {
    if (ok()) return {};
    return argument() + ": expected " + expected() + ", got " + got();
  }

 private:
  struct Parts {
    std::string argument, expected, got;
  };
  const Parts& parts() const {
    static const Parts none;
    return parts_ == nullptr ? none : *parts_;
  }

  StatusCode code_ = StatusCode::kOk;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace multihead
