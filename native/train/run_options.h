// Options and errors that all commands of multihead-train share.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "engine/error/printable.h"
#include "exit_code.h"
#include "multihead/status.h"

namespace multihead::train {

// Options of every command. Paths are empty if not given.
struct RunOptions {
  int64_t steps = 0;
  int64_t batch = 0;
  uint64_t seed = 1;
  float learning_rate = 0.0F;
  std::string positions = "rope";
  int threads = 0;
  std::string checkpoint = {}, resume = {};
  int64_t checkpoint_every = 100;
  bool json = false;
  std::string csv = {}, chart = {};
  std::string input = {};              // training text
  std::string command_to_resume = {};  // shown to the user after an interruption
};

// Ends the program with a sentence on standard error. It may have names of files.
class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& sentence)
      : std::runtime_error(engine::printable(sentence, engine::kMostPartCharacters)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Throws a Failure if `status` is an error. The default exit code blames the arguments; kMemory
// changes it.
inline void check(const Status& status, ExitCode code = kExitUsage) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kMemory) code = kExitFailed;
  throw Failure(code, status.message());
}

}  // namespace multihead::train
