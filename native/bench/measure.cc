#include "measure.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "machine.h"
#include "machine_peak.h"
#include "timing.h"
#include "work.h"

namespace multihead::bench {
namespace {

// Length of a timed batch of calls. Short calls need batches, because one reading of the clock
// costs 20 to 50 ns.
constexpr double kBatchSeconds = 20e-6;
constexpr size_t kLeastSamples = 5;
constexpr double kMostSecondsForLeast = 3;
constexpr double kPeerSeconds = 0.15;
constexpr int kColdRuns = 3;
constexpr double kMostSecondsForCold = 0.5;

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

// A case being measured: its inputs, and the times collected so far.
class Session {
 public:
  Session(const Case& which, bool alone)
      : which_(which), alone_(alone), work_(make_work(which)), context_(which.threads) {
    // Cold: the new context has no plan and no scratch, and the caches are empty.
    do {
      Context fresh(which.threads);
      evict_caches();
      cold_.push_back(seconds_of([&] { run(fresh); }));
    } while (cold_.size() < kColdRuns && sum(cold_) < kMostSecondsForCold);
    const double warm = seconds_of([&] { run(context_); });
    batch_ = std::clamp<int64_t>(std::llround(kBatchSeconds / warm), 1, 1000);
    if (alone) return;
    for (Peer& peer : work_->peers()) {
      peers_.push_back({std::move(peer), std::vector<float>(work_->output().size())});
    }
  }

  int64_t batch() const { return batch_; }

  void sample() {
    warm_.push_back(seconds_of([&] {
                      for (int64_t call = 0; call < batch_; ++call) run(context_);
                    }) /
                    static_cast<double>(batch_));
  }

  // Peers alternate with multihead: each takes one sample before each batch of samples that Google
  // Benchmark requests, and more if there were few batches.
  void sample_peers() {
    for (TimedPeer& timed : peers_) {
      if (!timed.seconds.empty() && sum(timed.seconds) > kPeerSeconds) continue;
      timed.seconds.push_back(seconds_of([&] { timed.peer.run(timed.out.data()); }));
    }
  }

  void sample_the_least() {
    while (warm_.size() < kLeastSamples && sum(warm_) < kMostSecondsForLeast) {
      sample_peers();
      sample();
    }
  }

  void report(benchmark::UserCounters& counters) const {
    const double seconds = median(warm_), rate = 1 / seconds, threads = which_.threads;
    const double operations = work_->operations();
    counters["us"] = seconds * 1e6;
    counters["cold_us"] = median(cold_) * 1e6;
    counters["GFLOPS"] = operations * rate * 1e-9;
    if (work_->bytes() > 0) counters["GBps"] = work_->bytes() * rate * 1e-9;
    if (!alone_) {
      counters["pct_peak"] = 100 * operations * rate / (machine().fma_peak * threads);
    }
    if (!alone_ && work_->bytes() > 0) {
      const double stream = which_.threads > 1 ? machine().read_stream_all : machine().read_stream;
      counters["pct_stream"] = 100 * work_->bytes() * rate / stream;
    }
    counters["err"] = work_->error();
    counters["scratch_kB"] = static_cast<double>(context_.scratch_bytes()) / 1024;
    for (const TimedPeer& timed : peers_) report_peer(counters, timed);
  }

  std::string explanation() { return work_->explanation(); }

  void save(const std::string& folder) const {
    std::ofstream file(folder + "/" + stem_of(which_) + ".f32", std::ios::binary);
    const std::span<const char> bytes(reinterpret_cast<const char*>(work_->output().data()),
                                      work_->output().size_bytes());
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) throw std::runtime_error("--save: cannot write into " + folder);
  }

 private:
  void run(Context& context) {
    const Status status = work_->run(context);
    if (!status.ok()) throw std::runtime_error(status.message());
    benchmark::ClobberMemory();
  }

  struct TimedPeer {
    Peer peer;
    std::vector<float> out;
    std::vector<double> seconds = {};
  };

  void report_peer(benchmark::UserCounters& counters, const TimedPeer& timed) const {
    const std::string name = timed.peer.name;
    const double seconds = median(timed.seconds);
    counters[name + "_us"] = seconds * 1e6;
    counters[name + "_GFLOPS"] = work_->operations() / seconds * 1e-9;
    counters[name + "_ratio"] = seconds / median(warm_);
    counters[name + "_diff"] = largest_difference(work_->output(), timed.out);
  }

  static double largest_difference(std::span<const float> a, std::span<const float> b) {
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    }
    return largest;
  }

  Case which_;
  bool alone_;
  std::unique_ptr<Work> work_;
  Context context_;
  int64_t batch_ = 1;
  std::vector<double> cold_, warm_;
  std::vector<TimedPeer> peers_;
};

}  // namespace

std::unique_ptr<Work> make_work(const Case& which) {
  if (which.shape.sequences > 0) return make_varlen(which);
  switch (which.op) {
    case Op::kBackward:
      return make_backward(which);
    case Op::kCache:
      return make_cache(which);
    case Op::kAppend:
      return make_append(which);
    case Op::kMerge:
      return make_merge(which);
    case Op::kModule:
      return make_module(which);
    case Op::kTrain:
      return make_train(which);
    case Op::kStep:
      return make_step(which);
    case Op::kGemm:
      return make_gemm(which);
    case Op::kLinear:
      return make_linear(which);
    case Op::kForward:
    case Op::kDecode:
      break;
  }
  return make_attention(which);
}

std::string stem_of(const Case& which) {
  std::string name = which.name();
  std::replace(name.begin(), name.end(), '/', '-');
  return name;
}

bool run_case(benchmark::State& state, const Case& which, const RunOptions& options) {
  static std::unique_ptr<Session> session;  // one at a time, because of memory
  static std::string name;
  try {
    if (name != which.name()) {
      session.reset();
      session = std::make_unique<Session>(which, options.alone);
      name = which.name();
    }
    session->sample_peers();
    while (state.KeepRunningBatch(session->batch())) session->sample();
    session->sample_the_least();
    session->report(state.counters);
    if (options.explain) state.SetLabel(session->explanation());
    if (!options.save_to.empty()) session->save(options.save_to);
    return true;
  } catch (const std::exception& error) {
    name.clear();
    state.SkipWithError(error.what());
    return false;
  }
}

}  // namespace multihead::bench
