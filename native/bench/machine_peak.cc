#include "machine_peak.h"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machine_peak.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"
#include "timing.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Independent chains: two FMA units with a latency of 4 need 8, and 16 registers have no room for
// more than 12. Processors of ARM64 have up to four units.
constexpr size_t kChains = HWY_ARCH_ARM_A64 ? 24 : 12;

// Returns the number of operations. Writes to `sink`, so that the compiler cannot remove the
// operations.
HWY_NOINLINE double fma_chains(size_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, sink[0]);
  const auto added = hn::Set(d, sink[1]);
  hn::Vec<decltype(d)> chain[kChains];
  for (size_t i = 0; i < kChains; ++i) chain[i] = hn::Set(d, static_cast<float>(i));
  for (size_t round = 0; round < rounds; ++round) {
    // The chain is the addend: on ARM64, where the instruction overwrites it, any other operand
    // would need a copy.
    for (size_t i = 0; i < kChains; ++i) chain[i] = mul_add(factor, added, chain[i]);
  }
  for (size_t i = 0; i < kChains; ++i) hn::StoreU(chain[i], d, sink + 2 + i * hn::Lanes(d));
  return static_cast<double>(rounds * kChains * 2 * hn::Lanes(d));
}

HWY_NOINLINE float sum_of_memory(const float* HWY_RESTRICT data, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (size_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(d, data + i));
    s1 = hn::Add(s1, hn::LoadU(d, data + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, data + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, data + i + 3 * lanes));
  }
  return hn::ReduceSum(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {
HWY_EXPORT(fma_chains);
HWY_EXPORT(sum_of_memory);
}  // namespace multihead::cpu

namespace multihead::bench {
namespace {

// Exceeds the last-level cache of most machines. On a server with a larger cache, reading the
// second half still evicts most of the benchmark's data.
const std::vector<float>& large_memory() {
  static const std::vector<float> memory((size_t{512} << 20) / sizeof(float), 1.0F);
  return memory;
}

void read(const float* data, size_t count) {
  using namespace multihead::cpu;  // NOLINT(google-build-using-namespace): HWY_EXPORT's table
  volatile float kept = 0;
  kept = kept + HWY_DYNAMIC_DISPATCH(sum_of_memory)(data, count);
}

template <class Work>
void on_threads(int threads, const Work& work) {
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) {
    others.emplace_back(work, static_cast<size_t>(thread));
  }
  work(size_t{0});
  for (std::thread& other : others) other.join();
}

}  // namespace

double measure_fma_peak() {
  using namespace multihead::cpu;  // NOLINT(google-build-using-namespace): HWY_EXPORT's table
  std::vector<float> sink(2 + 24 * 64);
  double best = 0;
  for (int run = 0; run < 12; ++run) {
    sink[0] = 0.999F;
    sink[1] = 0.001F;
    const auto start = Clock::now();
    const double operations = HWY_DYNAMIC_DISPATCH(fma_chains)(2'000'000, sink.data());
    best = std::max(best, operations / seconds_since(start));
  }
  return best;
}

double measure_read_stream(int threads) {
  const std::vector<float>& data = large_memory();
  const size_t share = data.size() / static_cast<size_t>(threads);
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const auto start = Clock::now();
    on_threads(threads, [&](size_t thread) { read(data.data() + thread * share, share); });
    const auto bytes = static_cast<double>(share * static_cast<size_t>(threads) * sizeof(float));
    best = std::max(best, bytes / seconds_since(start));
  }
  return best;
}

void evict_caches() { read(large_memory().data(), large_memory().size()); }

}  // namespace multihead::bench
#endif  // HWY_ONCE
