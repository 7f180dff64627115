// multihead-conformance DIR: runs every golden case of a folder and prints the failures.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>

#include "conformance.h"
#include "engine/error/printable.h"
#include "exit_code.h"

int main(int argc, char** argv) {
  using multihead::finished;
  constexpr const char* kUsage =
      "usage: multihead-conformance DIR\n"
      "DIR holds NAME.json and NAME.safetensors pairs (attention-conformance-1), or folders of "
      "models:\n"
      "config.json, weights, cases.json and expected.safetensors. It may be one such folder.\n"
      "Exit code: 0 if every case passed; 1 if one failed; 2 for wrong arguments; 3 if DIR cannot\n"
      "be read or the output cannot be written.\n";
  const std::string folder = argc > 1 ? argv[1] : "";
  if (folder == "--help" || folder == "-h") {
    std::fputs(kUsage, stdout);
    return finished(multihead::kExitOk);
  }
  if (argc != 2 || folder.starts_with("-")) {
    std::fprintf(stderr, "expected one folder, got %s\n%s",
                 argc < 2   ? "none"
                 : argc > 2 ? "several arguments"
                            : folder.c_str(),
                 kUsage);
    return multihead::kExitUsage;
  }
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  if (error) {
    std::fprintf(stderr, "%s: %s\n", multihead::engine::printable(folder).c_str(),
                 error.message().c_str());
    return multihead::kExitIo;
  }
  multihead::Context context;
  struct Count {
    int passed = 0, failed = 0;
    double worst = 0;
  };
  std::map<std::string, Count> files;
  Count total;
  for (const auto& result : multihead::conformance::run_folder(folder, context)) {
    Count& file = files[result.file];
    file.worst = std::max(file.worst, result.worst);
    if (result.passed()) {
      ++file.passed;
      ++total.passed;
    } else {
      ++file.failed;
      ++total.failed;
      std::printf("FAIL %s/%s: %s\n", result.file.c_str(), result.name.c_str(),
                  result.reason.c_str());
    }
  }
  for (const auto& [file, count] : files) {
    std::printf("%-12s %d passed, %d failed", file.c_str(), count.passed, count.failed);
    if (count.worst > 0) std::printf(", largest error %.2f of its tolerance", count.worst);
    std::printf("\n");
  }
  std::printf("native, %s\n%d passed, %d failed\n", multihead::simd_target(), total.passed,
              total.failed);
  return finished(total.failed == 0 ? multihead::kExitOk : multihead::kExitFailed);
}
