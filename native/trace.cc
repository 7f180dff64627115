// multihead-trace "the black cat sat on the mat" --heads 4 --causal
// multihead-trace --scores "2 1.5 .8 .3; 1.2 1.8 .9 .4; .5 1.1 2.1 .7; .3 .6 1.3 1.9" --causal
//
// Prints every step of multi-head self-attention on a sentence or on given scores: its name, a
// description, its shape, and a rounded matrix as in textbooks; or everything as JSON.
#include <CLI/CLI.hpp>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exit_code.h"
#include "multihead/multihead.h"
#include "trace_print.h"

namespace {

using multihead::Dims;
using multihead::ExitCode;
using multihead::trace::print_json;
using multihead::trace::print_steps;
using multihead::trace::PrintOptions;
using multihead::trace::step_meanings;

struct Arguments {
  std::string sentence = "the black cat sat on the mat";
  int64_t heads = 4;
  int64_t embed_dim = 64;
  bool causal = false;
  PrintOptions print = {};
  int64_t batch = 1;
  uint32_t seed = 0;
  bool of_scores = false;
  std::string scores = {};  // heads separated by '/', rows by ';', numbers by blanks or commas
  std::vector<std::string> steps = {};  // empty: all steps
  bool json = false;
};

// Splits a text into words and single punctuation marks.
std::vector<std::string> tokenize(const std::string& sentence) {
  std::vector<std::string> tokens;
  bool inside = false;
  for (const char c : sentence) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isspace(byte) != 0) {
      inside = false;
    } else if (std::ispunct(byte) != 0 && c != '\'' && c != '-') {
      tokens.emplace_back(1, c);
      inside = false;
    } else if (inside) {
      tokens.back() += c;
    } else {
      tokens.emplace_back(1, c);
      inside = true;
    }
  }
  return tokens;
}

