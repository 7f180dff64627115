// multihead-model lens FOLDER --ids 1,15,7
// multihead-model patch FOLDER --ids 1,15,7 --corrupt-ids 1,16,7 --token 5 --against 9 --by head
// multihead-model ablate FOLDER --ids 1,15,7 --ids 3,4,5,6 --mean
// multihead-model attribute FOLDER --ids 1,15,7 --token 5 --against 9
#include "model/analysis.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "model/open.h"
#include "multihead/analysis.h"

namespace multihead {
namespace {

using models::By;
using models::Metric;
using models::Model;
using models::ModelInputs;
using models::Site;
using nlohmann::json;

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // required in signal handlers

extern "C" void stop_sweep(int signal) {
  interrupted = true;
  std::signal(signal, SIG_DFL);  // a second Ctrl-C ends the program at once
}

constexpr std::pair<const char*, const char*> kCommands[] = {
    {"lens", "The likeliest next tokens by the residual stream before each layer (logit lens)."},
    {"patch",
     "The metric of --ids in which one part has its value of --corrupt-ids, for each part."},
    {"ablate", "The metric without each head in turn."},
    {"attribute",
     "What each part adds to a difference of logits; with --corrupt-ids, an estimate of how the "
     "metric changes if a part has its value of those (attribution patching)."}};
constexpr std::pair<const char*, By> kBys[] = {
    {"layer", By::kLayer}, {"head", By::kHead}, {"position", By::kPosition}};

struct Arguments {
  ModelOptions model;
  std::vector<std::string> texts, decoders;
  std::string corrupt;
  int32_t token = -1, against = -1;
  int64_t position = -1;
  models::LensOptions lens;
  std::string site = "z", by = "head", chart;
  bool mean = false, cross = false;
};

// A table of numbers, one row for each layer.
struct Table {
  std::string title, columns;
  size_t parts = 1;
  std::vector<float> values;
  float neutral = 0;  // white in the chart
};

bool read_ids(const std::string& text, std::vector<int32_t>& ids) {
  for (const char* at = text.c_str();; ++at) {
    const auto [end, error] = std::from_chars(at, text.data() + text.size(), ids.emplace_back());
    if (error != std::errc()) return false;
    if (*end == '\0') return end == text.data() + text.size();
    if (*end != ',') return false;
    at = end;
  }
}

// A difference of logits, a log-probability, or the mean of all.
Metric metric_of(const Arguments& arguments) {
  Metric metric{.kind = Metric::Kind::kMeanLogProbability, .position = arguments.position};
  if (arguments.token < 0) return metric;
  metric.token = arguments.token;
  metric.kind = Metric::Kind::kLogProbability;
  if (arguments.against < 0) return metric;
  metric.kind = Metric::Kind::kLogitDifference;
  metric.against = arguments.against;
  return metric;
}

void print(const Table& table) {
  std::printf("%s\nlayer", table.title.c_str());
  if (table.parts > 1) std::printf("  %s", table.columns.c_str());
  for (size_t i = 0; i < table.values.size(); ++i) {
    if (i % table.parts == 0) std::printf("\n%5zu ", i / table.parts);
    std::printf(" %9.4f", static_cast<double>(table.values[i]));
  }
  std::printf("\n");
}

json rows_of(const Table& table) {
  json rows = json::array();
  for (size_t i = 0; i < table.values.size(); ++i) {
    if (i % table.parts == 0) rows.push_back(json::array());
    rows.back().push_back(table.values[i]);
  }
  return rows;
}

// Red above the neutral value, blue below, as far as the largest deviation.
bool write_chart(const Table& table, const std::string& path) {
  constexpr size_t kCell = 22, kLeft = 46, kTop = 54;
  const size_t rows = table.values.size() / table.parts;
  const size_t width = std::max<size_t>(420, kLeft + table.parts * kCell + 10);
  const size_t height = kTop + rows * kCell + 10;
  float most = 1e-30F;
  for (const float value : table.values) most = std::max(most, std::abs(value - table.neutral));
  std::ofstream file(path);
  file << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << height
       << "\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
          "fill=\"#fff\"/>\n<text x=\"8\" y=\"18\" font-size=\"13\">"
       << table.title << "</text>\n<text x=\"" << kLeft << "\" y=\"" << kTop - 18 << "\">"
       << table.columns << "</text>\n<text x=\"8\" y=\"" << kTop - 4 << "\">layer</text>\n";
  for (size_t part = 0; part < table.parts; ++part) {
    file << "<text x=\"" << kLeft + part * kCell + kCell / 2 << "\" y=\"" << kTop - 4
         << "\" text-anchor=\"middle\">" << part << "</text>\n";
  }
  for (size_t i = 0; i < table.values.size(); ++i) {
    const size_t row = i / table.parts, part = i % table.parts;
    const float share = (table.values[i] - table.neutral) / most;
    const int pale = 255 - static_cast<int>(190 * std::abs(share));
    char color[32];
    std::snprintf(color, sizeof color, "rgb(%d,%d,%d)", share < 0 ? pale : 235, pale,
                  share > 0 ? pale : 235);
    if (part == 0) {
      file << "<text x=\"38\" y=\"" << kTop + row * kCell + 15 << "\" text-anchor=\"end\">" << row
           << "</text>\n";
    }
    file << "<rect x=\"" << kLeft + part * kCell << "\" y=\"" << kTop + row * kCell << "\" width=\""
         << kCell - 1 << "\" height=\"" << kCell - 1 << "\" fill=\"" << color << "\"><title>"
         << table.values[i] << "</title></rect>\n";
  }
  file << "</svg>\n";
  return file.flush().good();
}

// Prints the tables, the first of which is the chart.
int show(const Arguments& arguments, json result, const std::vector<Table>& tables) {
  if (!arguments.chart.empty() && !write_chart(tables[0], arguments.chart)) {
    std::fprintf(stderr, "%s: cannot be written\n", engine::printable(arguments.chart).c_str());
    return kExitIo;
  }
  if (arguments.model.json) {
    std::printf("%s\n", result.dump(1).c_str());
    return kExitOk;
  }
  for (const auto& [name, value] : result.items()) {
    if (value.is_number()) std::printf("%s %.6g\n", name.c_str(), value.get<double>());
  }
  for (const Table& table : tables) print(table);
  return kExitOk;
}

int run_lens(const Arguments& arguments, const Model& model, const ModelInputs& text,
             Context& context) {
  models::Lens lens;
  const Status status = models::lens(model, text, arguments.lens, lens, {}, context);
  if (!status.ok()) return failed(status, code_of(status));
  const size_t tokens = text.ids.size(), top = static_cast<size_t>(arguments.lens.top);
  const auto last = static_cast<int64_t>(tokens);
  const int64_t position = arguments.position + (arguments.position < 0 ? last : 0);
  if (position < 0 || position >= last) {
    return failed({StatusCode::kOption, "--position",
                   std::to_string(-last) + " to " + std::to_string(last - 1),
                   std::to_string(arguments.position)},
                  kExitUsage);
  }
  std::vector<int64_t> layers = arguments.lens.layers;
  for (int64_t layer = 0; layer <= model.info().num_layers && arguments.lens.layers.empty();) {
    layers.push_back(layer++);
  }
  Table table{.title = "probability of the likeliest token",
              .columns = "position",
              .parts = tokens,
              .values = {}};
  for (size_t row = 0; row < layers.size() * tokens && top > 0; ++row) {
    table.values.push_back(lens.probabilities[row * top]);
  }
  const json result = {{"layers", layers},
                       {"tokens", tokens},
                       {"top", top},
                       {"ids", lens.ids},
                       {"probabilities", lens.probabilities},
                       {"ranks", lens.ranks},
                       {"token_probabilities", lens.token_probabilities}};
  const int code = show(arguments, result, {table});
  if (code != kExitOk || arguments.model.json) return code;
  std::printf("after position %lld: likeliest tokens and their probabilities\nlayer\n",
              static_cast<long long>(position));
  for (size_t i = 0; i < layers.size(); ++i) {
    std::printf("%5lld ", static_cast<long long>(layers[i]));
    const size_t row = i * tokens + static_cast<size_t>(position);
    for (size_t at = row * top; at < (row + 1) * top; ++at) {
      std::printf("  %d %.4f", lens.ids[at], static_cast<double>(lens.probabilities[at]));
    }
    for (size_t at = 0; at < arguments.lens.tokens.size(); ++at) {
      std::printf("  token %d: rank %lld", arguments.lens.tokens[at],
                  static_cast<long long>(lens.ranks[row * arguments.lens.tokens.size() + at]));
    }
    std::printf("\n");
  }
  return kExitOk;
}

int run_logit_attribution(const Arguments& arguments, const Model& model, const ModelInputs& text,
                          Context& context) {
  models::LogitAttribution parts;
  const Status status =
      models::logit_attribution(model, text, metric_of(arguments), parts, context);
  if (!status.ok()) return failed(status, code_of(status));
  const std::vector<Table> tables = {
      {.title = "added by heads",
       .columns = "head",
       .parts = static_cast<size_t>(model.info().num_heads),
       .values = parts.heads},
      {.title = "added by MLPs", .columns = "", .values = parts.mlp}};
  return show(arguments,
              {{"metric", parts.metric},
               {"embedding", parts.embedding},
               {"rest", parts.rest},
               {"heads", rows_of(tables[0])},
               {"mlp", parts.mlp}},
              tables);
}

int run_sweep(const std::string& command, const Arguments& arguments, const Model& model,
              const std::vector<ModelInputs>& texts, const ModelInputs& corrupt, Context& context) {
  const std::optional<Site> site = models::site_of(arguments.site);
  // An unknown site is refused with the names of those that there are.
  const Site of = site.value_or(static_cast<Site>(models::kSites));
  const By by = std::find_if(std::begin(kBys), std::end(kBys), [&](const auto& each) {
                  return arguments.by == each.first;
                })->second;
  const Metric metric = metric_of(arguments);
  models::PartResults parts;
  ProgressLine line(command.c_str());
  const models::Progress progress = [&](double share) {
    line.show(share);
    return !interrupted;
  };
  const bool estimates = command == "attribute";
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, stop_sweep);
  Status status;
  if (command == "ablate") {
    status = models::ablate(model, texts, metric,
                            arguments.mean ? models::Ablation::kMean : models::Ablation::kZero,
                            parts, context, progress, arguments.cross ? Site::kCrossZ : Site::kZ);
  } else if (estimates) {
    status =
        models::attribution_patch(model, texts[0], corrupt, metric, of, by, false, parts, context);
  } else {
    status = models::patch(model, texts[0], corrupt, metric, of, by, parts, context, progress);
  }
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  if (interrupted) {
    std::fprintf(stderr, "interrupted\n");
    return kExitInterrupted;
  }
  if (!status.ok() && !site) {
    status = {status.code(), status.argument(), status.expected(),
              engine::printable(arguments.site)};
  }
  if (!status.ok()) return failed(status, code_of(status));
  Table table{.title = estimates ? "estimated change of the metric by " + arguments.site
                       : command == "patch"
                           ? "metric with " + arguments.site + " of the corrupt run"
                           : "metric without the head",
              .columns = command == "ablate" ? "head" : arguments.by,
              .parts = static_cast<size_t>(parts.parts),
              .values = parts.values,
              .neutral = estimates ? 0.0F : static_cast<float>(parts.clean)};
  json result = {{"clean", parts.clean}, {"values", rows_of(table)}};
  if (command != "ablate") result["corrupt"] = parts.corrupt;
  return show(arguments, std::move(result), {table});
}

void add_options(CLI::App& app, const std::string& command, Arguments& arguments) {
  add_model_options(app, arguments.model);
  CLI::Option* const ids =
      app.add_option("--ids", arguments.texts, "Token ids, separated by commas")
          ->required()
          ->allow_extra_args(false);
  app.add_option("--chart", arguments.chart, "Writes the table as an SVG file, too");
  app.add_option("--position", arguments.position, "Of a token; negative: from the end")
      ->capture_default_str();
  if (command == "lens") {
    app.add_option("--layers", arguments.lens.layers, "Layers whose input is read; default: all")
        ->delimiter(',');
    app.add_option("--top", arguments.lens.top, "Number of likeliest tokens")
        ->capture_default_str();
    app.add_option("--tokens", arguments.lens.tokens, "Ids whose ranks are wanted")->delimiter(',');
    return;
  }
  CLI::Option* const token =
      app.add_option("--token", arguments.token,
                     "Metric: the log-probability of this id after the position. Without it: the "
                     "mean of all tokens' log-probabilities")
          ->check(CLI::NonNegativeNumber);
  CLI::Option* const against = app.add_option("--against", arguments.against,
                                              "Metric: the logit of --token minus that of this id")
                                   ->check(CLI::NonNegativeNumber)
                                   ->needs(token);
  if (command == "ablate") {
    app.add_flag("--mean", arguments.mean, "Heads get their mean over all texts instead of 0");
    app.add_flag("--cross", arguments.cross, "Heads of cross-attention of a model with an encoder");
    app.add_option("--decoder-ids", arguments.decoders,
                   "Of a model with an encoder: what the decoder has, once for each text")
        ->allow_extra_args(false);
    ids->description("Token ids of a text, separated by commas; once for each text");
    return;
  }
  CLI::Option* const corrupt =
      app.add_option("--corrupt-ids", arguments.corrupt, "As many token ids as --ids");
  if (command == "patch") corrupt->required();
  if (command == "attribute")
    against->description("Metric: the logit of --token minus that of this id");
  app.add_option("--site", arguments.site, "The value that is replaced")->capture_default_str();
  app.add_option("--by", arguments.by, "Replaced at once: a layer, or each head or position")
      ->check(CLI::IsMember({"layer", "head", "position"}))
      ->capture_default_str();
}

}  // namespace

