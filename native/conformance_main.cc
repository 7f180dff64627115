// multihead-conformance DIR: runs every golden case of a folder and prints what failed.
#include <cstdio>
#include <map>
#include <string>

#include "conformance.h"

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  const bool asked = first == "--help" || first == "-h";
  if (asked || argc != 2) {
    std::fputs(
        "usage: multihead-conformance DIR\n"
        "DIR holds NAME.json and NAME.safetensors pairs (attention-conformance-1).\n",
        asked ? stdout : stderr);
    return asked ? 0 : 2;
  }
  multihead::Context context;
  struct Count {
    int passed = 0, failed = 0;
  };
  std::map<std::string, Count> files;
  Count total;
  for (const auto& result : multihead::conformance::run_folder(argv[1], context)) {
    Count& file = files[result.file];
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
    std::printf("%-12s %d passed, %d failed\n", file.c_str(), count.passed, count.failed);
  }
  if (total.passed + total.failed == 0) {
    std::fprintf(stderr, "%s: no cases\n", argv[1]);
    return 1;
  }
  std::printf("native, %s\n%d passed, %d failed\n", multihead::simd_target(), total.passed,
              total.failed);
  return total.failed == 0 ? 0 : 1;
}
