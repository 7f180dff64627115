#include "machine.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "cpu/target.h"
#include "hwy/highway.h"
#include "hwy/targets.h"
#include "machine_peak.h"
#include "multihead/context.h"

namespace multihead::bench {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Bits of the supported targets. Lower bits are better targets.
std::vector<int64_t> target_bits() {
  std::vector<int64_t> bits;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    bits.push_back(left & -left);
  }
  return bits;
}

}  // namespace

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (const int64_t target : target_bits()) names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string processor() {
#if defined(__APPLE__)
  char name[128];
  size_t size = sizeof(name);
  return sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) == 0 ? name : "";
#else
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  const char* const name = std::getenv("PROCESSOR_IDENTIFIER");  // of Windows
  return name == nullptr ? "" : name;
#endif
}

bool use_simd_target(const std::string& name) {
  const std::string wanted = lower(name);
  for (const int64_t target : target_bits()) {
    const std::string found = lower(hwy::TargetName(target));
    if (found == wanted || (wanted == "avx512" && found.starts_with("avx3"))) {
      // Highway's own tests use this function: dispatch tables ask SupportedTargets().
      hwy::SetSupportedTargetsForTest(target);
      return true;
    }
  }
  return false;
}

bool use_processor(const std::string& name) {
  static constexpr cpu::ProcessorFamily kIntel = cpu::ProcessorFamily::kIntel;
  static constexpr cpu::ProcessorFamily kOther = cpu::ProcessorFamily::kOther;
  const std::string wanted = lower(name);
  if (wanted != "intel" && wanted != "other") return false;
  cpu::replace_processor_family(wanted == "intel" ? &kIntel : &kOther);
  return true;
}

bool use_l2(const std::string& size) {
  const int64_t bytes = cpu::bytes_of_size(size);
  cpu::replace_l2_cache_bytes(bytes);
  return bytes != 0;
}

const Machine& machine() {
  static const Machine measured = [] {
    const int threads = Context().threads();
    const double one = measure_read_stream(1);
    return Machine{measure_fma_peak(), one, threads > 1 ? measure_read_stream(threads) : one,
                   threads};
  }();
  return measured;
}

}  // namespace multihead::bench
