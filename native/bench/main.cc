// multihead-bench: attention at commonly used shapes, with Google Benchmark.
//
//   multihead-bench [--device=cuda] [--target=NAME] [--processor=NAME] [--l2=SIZE]
//                   [--threads=LIST] [--save=FOLDER] [--alone] [--explain] [--schedule=LIST]
//                   [--report[=FILE]] [--events] [--benchmark_…]
//
// --alone skips Eigen and the machine's limits. Use it to alternate with another program.
// --device=cuda runs the cases of device_measure.h instead, on the current GPU.
//
// Names are op/shape/mask/dtype/threads:N. Counters:
//   us, cold_us   median of one call; time of the first call of a new Context, after reading 512 MB
//   GFLOPS        ideal operations per second: 4 d per visible pair of query and key; a causal mask
//                 counts half of all pairs
//   pct_peak      percent of the threads' FMA peak, measured in this run on the same SIMD target
//   GBps          bytes of K and V, of weights, or of both (step), read per second (one query)
//   pct_stream    percent of the same threads' read bandwidth, measured in this run (one query)
//   scratch_kB    memory in addition to inputs and outputs, of all threads
//   err           largest difference from the float64 oracle, on a sample of rows
//   eigen_…       a plain Eigen version on one thread, alternating with multihead: its time, its
//                 time divided by multihead's, and the largest difference of the outputs
//   openblas_…    the same values for products with OpenBLAS, if the build has found it
// On a GPU, names end in /cuda, and the counters are:
//   us            a call, measured between two events: median of batches, with inputs in no cache
//   graph_us      the same of calls in a CUDA graph, if a call takes at most 100 us
//   TFLOPS, GBps  like GFLOPS and GBps above
//   pct_copy      percent of the speed of a copy within the device (one query)
//   workspace_kB  workspace of the call
//   err           largest difference from the library on the CPU, of one key/value head
#include <benchmark/benchmark.h>

#include <charconv>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cases.h"
#include "device.h"
#include "device_measure.h"
#include "engine/runtime/threads.h"
#include "exit_code.h"
#include "machine.h"
#include "measure.h"
#include "multihead/context.h"
#include "multihead/cuda.h"
#include "multihead/status.h"
#include "report.h"
#include "schedule.h"

namespace multihead::bench {
namespace {

struct Arguments {
  std::string device = "cpu", target, processor, l2, save;
  std::vector<int> threads, schedule;  // if empty: threads 1 and all; no simulation
  bool alone = false, explain = false, list = false, events = false;
  std::optional<std::string> report;  // the file, or an empty string
  std::string wrong;                  // error in a list of numbers
  std::vector<char*> rest;            // arguments for Google Benchmark
};

std::optional<std::string> value_of(std::string_view argument, std::string_view name) {
  if (!argument.starts_with(name)) return std::nullopt;
  return std::string(argument.substr(name.size()));
}

// Parses numbers from 1 to `most`, separated by commas. Returns an empty list for any other text.
std::vector<int> numbers_of(std::string_view text, int most) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    int number = 0;
    const auto [after, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 1 || number > most) return {};
    numbers.push_back(number);
    if (after == end) return numbers;
    if (*after != ',') return {};
    at = after + 1;
  }
}

void take_numbers(Arguments& arguments, std::string_view option, std::string_view text, int most,
                  std::vector<int>& numbers) {
  numbers = numbers_of(text, most);
  if (!numbers.empty() || !arguments.wrong.empty()) return;
  arguments.wrong = std::string(option) + ": expected numbers from 1 to " + std::to_string(most) +
                    ", separated by commas, got " + std::string(text);
}

