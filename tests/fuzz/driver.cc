// Runs a fuzz target on pseudo-random bytes if there is no libFuzzer. Supports the libFuzzer flags
// that the tests use (-runs, -seed, -max_len, -max_total_time) and -first, which libFuzzer lacks.
// Given a file, runs the target once on its bytes.
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#if defined(__SANITIZE_ADDRESS__)
#define MULTIHEAD_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MULTIHEAD_ADDRESS_SANITIZER
#endif
#endif
#ifdef MULTIHEAD_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

int64_t seed = 1, first = 0, run = 0, longest = 512;
const char* file = nullptr;

// Prints the arguments that repeat the current run.
void report() {
  if (file != nullptr) {
    std::fprintf(stderr, "with the bytes of %s\n", file);
  } else {
    std::fprintf(stderr, "with -seed=%lld -max_len=%lld -first=%lld -runs=1\n",
                 static_cast<long long>(seed), static_cast<long long>(longest),
                 static_cast<long long>(run));
  }
}

bool flag(const char* argument, const char* name, int64_t& value) {
  const size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0 || argument[length] != '=') return false;
  value = std::atoll(argument + length + 1);
  return true;
}

// Half of all bytes are small, so that sizes read from them are small.
std::vector<uint8_t> random_bytes(std::mt19937_64& random) {
  const auto most = static_cast<uint64_t>(longest) >> random() % 8;
  std::vector<uint8_t> bytes(random() % (most + 1));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> (random() % 2 == 0 ? 8 : 61));
  return bytes;
}

}  // namespace

int main(int count, char** arguments) {
  int64_t runs = -1, seconds = 0;
  std::vector<const char*> files;
  for (int i = 1; i < count; ++i) {
    const char* const argument = arguments[i];
    if (argument[0] != '-') {
      files.push_back(argument);
    } else if (!flag(argument, "-runs", runs) && !flag(argument, "-seed", seed) &&
               !flag(argument, "-first", first) && !flag(argument, "-max_len", longest) &&
               !flag(argument, "-max_total_time", seconds)) {
      std::fprintf(stderr, "%s: no such flag\n", argument);
      return 2;
    }
  }
#ifdef MULTIHEAD_ADDRESS_SANITIZER
  __sanitizer_set_death_callback(report);
#endif
  std::signal(SIGABRT, [](int) { report(); });

  for (const char* name : files) {
    file = name;
    std::ifstream stream(name, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  if (!files.empty()) return 0;
  const auto begun = std::chrono::steady_clock::now();
  const auto over = [&] {
    return seconds > 0 && std::chrono::steady_clock::now() - begun > std::chrono::seconds(seconds);
  };
  for (run = first; (runs < 0 || run < first + runs) && !over(); ++run) {
    std::seed_seq sequence{seed, run};
    std::mt19937_64 random(sequence);
    const std::vector<uint8_t> bytes = random_bytes(random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::fprintf(stderr, "%lld runs\n", static_cast<long long>(run - first));
  return 0;
}
