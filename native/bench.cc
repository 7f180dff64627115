// multihead-bench: attention at the shapes people use, on Google Benchmark.
//
// Names are op/shape/mask/dtype/threads:N. Counters:
//   GFLOPS      ideal operations a second, 4 B H N_q N_k d, half of that when causal
//   pct_peak    of the threads' FMA peak, measured in this run
//   GBps        bytes of K and V read a second (decode)
//   pct_stream  of the read stream, measured in this run (decode, one thread)
//   scratch_kB  memory beyond inputs and outputs, of all threads
//   err         largest difference from the float64 oracle, on a sample of rows
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "machine_peak.h"
#include "multihead/multihead.h"
#include "reference/reference_attention.h"

namespace multihead::bench {
namespace {

struct Shape {
  const char* op;
  const char* name;
  int64_t batch, heads, kv_heads, queries, keys, width;
  bool full, causal;  // which masks are timed
};

// The models that give the shapes their names use them.
constexpr Shape kShapes[] = {
    {"forward", "tiny", 1, 4, 4, 32, 32, 16, true, true},
    {"forward", "gpt2-1k", 1, 12, 12, 1024, 1024, 64, true, true},
    {"forward", "bert", 8, 12, 12, 128, 128, 64, true, false},
    {"forward", "vit", 8, 12, 12, 197, 197, 64, true, false},
    {"forward", "llama3-2k", 1, 32, 8, 2048, 2048, 128, false, true},
    {"forward", "long-8k", 1, 4, 4, 8192, 8192, 64, false, true},
    {"decode", "llama3-kv8k", 1, 32, 8, 1, 8192, 128, true, false},
};

struct Machine {
  double fma_peak = measure_fma_peak();
  double read_stream = measure_read_stream();
};
const Machine& machine() {
  static const Machine measured;
  return measured;
}

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(engine);
  return values;
}

// The first, the last and some rows between, against the oracle.
double error_on_sample(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                       const Tensor& out, bool causal) {
  double largest = 0;
  const int64_t rows = q.shape[2];
  const int64_t last_head = q.shape[1] - 1;
  const int64_t kv_head = k.shape[1] - 1;
  const auto head = [](const ConstTensor& t, int64_t h) {
    return ConstTensor(t.data + h * t.strides[1], {1, 1, t.shape[2], t.shape[3]});
  };
  for (const int64_t row : {int64_t{0}, rows / 3, rows / 2, rows - 1}) {
    const int64_t at = last_head * q.strides[1] + row * q.strides[2];
    const auto expected = reference::attention(
        {q.data + at, {1, 1, 1, q.shape[3]}}, head(k, kv_head), head(v, kv_head),
        {.causal = causal ? Causal::at_offset(row) : Causal::none()});
    const float* got = out.data + last_head * out.strides[1] + row * out.strides[2];
    for (size_t c = 0; c < expected.out.size(); ++c) {
      largest = std::max(largest, std::abs(expected.out[c] - static_cast<double>(got[c])));
    }
  }
  return largest;
}

// Wall-clock seconds of the timed loop. Google Benchmark's own rates count the main thread's
// CPU time, or put "real_time" into the name.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The thread count is in the name, so `state.iterations()` calls took `seconds`.
double calls_per_second(const benchmark::State& state, double seconds) {
  return static_cast<double>(state.iterations()) / seconds;
}

void report_operations(benchmark::State& state, double operations_per_second, int threads) {
  state.counters["GFLOPS"] = operations_per_second * 1e-9;
  state.counters["pct_peak"] = 100.0 * operations_per_second / (machine().fma_peak * threads);
}

void attention_benchmark(benchmark::State& state, const Shape& s, bool causal, int threads) {
  const Dims q_shape{s.batch, s.heads, s.queries, s.width};
  const Dims k_shape{s.batch, s.kv_heads, s.keys, s.width};
  const std::vector<float> q = random_floats(q_shape.elements(), 1);
  const std::vector<float> k = random_floats(k_shape.elements(), 2);
  const std::vector<float> v = random_floats(k_shape.elements(), 3);
  std::vector<float> out(q.size());
  const Tensor out_tensor{out.data(), q_shape};
  const AttentionOptions options{.causal = causal ? Causal::bottom_right() : Causal::none()};
  Context context(threads);
  const Stopwatch stopwatch;
  for (auto _ : state) {
    const Status status = attention({q.data(), q_shape}, {k.data(), k_shape}, {v.data(), k_shape},
                                    options, {.out = out_tensor}, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
    benchmark::ClobberMemory();
  }
  const double rate = calls_per_second(state, stopwatch.seconds());
  const double scores = static_cast<double>(s.batch * s.heads * s.queries) *
                        static_cast<double>(s.keys) * (causal ? 0.5 : 1.0);
  report_operations(state, rate * 4.0 * scores * static_cast<double>(s.width), threads);
  if (s.queries == 1) {
    const double bytes = static_cast<double>(2 * k_shape.elements()) * sizeof(float);
    state.counters["GBps"] = rate * bytes * 1e-9;
    if (threads == 1) {
      state.counters["pct_stream"] = 100.0 * rate * bytes / machine().read_stream;
    }
  }
  state.counters["scratch_kB"] = static_cast<double>(context.scratch_bytes()) / 1024;
  state.counters["err"] = error_on_sample({q.data(), q_shape}, {k.data(), k_shape},
                                          {v.data(), k_shape}, out_tensor, causal);
}

// gpt2-1k with a boolean mask of which every `stride`-th block of 192 keys is visible: what is
// skipped costs nothing. GFLOPS counts the visible blocks alone.
void blocks_benchmark(benchmark::State& state, int64_t stride, int threads) {
  constexpr int64_t kHeads = 12, kTokens = 1152, kWidth = 64, kBlock = 192;
  const Dims shape{1, kHeads, kTokens, kWidth};
  const std::vector<float> q = random_floats(shape.elements(), 1);
  const std::vector<float> k = random_floats(shape.elements(), 2);
  std::vector<float> out(q.size());
  std::vector<uint8_t> mask(static_cast<size_t>(kTokens * kTokens));
  int64_t visible = 0;
  for (size_t at = 0; at < mask.size(); ++at) {
    const int64_t block = static_cast<int64_t>(at) % kTokens / kBlock;
    mask[at] = block % stride == 0 ? 1 : 0;
    visible += mask[at];
  }
  Context context(threads);
  const Stopwatch stopwatch;
  for (auto _ : state) {
    const Status status = attention({q.data(), shape}, {k.data(), shape}, {k.data(), shape},
                                    {.mask = {mask.data(), {kTokens, kTokens}}},
                                    {.out = {out.data(), shape}}, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
    benchmark::ClobberMemory();
  }
  const double rate = calls_per_second(state, stopwatch.seconds());
  report_operations(state, rate * 4.0 * kHeads * kWidth * static_cast<double>(visible), threads);
}

// Module of d_model 768 and 12 heads on 512 tokens.
void module_benchmark(benchmark::State& state, int threads) {
  constexpr int64_t kTokens = 512, kEmbed = 768, kHeads = 12;
  const Dims x_shape{1, kTokens, kEmbed};
  const Dims w_shape{kEmbed, kEmbed};
  const std::vector<float> x = random_floats(x_shape.elements(), 1);
  std::vector<float> w[4];
  for (uint32_t i = 0; i < 4; ++i) w[i] = random_floats(w_shape.elements(), 2 + i);
  std::vector<float> out(x.size());
  Context context(threads);
  const Stopwatch stopwatch;
  for (auto _ : state) {
    const Status status =
        multi_head_attention({.embed_dim = kEmbed, .num_heads = kHeads},
                             {.q_proj = {w[0].data(), w_shape},
                              .k_proj = {w[1].data(), w_shape},
                              .v_proj = {w[2].data(), w_shape},
                              .out_proj = {w[3].data(), w_shape}},
                             {x.data(), x_shape}, {}, {out.data(), x_shape}, nullptr, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
    benchmark::ClobberMemory();
  }
  const double rate = calls_per_second(state, stopwatch.seconds());
  const double operations =
      4.0 * 2.0 * kTokens * kEmbed * kEmbed + 4.0 * kTokens * kTokens * kEmbed;
  report_operations(state, rate * operations, threads);
}

void register_all() {
  std::vector<int> thread_counts = {1};
  if (const int all = Context().threads(); all > 1) thread_counts.push_back(all);
  for (const int threads : thread_counts) {
    const std::string suffix = "/f32/threads:" + std::to_string(threads);
    for (const Shape& shape : kShapes) {
      for (const bool causal : {true, false}) {
        if (causal ? !shape.causal : !shape.full) continue;
        const std::string name =
            std::string(shape.op) + "/" + shape.name + (causal ? "/causal" : "/full") + suffix;
        benchmark::RegisterBenchmark(name.c_str(), [&shape, causal,
                                                    threads](benchmark::State& state) {
          attention_benchmark(state, shape, causal, threads);
        })->Unit(benchmark::kMicrosecond);
      }
    }
    for (const int64_t stride : {1, 2, 3, 6}) {
      benchmark::RegisterBenchmark(
          ("forward/blocks-1of" + std::to_string(stride) + "/mask" + suffix).c_str(),
          [stride, threads](benchmark::State& state) { blocks_benchmark(state, stride, threads); })
          ->Unit(benchmark::kMicrosecond);
    }
    benchmark::RegisterBenchmark(
        ("module/mha-768/full" + suffix).c_str(),
        [threads](benchmark::State& state) { module_benchmark(state, threads); })
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace
}  // namespace multihead::bench

int main(int argc, char** argv) {
  namespace mb = multihead::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  mb::register_all();
  char text[64];
  benchmark::AddCustomContext("simd_target", multihead::simd_target());
  std::snprintf(text, sizeof(text), "%.1f", mb::machine().fma_peak * 1e-9);
  benchmark::AddCustomContext("fma_peak_gflops_per_thread", text);
  std::snprintf(text, sizeof(text), "%.1f", mb::machine().read_stream * 1e-9);
  benchmark::AddCustomContext("read_stream_gbps_one_thread", text);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
