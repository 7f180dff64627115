#include "report.h"

#include <cstddef>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "cases.h"
#include "machine.h"
#include "multihead/context.h"
#include "multihead/version.h"

namespace multihead::bench {
namespace {

using nlohmann::json;

constexpr const char* kOwn[] = {"us",   "cold_us",    "GFLOPS", "pct_peak",
                                "GBps", "pct_stream", "err",    "scratch_kB"};
constexpr const char* kOfPeer[] = {"us", "GFLOPS", "ratio", "diff"};

std::string version() {
  return std::to_string(MULTIHEAD_VERSION_MAJOR) + "." + std::to_string(MULTIHEAD_VERSION_MINOR) +
         "." + std::to_string(MULTIHEAD_VERSION_PATCH);
}

std::string now() {
  char text[32];
  const std::time_t time = std::time(nullptr);
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&time))};
}

// The error of a case, or an empty string. Google Benchmark 1.8 has renamed it.
template <class Run>
std::string error_of(const Run& run) {
  if constexpr (requires { run.error_occurred; }) {
    return run.error_occurred ? run.error_message : "";
  } else {
    return run.skipped ? run.skip_message : "";
  }
}

template <size_t N>
void copy(const benchmark::UserCounters& counters, const std::string& prefix,
          const char* const (&names)[N], json& to) {
  for (const char* const name : names) {
    const auto found = counters.find(prefix + name);
    if (found != counters.end()) to[name] = found->second.value;
  }
}

json result_of(const benchmark::BenchmarkReporter::Run& run) {
  json result = {{"name", run.benchmark_name()}, {"peers", json::object()}};
  if (const std::string error = error_of(run); !error.empty()) {
    result["message"] = error;
    return result;
  }
  copy(run.counters, "", kOwn, result);
  for (const char* const peer : {"eigen", "openblas"}) {
    json its;
    copy(run.counters, std::string(peer) + "_", kOfPeer, its);
    if (!its.is_null()) result["peers"][peer] = its;
  }
  return result;
}

void print_row(const json& result) {
  const std::string name = result["name"];
  if (result.contains("message")) {
    std::cout << name << ": " << result["message"].get<std::string>() << '\n';
    return;
  }
  const auto cell = [&](const char* field, const char* form) {
    char text[32];
    std::snprintf(text, sizeof(text), form, result.value(field, 0.0));
    return result.contains(field) ? std::string(text) : std::string(9, ' ');
  };
  char line[64];
  std::snprintf(line, sizeof(line), "%-44s", name.c_str());
  std::cout << line << cell("us", "%9.4g") << cell("GFLOPS", "%9.1f") << cell("pct_peak", "%9.1f")
            << cell("GBps", "%9.1f") << cell("pct_stream", "%9.1f") << cell("err", "%9.1e");
  for (const auto& [peer, its] : result["peers"].items()) {
    std::snprintf(line, sizeof(line), "  %s %.2f", peer.c_str(), its.value("ratio", 0.0));
    std::cout << line;
  }
  std::cout << '\n';
}

}  // namespace

bool Report::ReportContext(const Context& context) {
  machine_ = {{"runner", "native"},    {"version", version()},
              {"cpu", processor()},    {"compiler", __VERSION__},
              {"simd", simd_target()}, {"threads", multihead::Context().threads()},
              {"date", now()}};
  const std::vector<double>& load = context.cpu_info.load_avg;
  if (!load.empty()) machine_["load"] = load[0];
  if (limits_) {
    machine_["fma_peak"] = machine().fma_peak * 1e-9;
    machine_["read_stream"] = machine().read_stream * 1e-9;
    machine_["read_stream_all"] = machine().read_stream_all * 1e-9;
  }
  if (lines_) {
    std::cout << json{{"machine", machine_}} << '\n';
    return true;
  }
  for (const auto& [name, value] : machine_.items()) {
    std::cout << name << ": " << (value.is_string() ? value.get<std::string>() : value.dump())
              << '\n';
  }
  char titles[160];
  std::snprintf(titles, sizeof(titles), "%-44s%9s%9s%9s%9s%9s%9s  peers: times as long as ours",
                "name", "us", "GFLOPS", "% peak", "GB/s", "% stream", "err");
  std::cout << titles << '\n';
  return true;
}

void Report::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    if (run.run_type == Run::RT_Aggregate) continue;
    const json result = result_of(run);
    benchmarks_.push_back(result);
    if (lines_) {
      std::cout << json{{"benchmark", result}} << '\n';
    } else {
      print_row(result);
    }
  }
}

bool Report::write(const std::string& path) const {
  std::ofstream file(path, std::ios::binary);
  const json run = {{"machine", machine_}, {"benchmarks", benchmarks_}};
  file << json{{"runs", json::array({run})}}.dump(2) << '\n';
  file.close();
  return !file.fail();
}

std::string report_filter() {
  std::string names;
  for (const std::string& name : report_names()) names += (names.empty() ? "" : "|") + name;
  return "^(" + names + ")/threads";
}

}  // namespace multihead::bench
