#include "cpu/target.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

#if defined(__linux__)
#include <fstream>
#elif defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#elif defined(_WIN32)
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>

#include <vector>
#endif

namespace multihead::cpu {
namespace {

constexpr int64_t kSmallestL2 = int64_t{64} << 10;

// Returns 0 if the size is not known.
int64_t ask_system() {
#if defined(__linux__)
  // sysconf(_SC_LEVEL2_CACHE_SIZE) is 0 on ARM64.
  const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index";
  for (char index = '0'; index < '8'; ++index) {
    std::string level, size;
    std::ifstream(cache + index + "/level") >> level;
    std::ifstream(cache + index + "/size") >> size;
    if (level == "2") return bytes_of_size(size);
  }
#elif defined(__APPLE__)
  // The performance cores' where there are two kinds of cores.
  for (const char* const name : {"hw.perflevel0.l2cachesize", "hw.l2cachesize"}) {
    int64_t bytes = 0;
    size_t length = sizeof(bytes);
    if (sysctlbyname(name, &bytes, &length, nullptr, 0) == 0 && bytes > 0) return bytes;
  }
#elif defined(_WIN32)
  DWORD length = 0;
  GetLogicalProcessorInformation(nullptr, &length);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> parts(length / sizeof(parts[0]));
  if (!parts.empty() && GetLogicalProcessorInformation(parts.data(), &length) != 0) {
    for (const auto& part : parts) {
      if (part.Relationship == RelationCache && part.Cache.Level == 2) return part.Cache.Size;
    }
  }
#endif
  return 0;
}

std::atomic<int64_t> l2_instead = 0;

}  // namespace

int64_t bytes_of_size(const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number < 0) return 0;
  const std::string unit(rest, end);
  constexpr int64_t kMost = int64_t{1} << 40;  // of any unit
  if (number > kMost) return 0;
  return unit == "K" ? number << 10 : unit == "M" ? number << 20 : unit.empty() ? number : 0;
}

int64_t l2_cache_bytes() {
  static const int64_t own = [] {
    const int64_t asked = ask_system();
    return asked == 0 ? kLargestL2 : std::clamp(asked, kSmallestL2, kLargestL2);
  }();
  const int64_t other = l2_instead.load();
  return other == 0 ? own : std::clamp(other, kSmallestL2, kLargestL2);
}

void replace_l2_cache_bytes(int64_t bytes) { l2_instead.store(bytes); }

}  // namespace multihead::cpu