bool is_analysis(const char* name) {
  return std::any_of(std::begin(kCommands), std::end(kCommands),
                     [&](const auto& command) { return std::string_view(command.first) == name; });
}

int run_analysis(int argc, char** argv) {
  const std::string command = argv[0];
  CLI::App app{std::find_if(std::begin(kCommands), std::end(kCommands),
                            [&](const auto& each) { return command == each.first; })
                   ->second,
               "multihead-model " + command};
  Arguments arguments;
  add_options(app, command, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const size_t decoders = arguments.decoders.size();
  std::vector<std::vector<int32_t>> ids(arguments.texts.size()), targets(decoders);
  std::vector<int32_t> corrupt;
  bool read = arguments.corrupt.empty() || read_ids(arguments.corrupt, corrupt);
  for (size_t i = 0; i < ids.size(); ++i) read = read && read_ids(arguments.texts[i], ids[i]);
  for (size_t i = 0; i < decoders; ++i) read = read && read_ids(arguments.decoders[i], targets[i]);
  if (read && decoders > 0 && decoders != ids.size()) {
    std::fprintf(stderr, "--decoder-ids: expected as many as --ids, %zu, got %zu\n", ids.size(),
                 decoders);
    return kExitUsage;
  }
  if (!read || (command != "ablate" && ids.size() != 1)) {
    std::fprintf(stderr, "--ids: expected %s, got %s\n",
                 read ? "one list" : "numbers, separated by commas",
                 read ? "more" : "something else");
    return kExitUsage;
  }
  Model model;
  if (const int code = open_model(arguments.model, model); code != kExitOk) return code;
  Context context(arguments.model.threads);
  std::vector<ModelInputs> texts;
  for (size_t i = 0; i < ids.size(); ++i) {
    texts.push_back({.ids = decoders > 0 ? targets[i] : ids[i]});
    if (decoders > 0) texts.back().source = ids[i];
  }
  if (command == "lens") return run_lens(arguments, model, texts[0], context);
  if (command == "attribute" && arguments.corrupt.empty()) {
    return run_logit_attribution(arguments, model, texts[0], context);
  }
  return run_sweep(command, arguments, model, texts, {.ids = corrupt}, context);
}

}  // namespace multihead
