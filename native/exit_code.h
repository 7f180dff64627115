// The exit codes of the command-line programs.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace multihead {

enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,         // a case failed, or memory is exhausted
  kExitUsage = 2,          // invalid arguments; nothing was done
  kExitIo = 3,             // a file cannot be read, or standard output cannot be written
  kExitInterrupted = 130,  // Ctrl-C: the code that a shell reports
};

// Returns `code`, or kExitIo if standard output could not be written. On a full disk only the final
// flush fails.
inline int finished(int code) {
  const bool had_failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !had_failed) return code;
  std::fprintf(stderr, "standard output: cannot be written (%s)\n", std::strerror(errno));
  return kExitIo;
}

}  // namespace multihead