std::vector<float> normal_floats(int64_t count, double deviation, std::mt19937& engine) {
  std::normal_distribution<double> normal(0.0, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(normal(engine));
  return values;
}

// Random vectors, one per distinct token, plus the sinusoidal position encoding of Vaswani et al.
// 2017, section 3.5.
std::vector<float> embed(const std::vector<std::string>& tokens, int64_t width,
                         std::mt19937& engine) {
  std::map<std::string, std::vector<float>> vocabulary;
  std::vector<float> x;
  for (size_t position = 0; position < tokens.size(); ++position) {
    std::vector<float>& vector = vocabulary[tokens[position]];
    if (vector.empty()) vector = normal_floats(width, 1.0, engine);
    for (int64_t c = 0; c < width; ++c) {
      const int64_t even = c - c % 2;
      const double frequency =
          std::pow(10000.0, -static_cast<double>(even) / static_cast<double>(width));
      const double angle = static_cast<double>(position) * frequency;
      x.push_back(vector[static_cast<size_t>(c)] +
                  static_cast<float>(c % 2 == 0 ? std::sin(angle) : std::cos(angle)));
    }
  }
  return x;
}

ExitCode refuse(const std::string& problem) {
  std::fprintf(stderr, "%s\n", problem.c_str());
  return multihead::kExitUsage;
}

ExitCode refuse(const multihead::Status& status) {
  refuse(status.message());
  return status.code() == multihead::StatusCode::kMemory ? multihead::kExitFailed
                                                         : multihead::kExitUsage;
}

// Returns how many numbers the requested steps have for n tokens.
double trace_size(const Arguments& arguments, int64_t n) {
  const auto batch = static_cast<double>(arguments.batch);
  const auto heads = static_cast<double>(arguments.heads);
  const auto tokens = static_cast<double>(n);
  const auto width = static_cast<double>(arguments.embed_dim);
  const multihead::Trace trace{.wanted = arguments.steps};
  double size = 0;
  for (const auto& [name, meaning] : step_meanings()) {
    if (!trace.wants(name)) continue;
    if (name == "weights" || name.ends_with("scores")) {
      size += batch * heads * tokens * tokens;
    } else {
      size += batch * tokens * width * (name == "per_head_output" ? heads : 1.0);
    }
  }
  return size;
}

// Parses --scores. Returns false unless they are square matrices of one size with finite numbers.
bool parse_scores(const std::string& text, std::vector<float>& values, int64_t& heads,
                  int64_t& tokens) {
  int64_t in_row = 0, rows = 0;
  heads = 0;
  tokens = 0;
  const auto end_row = [&] {
    if (tokens == 0) tokens = in_row;
    const bool right = in_row == tokens && in_row > 0;
    in_row = 0;
    ++rows;
    return right;
  };
  const auto end_head = [&] {
    const bool right = end_row() && rows == tokens;
    rows = 0;
    ++heads;
    return right;
  };
  const char* at = text.c_str();
  while (*at != '\0') {
    if (*at == ' ' || *at == ',' || *at == '\n' || *at == '\t') {
      ++at;
    } else if (*at == ';' || *at == '/') {
      if (!(*at == ';' ? end_row() : end_head())) return false;
      ++at;
    } else {
      char* end = nullptr;
      const float value = std::strtof(at, &end);
      if (end == at || !std::isfinite(value)) return false;
      values.push_back(value);
      ++in_row;
      at = end;
    }
  }
  return end_head();
}

// Attention on given scores: Q = scores, K = the identity, scale 1.
ExitCode run_scores(const Arguments& arguments) {
  std::vector<float> scores;
  int64_t heads = 0, n = 0;
  if (!parse_scores(arguments.scores, scores, heads, n)) {
    return refuse(
        "--scores: expected square matrices of one size, rows between ';' and heads between '/', "
        "got \"" +
        arguments.scores + "\"");
  }
  if (arguments.print.head < 1 || arguments.print.head > heads) {
    return refuse("--head: expected 1 to " + std::to_string(heads) + ", got " +
                  std::to_string(arguments.print.head));
  }
  std::vector<float> identity(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) identity[static_cast<size_t>(i * n + i)] = 1.0F;
  multihead::Trace trace{.wanted = arguments.steps};
  multihead::Context context;
  const Dims shape{1, heads, n, n};
  for (const auto& [name, stage] : {std::pair{"scores", multihead::ScoreStage::kRaw},
                                    {"masked_scores", multihead::ScoreStage::kMasked},
                                    {"weights", multihead::ScoreStage::kWeights}}) {
    if (!trace.wants(name)) continue;
    const auto values = std::make_shared<std::vector<float>>(scores.size());
    trace.steps.push_back({name, shape, {{values, values->data()}, values->size()}});
    const multihead::ScoreCapture capture{.stage = stage, .out = {values->data(), shape}};
    const multihead::Status status = multihead::attention_scores(
        multihead::ConstTensor(scores.data(), shape),
        multihead::ConstTensor(identity.data(), {1, 1, n, n}),
        {.scale = 1.0F,
         .causal = arguments.causal ? multihead::Causal::top_left() : multihead::Causal::none()},
        capture, context);
    if (!status.ok()) return refuse(status);
  }
  std::vector<std::string> tokens = tokenize(arguments.sentence);
  if (static_cast<int64_t>(tokens.size()) != n) {
    tokens.clear();
    for (int64_t i = 1; i <= n; ++i) tokens.push_back(std::to_string(i));
  }
  if (arguments.json) {
    print_json(tokens, trace);
  } else {
    print_steps(arguments.print, tokens, trace);
  }
  return multihead::kExitOk;
}

ExitCode run(const Arguments& arguments) {
  for (const std::string& name : arguments.steps) {
    if (step_meanings().contains(name)) continue;
    std::string all;
    for (const std::string_view known : multihead::trace_names()) {
      if (step_meanings().contains(std::string(known))) {
        all += (all.empty() ? "" : ", ") + std::string(known);
      }
    }
    return refuse("--steps: expected names out of " + all + ", got " + name);
  }
  if (arguments.of_scores) return run_scores(arguments);
  const std::vector<std::string> tokens = tokenize(arguments.sentence);
  if (tokens.empty()) {
    return refuse("sentence: expected at least one word, got \"" + arguments.sentence + "\"");
  }
  if (arguments.print.head < 1 || arguments.print.head > arguments.heads) {
    return refuse("--head: expected 1 to " + std::to_string(arguments.heads) + ", got " +
                  std::to_string(arguments.print.head));
  }
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t width = arguments.embed_dim;
  constexpr double kMostNumbers = 1 << 26;
  if (const double size = trace_size(arguments, n); size > kMostNumbers) {
    char text[160];
    std::snprintf(
        text, sizeof(text),
        "--steps: expected a trace of at most %.0f numbers, got %.0f; name fewer steps, or "
        "choose a shorter sentence",
        kMostNumbers, size);
    return refuse(std::string(text));
  }
  std::mt19937 engine(arguments.seed);
  std::vector<float> x = embed(tokens, width, engine);
  const size_t floats = x.size();
  for (int64_t b = 1; b < arguments.batch; ++b) {
    x.insert(x.end(), x.begin(), x.begin() + static_cast<ptrdiff_t>(floats));
  }
  std::vector<float> projections[4];
  for (std::vector<float>& matrix : projections) {
    matrix = normal_floats(width * width, 1.0 / std::sqrt(static_cast<double>(width)), engine);
  }
  const Dims square{width, width}, shape{arguments.batch, n, width};
  std::vector<float> output(x.size());
  multihead::Trace trace{.wanted = arguments.steps};
  multihead::Context context;
  multihead::MultiHeadAttention module;
  multihead::Status status = multihead::MultiHeadAttention::create(
      {.embed_dim = width, .num_heads = arguments.heads}, module);
  if (status.ok()) {
    status = module.use_weights({.q_proj = {projections[0].data(), square},
                                 .k_proj = {projections[1].data(), square},
                                 .v_proj = {projections[2].data(), square},
                                 .out_proj = {projections[3].data(), square}});
  }
  if (status.ok()) {
    status =
        module.forward({.query = {x.data(), shape}},
                       {.attention = {.causal = arguments.causal ? multihead::Causal::top_left()
                                                                 : multihead::Causal::none()}},
                       {.out = {output.data(), shape}}, &trace, context);
  }
  if (!status.ok()) return refuse(status);
  if (arguments.json) {
    print_json(tokens, trace);
    return multihead::kExitOk;
  }
  std::printf("%lld tokens, d_model %lld, %lld heads of %lld, %s, on %s\n",
              static_cast<long long>(n), static_cast<long long>(width),
              static_cast<long long>(arguments.heads),
              static_cast<long long>(width / arguments.heads),
              arguments.causal ? "causal" : "not causal", multihead::simd_target());
  std::printf(
      "Embeddings and weights are random (seed %u): the steps are real, the pattern of\n"
      "the weights means nothing.\n",
      arguments.seed);
  print_steps(arguments.print, tokens, trace);
  return multihead::kExitOk;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Prints every step of multi-head self-attention on one sentence, or on scores.");
  const CLI::Range size(1, 8192);  // a projection of 8192 by 8192 takes 256 MB and two seconds
  app.add_option("sentence", arguments.sentence, "The sentence")->capture_default_str();
  app.add_option("--heads", arguments.heads, "Number of heads; must divide --d-model")
      ->check(size)
      ->capture_default_str();
  app.add_option("--d-model", arguments.embed_dim, "Width of the embeddings")
      ->check(size)
      ->capture_default_str();
  app.add_flag("--causal", arguments.causal, "A token sees only itself and earlier tokens");
  app.add_option("--head", arguments.print.head, "The head whose matrices are printed, from 1")
      ->capture_default_str();
  app.add_option("--columns", arguments.print.columns, "Columns shown of wide matrices")
      ->check(size)
      ->capture_default_str();
  app.add_option("--batch", arguments.batch, "Number of copies of the sentence")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--steps", arguments.steps, "Names of the steps to print; default all")
      ->delimiter(',');
  const CLI::Option* const scores =
      app.add_option("--scores", arguments.scores,
                     "Scores instead of a sentence: rows separated by ';', heads by '/'");
  app.add_flag("--json", arguments.json, "Everything as JSON; null stands for -infinity");
  app.add_option("--seed", arguments.seed, "Seed of embeddings and weights")->capture_default_str();
  app.footer(
      "Exit code: 0; 1 if there is too little memory; 2 for wrong arguments; 3 if the output\n"
      "cannot be written.");
  try {
    app.parse(argc, argv);
    arguments.of_scores = scores->count() > 0;
    return multihead::finished(run(arguments));
  } catch (const CLI::ParseError& error) {
    // CLI11 reports --help as an exception too, although it is not an error.
    return multihead::finished(app.exit(error) == 0 ? multihead::kExitOk : multihead::kExitUsage);
  } catch (const std::bad_alloc&) {
    std::fputs("memory: expected as much as the trace needs, got none left to allocate\n", stderr);
    return multihead::kExitFailed;
  }
}