Arguments parse(int argc, char** argv) {
  // 0.2 s suffices for steady medians. Google Benchmark's default, 0.5 s, would take twice as long
  // overall.
  static std::string least_time = "--benchmark_min_time=0.2";
  Arguments arguments;
  arguments.rest = {argv[0], least_time.data()};
  for (int i = 1; i < argc; ++i) {
    if (const auto device = value_of(argv[i], "--device=")) {
      arguments.device = *device;
    } else if (const auto target = value_of(argv[i], "--target=")) {
      arguments.target = *target;
    } else if (const auto processor = value_of(argv[i], "--processor=")) {
      arguments.processor = *processor;
    } else if (const auto l2 = value_of(argv[i], "--l2=")) {
      arguments.l2 = *l2;
    } else if (const auto folder = value_of(argv[i], "--save=")) {
      arguments.save = *folder;
    } else if (const auto threads = value_of(argv[i], "--threads=")) {
      take_numbers(arguments, "--threads", *threads, Context().threads(), arguments.threads);
    } else if (const auto cores = value_of(argv[i], "--schedule=")) {
      take_numbers(arguments, "--schedule", *cores, engine::kMostThreads, arguments.schedule);
      arguments.alone = true;
    } else if (const auto file = value_of(argv[i], "--report");
               file && (file->empty() || file->starts_with("="))) {
      arguments.report = file->empty() ? "" : file->substr(1);
    } else if (std::string_view(argv[i]) == "--events") {
      arguments.events = true;
    } else if (std::string_view(argv[i]) == "--alone") {
      arguments.alone = true;
    } else if (std::string_view(argv[i]) == "--explain") {
      arguments.explain = true;
    } else {
      // A list needs no measurement of the machine.
      if (value_of(argv[i], "--benchmark_list_tests")) arguments.alone = arguments.list = true;
      arguments.rest.push_back(argv[i]);
    }
  }
  return arguments;
}

// Returns the error in --device and the options used with it, or an empty string.
std::string device_complaint(const Arguments& arguments) {
  if (arguments.device == "cpu") return "";
  if (arguments.device != "cuda") {
    return "--device: expected cpu or cuda, got " + arguments.device;
  }
  for (const auto& [option, given] : {std::pair{"--target", !arguments.target.empty()},
                                      {"--processor", !arguments.processor.empty()},
                                      {"--l2", !arguments.l2.empty()},
                                      {"--threads", !arguments.threads.empty()},
                                      {"--schedule", !arguments.schedule.empty()},
                                      {"--report", arguments.report.has_value()},
                                      {"--events", arguments.events}}) {
    if (given) return std::string(option) + ": expected none with --device=cuda, got one";
  }
  if (arguments.list) return "";  // needs no device
  const Status status = cuda::available();
  return status.ok() ? "" : "--device=cuda: " + status.message();
}

// Returns the error in the arguments, or an empty string.
std::string complaint(const Arguments& arguments) {
  if (!arguments.wrong.empty()) return arguments.wrong;
  if (std::string wrong = device_complaint(arguments); !wrong.empty()) return wrong;
  if (!arguments.target.empty() && !use_simd_target(arguments.target)) {
    std::string names;
    for (const std::string& name : simd_targets()) names += (names.empty() ? "" : ", ") + name;
    return "--target: expected one of " + names + ", got " + arguments.target;
  }
  if (!arguments.processor.empty() && !use_processor(arguments.processor)) {
    return "--processor: expected intel or other, got " + arguments.processor;
  }
  if (!arguments.l2.empty() && !use_l2(arguments.l2)) {
    return "--l2: expected a size such as 512K, got " + arguments.l2;
  }
  if (!arguments.save.empty() && !std::filesystem::is_directory(arguments.save)) {
    return "--save: expected a folder, got " + arguments.save;
  }
  return "";
}

void print_help() {
  std::puts(
      "multihead-bench [options]\n"
      "  --device=NAME   cpu, or cuda for the cases of an NVIDIA GPU; cpu if not given\n"
      "  --target=NAME   the SIMD target to run on\n"
      "  --processor=NAME  plans for processors of intel or of others, whatever this one is\n"
      "  --l2=SIZE       makes blocks for a second-level cache of this size, for example 512K\n"
      "  --threads=LIST  numbers of threads, for example 1,2,4; one and all if not given\n"
      "  --schedule=LIST simulates so many cores, for example 8,32,96, from the time of each job\n"
      "  --save=FOLDER   writes the output of each case there; on a GPU also q, k and v\n"
      "  --alone         skips Eigen and the machine's limits\n"
      "  --explain       says which path serves a case, and why the others do not\n"
      "  --report[=FILE] a minute: the cases that matter, as a table, and in FILE as JSON to send\n"
      "  --events        a line of JSON for the machine, and one for each case\n"
      "  --help, -h      this text\n"
      "Exit code: 0; 1 if a case failed; 2 for wrong arguments; 3 if the output cannot be "
      "written.\n"
      "Options of Google Benchmark:");
  benchmark::PrintDefaultHelp();
}

void add_number(const char* name, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.1f", value);
  benchmark::AddCustomContext(name, text);
}

void add_device_context(bool with_limits) {
  for (const auto& [name, value] : device_facts()) benchmark::AddCustomContext(name, value);
  if (with_limits) add_number("copy_gbps", device_copy_speed() * 1e-9);
}

