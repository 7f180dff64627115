#include "device_measure.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"
#include "device_work.h"
#include "timing.h"

namespace multihead::bench {
namespace {

// Length of a timed batch of calls. Short calls need batches: events are only precise to about a
// microsecond, and a launch's latency may pass between the first event and the kernel.
constexpr double kBatchSeconds = 1e-3;
constexpr int kWarmUpCalls = 5;
// Calls up to this time are measured as a graph too: the host takes about 5 µs to enqueue a call,
// which may be longer than its kernels take.
constexpr double kShortSeconds = 1e-4;
constexpr size_t kLeastSamples = 5;

class DeviceSession {
 public:
  DeviceSession(const Case& which, bool alone)
      : alone_(alone),
        work_(which),
        // Overwritten before each sample to flush the L2 cache. Meanwhile the host enqueues the
        // first call.
        flush_(static_cast<size_t>(std::max<int64_t>(2 * device_l2_bytes(), 1 << 20))) {
    // The first calls load the kernels, which takes far longer than a call, and raise the clock.
    seconds_of_calls(kWarmUpCalls);
    const double seconds = seconds_of_calls(kWarmUpCalls) / kWarmUpCalls;
    calls_ = std::clamp<int64_t>(std::llround(std::ceil(kBatchSeconds / seconds)), 1, 200);
    if (seconds > kShortSeconds) return;
    graph_ = std::make_unique<DeviceGraph>([&](cuda::Stream stream) { enqueue(calls_, stream); });
    graph_->launch();  // the first launch also uploads the graph
  }

  int64_t calls() const { return calls_; }  // calls per sample

  void sample() {
    const auto calls = static_cast<double>(calls_);
    samples_.push_back(seconds_of_calls(calls_) / calls);
    if (graph_ == nullptr) return;
    graph_samples_.push_back(seconds_of([&] { graph_->launch(); }) / calls);
  }

  void report(benchmark::UserCounters& counters, const RunOptions& options, const Case& which) {
    while (samples_.size() < kLeastSamples) sample();
    const double seconds = median(samples_);
    counters["us"] = seconds * 1e6;
    if (graph_ != nullptr) counters["graph_us"] = median(graph_samples_) * 1e6;
    counters["TFLOPS"] = work_.operations() / seconds * 1e-12;
    if (work_.bytes() > 0) {
      counters["GBps"] = work_.bytes() / seconds * 1e-9;
      if (!alone_) counters["pct_copy"] = 100 * work_.bytes() / seconds / device_copy_speed();
    }
    counters["workspace_kB"] = static_cast<double>(work_.workspace_bytes()) / 1024;
    // Examine only once: Google Benchmark requests several reports.
    if (!examined_) examine(options, which);
    examined_ = true;
    if (!alone_) counters["err"] = error_;
  }

  std::string explanation() const { return work_.explanation(); }

 private:
  void examine(const RunOptions& options, const Case& which) {
    if (alone_ && options.save_to.empty()) return;
    const std::vector<float> output = work_.output();
    if (!alone_) error_ = work_.error(output);
    if (options.save_to.empty()) return;
    const std::string stem = options.save_to + "/" + stem_of(which);
    if (!work_.save(stem, output)) throw std::runtime_error("cannot write " + stem);
  }

  void enqueue(int64_t calls, cuda::Stream stream) {
    for (int64_t call = 0; call < calls; ++call) {
      const Status status = work_.run(stream);
      if (!status.ok()) throw std::runtime_error(status.message());
    }
  }

  template <class Enqueue>
  double seconds_of(const Enqueue& enqueue) {
    flush_.fill(0);
    timer_.start();
    enqueue();
    return timer_.stop_seconds();
  }

  double seconds_of_calls(int64_t calls) {
    return seconds_of([&] { enqueue(calls, nullptr); });
  }

  bool alone_;
  DeviceWork work_;
  DeviceMemory flush_;
  DeviceTimer timer_;
  int64_t calls_ = 1;
  std::vector<double> samples_;
  std::unique_ptr<DeviceGraph> graph_;  // of calls_ calls; null: they are not short
  std::vector<double> graph_samples_;
  bool examined_ = false;
  double error_ = 0;
};

}  // namespace

bool run_device_case(benchmark::State& state, const Case& which, const RunOptions& options) {
  // Keep one session at a time, because large shapes take much memory. Never destroy the pointer,
  // because CUDA's runtime may be gone when the program ends.
  static auto& session = *new std::unique_ptr<DeviceSession>;
  static std::string name;
  try {
    if (name != which.name()) {
      session.reset();
      session = std::make_unique<DeviceSession>(which, options.alone);
      name = which.name();
    }
    while (state.KeepRunningBatch(session->calls())) session->sample();
    session->report(state.counters, options, which);
    if (options.explain) state.SetLabel(session->explanation());
    return true;
  } catch (const std::exception& error) {
    name.clear();
    state.SkipWithError(error.what());
    return false;
  }
}

}  // namespace multihead::bench
