// Results as a table and as JSON, in the form that native/dev/bench/document.mjs describes.
#pragma once

#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace multihead::bench {

class Report : public benchmark::BenchmarkReporter {
 public:
  // `lines`: a line of JSON for the machine and one for each benchmark, instead of a table.
  // `limits`: measures the machine's limits first.
  Report(bool lines, bool limits) : lines_(lines), limits_(limits) {}

  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;

  // Writes all results as one document. Returns false if the file cannot be written.
  bool write(const std::string& path) const;

 private:
  bool lines_, limits_;
  nlohmann::json machine_, benchmarks_ = nlohmann::json::array();
};

// The cases of a report, as a pattern of names.
std::string report_filter();

}  // namespace multihead::bench