void add_context(bool with_limits) {
  benchmark::AddCustomContext("simd_target", simd_target());
  benchmark::AddCustomContext("compiler", __VERSION__);
  benchmark::AddCustomContext("threads", std::to_string(Context().threads()));
  if (!with_limits) return;
  add_number("fma_peak_gflops_per_thread", machine().fma_peak * 1e-9);
  add_number("read_stream_gbps_one_thread", machine().read_stream * 1e-9);
  add_number("read_stream_gbps_all_threads", machine().read_stream_all * 1e-9);
}

std::vector<int> threads_of(const Arguments& arguments) {
  if (!arguments.threads.empty()) return arguments.threads;
  const int all = Context().threads();
  return all > 1 ? std::vector<int>{1, all} : std::vector<int>{1};
}

// Prints schedules for the cases with one thread whose names match --benchmark_filter.
int simulate(const std::vector<int>& cores) {
  std::vector<Case> chosen;
  std::string filter = benchmark::GetBenchmarkFilter();
  if (filter.empty() || filter == "all") filter = ".";
  try {
    const std::regex wanted(filter, std::regex::extended);
    for (const Case& which : all_cases({1})) {
      if (std::regex_search(which.name(), wanted)) chosen.push_back(which);
    }
  } catch (const std::regex_error& error) {
    std::fprintf(stderr, "--benchmark_filter: %s\n", error.what());
    return kExitUsage;
  }
  if (chosen.empty()) {
    std::fputs("--benchmark_filter: matches no case of one thread\n", stderr);
    return kExitUsage;
  }
  return finished(print_schedules(chosen, cores) ? kExitOk : kExitFailed);
}

}  // namespace
}  // namespace multihead::bench

int main(int argc, char** argv) {
  namespace mb = multihead::bench;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--help" && std::string_view(argv[i]) != "-h") continue;
    mb::print_help();
    return multihead::finished(multihead::kExitOk);
  }
  mb::Arguments arguments = mb::parse(argc, argv);
  int rest = static_cast<int>(arguments.rest.size());
  benchmark::Initialize(&rest, arguments.rest.data());
  if (benchmark::ReportUnrecognizedArguments(rest, arguments.rest.data())) {
    std::fputs(
        "expected --target=NAME, --processor=NAME, --l2=SIZE, --threads=LIST, --schedule=LIST, "
        "--save=FOLDER, "
        "--alone, --report, --events, "
        "--explain, --device=NAME or an option that --help lists\n",
        stderr);
    return multihead::kExitUsage;
  }
  if (const std::string wrong = mb::complaint(arguments); !wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    return multihead::kExitUsage;
  }
  if (!arguments.schedule.empty()) return mb::simulate(arguments.schedule);
  const bool on_device = arguments.device != "cpu";
  bool all_ran = true;
  const std::vector<mb::Case> cases =
      on_device ? mb::all_device_cases() : mb::all_cases(mb::threads_of(arguments));
  for (const mb::Case& which : cases) {
    benchmark::RegisterBenchmark(which.name().c_str(), [&](benchmark::State& state) {
      const auto run = on_device ? mb::run_device_case : mb::run_case;
      all_ran &=
          run(state, which,
              {.alone = arguments.alone, .explain = arguments.explain, .save_to = arguments.save});
    })->Unit(benchmark::kMicrosecond);
  }
  const bool own_report = arguments.report || arguments.events;
  if (!on_device && !own_report) {
    mb::add_context(!arguments.alone);
  } else if (on_device && !arguments.list) {
    try {
      mb::add_device_context(!arguments.alone);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "--device=cuda: %s\n", error.what());
      return multihead::kExitFailed;
    }
  }
  std::cout << std::unitbuf;  // a reader of the JSON gets each result immediately
  mb::Report report(arguments.events, !arguments.alone);
  if (arguments.report && benchmark::GetBenchmarkFilter().empty()) {
    benchmark::SetBenchmarkFilter(mb::report_filter());
  }
  const size_t found =
      own_report ? benchmark::RunSpecifiedBenchmarks(&report) : benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (!std::cout) {
    std::fputs("standard output: cannot be written\n", stderr);
    return multihead::kExitIo;
  }
  if (found == 0) return multihead::kExitUsage;  // Google Benchmark has reported it
  if (arguments.report && !arguments.report->empty() && !arguments.list &&
      !report.write(*arguments.report)) {
    std::fprintf(stderr, "--report: cannot write %s\n", arguments.report->c_str());
    return multihead::kExitIo;
  }
  return multihead::finished(all_ran ? multihead::kExitOk : multihead::kExitFailed);
}
