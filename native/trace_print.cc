#include "trace_print.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace multihead::trace {
namespace {

// True for a UTF-8 continuation byte. Every other byte starts a code point.
bool continues_code_point(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

size_t code_points(const std::string& text) {
  return text.size() -
         static_cast<size_t>(std::count_if(text.begin(), text.end(), continues_code_point));
}

// Right-aligns a text in `width` code points. A longer text is cut and ends in "…".
std::string label(const std::string& text, size_t width) {
  const size_t length = code_points(text);
  if (length <= width) return std::string(width - length, ' ') + text;
  size_t end = 0;
  for (size_t kept = 0; continues_code_point(text[end]) || kept < width - 1; ++end) {
    if (!continues_code_point(text[end])) ++kept;
  }
  return text.substr(0, end) + "…";
}

struct Printer {
  const std::vector<std::string>& tokens;
  const PrintOptions& options;
  size_t label_width;

  // Prints a (rows, columns) matrix. `by_token`: the columns are tokens.
  void matrix(const float* values, int64_t rows, int64_t columns, bool by_token) const {
    const int64_t shown = by_token ? columns : std::min(columns, options.columns);
    if (by_token) {
      std::printf("  %s", label("", label_width).c_str());
      for (int64_t j = 0; j < shown; ++j) {
        std::printf(" %s", label(tokens[static_cast<size_t>(j)], 8).c_str());
      }
      std::printf("\n");
    }
    for (int64_t i = 0; i < rows; ++i) {
      std::printf("  %s", label(tokens[static_cast<size_t>(i)], label_width).c_str());
      for (int64_t j = 0; j < shown; ++j) {
        const float value = values[i * columns + j];
        if (std::isinf(value)) {
          std::printf(" %8s", value < 0 ? "-inf" : "inf");
        } else {
          std::printf(" %8.4f", static_cast<double>(value));
        }
      }
      std::printf(shown < columns ? "  ...\n" : "\n");
    }
  }

  void step(const TraceStep& step, const char* meaning) const {
    std::printf("\n%s %s\n  %s\n", step.name.c_str(), step.shape.to_string().c_str(), meaning);
    const int rank = step.shape.rank();
    const int64_t rows = step.shape[rank - 2];
    const int64_t columns = step.shape[rank - 1];
    const bool per_head = rank == 4;
    if (per_head) std::printf("  head %lld:\n", static_cast<long long>(options.head));
    const bool by_token = step.name == "weights" || step.name.ends_with("scores");
    matrix(step.values.data() + (per_head ? (options.head - 1) * rows * columns : 0), rows, columns,
           by_token);
  }
};

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

const std::map<std::string, const char*>& step_meanings() {
  static const std::map<std::string, const char*> kMeanings = {
      {"x", "token embeddings plus positions"},
      {"q", "queries, x W_Q^T"},
      {"k", "keys, x W_K^T"},
      {"v", "values, x W_V^T"},
      {"q_heads", "queries split into heads: (B, N, H d) -> (B, N, H, d) -> (B, H, N, d)"},
      {"k_heads", "keys split into heads"},
      {"v_heads", "values split into heads"},
      {"scores", "Q K^T: how well each query (row) fits each key (column)"},
      {"scaled_scores", "scores / sqrt(d_head)"},
      {"masked_scores", "-inf for keys that are hidden from the query"},
      {"weights", "softmax of each row: every row sums to 1"},
      {"heads_out", "weights times V, per head"},
      {"merged", "the heads concatenated: (B, H, N, d) -> (B, N, H d)"},
      {"per_head_output", "z_h W_O^h, each head's part of the output; their sum is the output"},
      {"output", "merged W_O^T"},
  };
  return kMeanings;
}

// Converts one step at a time, because a number takes four times as much memory in JSON.
void print_json(const std::vector<std::string>& tokens, const Trace& trace) {
  std::printf("{\"tokens\":%s,\"steps\":[", dump(tokens).c_str());
  const char* separator = "";
  for (const TraceStep& step : trace.steps) {
    nlohmann::ordered_json shape = nlohmann::ordered_json::array();
    for (int axis = 0; axis < step.shape.rank(); ++axis) shape.push_back(step.shape[axis]);
    nlohmann::ordered_json values = nlohmann::ordered_json::array();
    for (const float value : step.values) {
      values.push_back(std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr);
    }
    const nlohmann::ordered_json one = {
        {"name", step.name}, {"shape", std::move(shape)}, {"values", std::move(values)}};
    std::printf("%s%s", separator, dump(one).c_str());
    separator = ",";
  }
  std::printf("]}\n");
}

void print_steps(const PrintOptions& options, const std::vector<std::string>& tokens,
                 const Trace& trace) {
  size_t longest = 0;
  for (const std::string& token : tokens) longest = std::max(longest, code_points(token));
  const Printer printer{tokens, options, std::clamp<size_t>(longest, 6, 20)};
  for (const TraceStep& step : trace.steps) {
    printer.step(step, step_meanings().at(step.name));
  }
}

}  // namespace multihead::trace
