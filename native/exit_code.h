// What the command-line programs end with.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace multihead {

enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,  // a case failed, or there is no memory for what was asked for
  kExitUsage = 2,   // arguments that make no sense; nothing was done
  kExitIo = 3,      // a file cannot be read, or what was printed cannot be written
};

// `code`, or kExitIo where standard output has lost something: on a full disk, that shows when the
// last of it is written.
inline int finished(int code) {
  const bool had_failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !had_failed) return code;
  std::fprintf(stderr, "standard output: cannot be written (%s)\n", std::strerror(errno));
  return kExitIo;
}

}  // namespace multihead
