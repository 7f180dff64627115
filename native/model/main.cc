// multihead-model FOLDER --ids 1,15,7 --weights int8
// multihead-model FOLDER --bench --json
// multihead-model lens|patch|ablate|attribute FOLDER ...: see analysis.cc
//
// Runs the model of a folder as Hugging Face stores it: continues token ids, or for a model that is
// no language model prints its vector; or measures how fast it reads a prompt and generates.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/analysis.h"
#include "model/convert.h"
#include "model/open.h"
#include "multihead/directions.h"

namespace {

using multihead::code_of;
using multihead::Context;
using multihead::failed;
using multihead::Status;
using multihead::models::Model;
using multihead::models::ModelInfo;
using multihead::models::Output;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct Arguments {
  multihead::ModelOptions model;
  std::vector<int32_t> ids;
  std::string cache = "f32";
  bool embed = false;
  std::string pooling = "folder";
  bool raw = false;
  std::string truncate = "folder";
  multihead::models::GenerateOptions generate = {};
  std::optional<int32_t> forced_bos = {};
  std::optional<int64_t> no_repeat_ngram_size = {}, min_new_tokens = {};
  std::string sae;
  int64_t feature = 0;
  float strength = 1;
  bool bench = false;
  int64_t prompt = 512;
  int64_t repeats = 3;
};

constexpr std::pair<const char*, multihead::models::Pooling> kPoolings[] = {
    {"mean", multihead::models::Pooling::kMean},
    {"first", multihead::models::Pooling::kFirstToken},
    {"last", multihead::models::Pooling::kLastToken},
    {"max", multihead::models::Pooling::kMax},
    {"mean-sqrt-length", multihead::models::Pooling::kMeanSqrtLength},
    {"weighted-mean", multihead::models::Pooling::kWeightedMean}};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

multihead::DType cache_type(const std::string& name) {
  using multihead::DType;
  for (const DType type : {DType::kF16, DType::kBF16, DType::kInt8}) {
    if (name == multihead::name_of(type)) return type;
  }
  return DType::kF32;
}

json description(const ModelInfo& info, const Arguments& arguments, double load_seconds) {
  return {{"model_type", info.model_type},
          {"layers", info.num_layers},
          {"width", info.embed_dim},
          {"heads", info.num_heads},
          {"vocabulary", info.vocab_size},
          {"parameters", info.parameters},
          {"weights", arguments.model.weights},
          {"weight_bytes", info.weight_bytes},
          {"load_seconds", load_seconds}};
}

int run_generate(const Model& model, const Arguments& arguments, json result, Context& context) {
  multihead::models::GenerateOptions options = arguments.generate;
  multihead::models::TokenRules& rules = options.rules.emplace(model.info().rules);
  if (arguments.forced_bos) rules.forced_bos = arguments.forced_bos;
  const auto& ngram = arguments.no_repeat_ngram_size;
  rules.no_repeat_ngram_size = ngram.value_or(rules.no_repeat_ngram_size);
  if (arguments.min_new_tokens) {
    rules.min_new_tokens = *arguments.min_new_tokens;
    rules.min_length = 0;
  }
  std::vector<float> direction;
  if (!arguments.sae.empty()) {
    multihead::models::SparseAutoencoder autoencoder;
    Status status = multihead::models::SparseAutoencoder::open(arguments.sae, autoencoder);
    if (status.ok()) {
      status = autoencoder.edit(arguments.feature, arguments.strength, direction,
                                options.edits.emplace_back(), model.info().num_heads);
    }
    if (!status.ok()) return failed(status, code_of(status));
  }
  std::vector<int32_t> tokens;
  double first = 0;
  const Clock::time_point begin = Clock::now();
  const auto on_token = [&](int32_t token) {
    if (tokens.empty()) first = seconds_since(begin);
    tokens.push_back(token);
    if (!arguments.model.json) {
      std::printf("%s%d", tokens.size() > 1 ? " " : "", token);
      std::fflush(stdout);
    }
    return true;
  };
  const Status status =
      multihead::models::generate(model, arguments.ids, options, on_token, context);
  if (!status.ok()) return failed(status, code_of(status));
  const double rest = seconds_since(begin) - first;
  const double rate =
      tokens.size() > 1 && rest > 0 ? static_cast<double>(tokens.size() - 1) / rest : 0;
  if (arguments.model.json) {
    result["ids"] = tokens;
    result["prompt_seconds"] = first;
    result["tokens_per_second"] = rate;
    std::printf("%s\n", result.dump(1).c_str());
  } else {
    std::printf("\n");
    std::fprintf(stderr, "%zu tokens, %.1f tokens/s; prompt of %zu in %.3f s\n", tokens.size(),
                 rate, arguments.ids.size(), first);
  }
  return multihead::kExitOk;
}

int run_embed(const Model& model, const Arguments& arguments, json result, Context& context) {
  const int64_t width = model.info().vector_dim;
  std::vector<float> vector(static_cast<size_t>(width));
  multihead::models::EmbedOptions options = {.normalize = !arguments.raw};
  for (const auto& [name, pooling] : kPoolings) {
    if (arguments.pooling == name) options.pooling = pooling;
  }
  if (arguments.truncate != "folder") options.truncate = arguments.truncate == "yes";
  const Status status =
      model.embed({.ids = arguments.ids}, options, {vector.data(), {1, width}}, context);
  if (!status.ok()) return failed(status, code_of(status));
  if (arguments.model.json) {
    result["embedding"] = vector;
    std::printf("%s\n", result.dump(1).c_str());
    return multihead::kExitOk;
  }
  for (size_t i = 0; i < vector.size(); ++i) {
    std::printf("%s%.7g", i > 0 ? " " : "", static_cast<double>(vector[i]));
  }
  std::printf("\n");
  return multihead::kExitOk;
}

// The least time of `repeats` runs of `work`, whose first one fills caches.
template <class Work>
Status least_seconds(int64_t repeats, double& least, const Work& work) {
  for (int64_t i = 0; i <= repeats; ++i) {
    const Clock::time_point begin = Clock::now();
    if (Status status = work(); !status.ok()) return status;
    const double seconds = seconds_since(begin);
    if (i == 1 || (i > 1 && seconds < least)) least = seconds;
  }
  return {};
}

// Bytes of weights that one step of decoding reads: all but the rows of the embedding that no token
// names, unless they are the output matrix.
int run_bench(const Model& model, const Arguments& arguments, json result, Context& context) {
  const ModelInfo& info = model.info();
  int64_t prompt = arguments.prompt;
  if (info.max_tokens > 0) prompt = std::min(prompt, info.max_tokens / 2);
  std::vector<int32_t> ids(static_cast<size_t>(std::max<int64_t>(1, prompt)));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>((i * 7919 + 13) % static_cast<size_t>(info.vocab_size));
  }
  const auto tokens = static_cast<double>(ids.size());
  if (info.output != Output::kLanguageModel) {
    std::vector<float> vector(static_cast<size_t>(info.vector_dim));
    double seconds = 0;
    const Status status = least_seconds(arguments.repeats, seconds, [&] {
      return model.embed({.ids = ids}, {.truncate = false}, {vector.data(), {1, info.vector_dim}},
                         context);
    });
    if (!status.ok()) return failed(status, code_of(status));
    result["prompt_tokens"] = ids.size();
    result["prompt_tokens_per_second"] = tokens / seconds;
  } else {
    const int64_t steps = std::max<int64_t>(1, arguments.generate.max_new_tokens.value_or(128));
    int64_t capacity = static_cast<int64_t>(ids.size()) + steps + 1;
    if (info.max_tokens > 0) capacity = std::min(capacity, info.max_tokens);
    multihead::models::Session session;
    std::vector<float> logits(static_cast<size_t>(info.vocab_size));
    const multihead::Tensor out(logits.data(), {info.vocab_size});
    Status status = multihead::models::Session::create(
        model, {.capacity = capacity, .cache_type = arguments.generate.cache_type}, session);
    double prompt_seconds = 0, step_seconds = 0;
    // Of a decoder with an encoder, which reads the same ids once.
    if (status.ok() && info.has_encoder) status = session.encode(ids, {}, context);
    if (status.ok()) {
      status = least_seconds(arguments.repeats, prompt_seconds, [&]() -> Status {
        if (Status back = session.truncate(0); !back.ok()) return back;
        return session.append(ids, out, context);
      });
    }
    const int64_t after = session.length();
    const int64_t count = std::min(steps, capacity - after);
    if (status.ok()) {
      status = least_seconds(arguments.repeats, step_seconds, [&]() -> Status {
        if (Status back = session.truncate(after); !back.ok()) return back;
        for (int64_t i = 0; i < count; ++i) {
          const std::vector<int32_t> next(1, ids[static_cast<size_t>(i) % ids.size()]);
          if (Status step = session.append(next, out, context); !step.ok()) return step;
        }
        return {};
      });
    }
    if (!status.ok()) return failed(status, code_of(status));
    result["prompt_tokens"] = ids.size();
    result["prompt_tokens_per_second"] = tokens / prompt_seconds;
    result["decoded_tokens"] = count;
    const double rate = static_cast<double>(count) / step_seconds;
    result["decode_tokens_per_second"] = rate;
    result["decode_gigabytes_per_second"] = rate * static_cast<double>(info.step_bytes) * 1e-9;
    result["step_bytes"] = info.step_bytes;
    result["cache_bytes"] = session.bytes();
  }
  result["threads"] = context.threads();
  result["simd"] = multihead::simd_target();
  if (arguments.model.json) {
    std::printf("%s\n", result.dump(1).c_str());
    return multihead::kExitOk;
  }
  for (const auto& [name, value] : result.items()) {
    const std::string text = value.is_string()         ? value.get<std::string>()
                             : value.is_number_float() ? std::to_string(value.get<double>())
                                                       : value.dump();
    std::printf("%-28s %s\n", name.c_str(), text.c_str());
  }
  return multihead::kExitOk;
}

int run(const Arguments& arguments) {
  Model model;
  const Clock::time_point begin = Clock::now();
  const int code = multihead::open_model(arguments.model, model);
  if (code != multihead::kExitOk) return code;
  const ModelInfo& info = model.info();
  json result = description(info, arguments, seconds_since(begin));
  Context context(arguments.model.threads);
  if (arguments.bench) return run_bench(model, arguments, std::move(result), context);
  if (info.output == Output::kLanguageModel && !arguments.embed) {
    return run_generate(model, arguments, std::move(result), context);
  }
  return run_embed(info.has_encoder ? model.encoder() : model, arguments, std::move(result),
                   context);
}

void add_options(CLI::App& app, Arguments& arguments) {
  multihead::add_model_options(app, arguments.model);
  CLI::Option* const ids =
      app.add_option("--ids", arguments.ids, "Token ids of the prompt, separated by commas")
          ->delimiter(',');
  app.add_flag("--bench", arguments.bench, "Measures prompts and decoding instead")->excludes(ids);
  app.add_option("--cache", arguments.cache, "Type of the cached keys and values")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "int8"}))
      ->capture_default_str();
  app.add_option(
         "--max-new-tokens", arguments.generate.max_new_tokens,
         "Tokens to generate; with --bench, to decode. Default: the folder's of a model with "
         "an encoder; else 128")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}));
  app.add_option("--temperature", arguments.generate.sampling.temperature,
                 "0: always the likeliest token")
      ->capture_default_str();
  app.add_option("--top-k", arguments.generate.sampling.top_k, "Only the k likeliest; 0: all")
      ->capture_default_str();
  app.add_option("--top-p", arguments.generate.sampling.top_p, "Only the likeliest that sum to p")
      ->capture_default_str();
  app.add_option("--repetition-penalty", arguments.generate.sampling.repetition_penalty,
                 "Divides the logits of tokens that occurred; 1: none. Default: the folder's");
  app.add_option("--beams", arguments.generate.num_beams,
                 "With more than 1, searches for the likeliest tokens. Default: the folder's")
      ->check(CLI::Range(1, 64));
  app.add_option("--no-repeat-ngram-size", arguments.no_repeat_ngram_size,
                 "No sequence of so many tokens twice; 0: any may be. Default: the folder's")
      ->check(CLI::Range(0, 0x7FFFFFFF));
  app.add_option("--min-new-tokens", arguments.min_new_tokens,
                 "No end before so many tokens. Default: the folder's")
      ->check(CLI::Range(0, 0x7FFFFFFF));
  app.add_option("--forced-bos", arguments.forced_bos,
                 "The second token of a decoder with an encoder, such as a language's")
      ->check(CLI::Range(0, 0x7FFFFFFF));
  app.add_option("--seed", arguments.generate.sampling.seed, "Seed of the random numbers")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 53))
      ->capture_default_str();
  CLI::Option* const sae = app.add_option(
      "--sae", arguments.sae, "Adds a direction of a sparse autoencoder: a folder of SAELens");
  CLI::Option* const feature =
      app.add_option("--feature", arguments.feature, "The feature of that direction")->needs(sae);
  sae->needs(feature);
  app.add_option("--strength", arguments.strength, "Times that direction")
      ->needs(sae)
      ->capture_default_str();
  app.add_flag("--embed", arguments.embed,
               "Prints the vector of the ids, as for a model that is no language model")
      ->excludes(sae);
  app.add_option("--pooling", arguments.pooling, "How the vector is made of the tokens")
      ->check(CLI::IsMember(
          {"folder", "mean", "first", "last", "max", "mean-sqrt-length", "weighted-mean"}))
      ->capture_default_str();
  app.add_flag("--raw", arguments.raw,
               "The vector as the folder's modules give it, and not of length 1");
  app.add_option("--truncate", arguments.truncate, "Cuts what is too long for a vector")
      ->check(CLI::IsMember({"folder", "yes", "no"}))
      ->capture_default_str();
  app.add_option("--prompt", arguments.prompt, "With --bench: tokens of the prompt")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--repeats", arguments.repeats, "With --bench: runs, of which the best counts")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  using multihead::finished;
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (argc > 1 && (command == "convert" || multihead::is_analysis(argv[1]))) {
    try {
      return finished(command == "convert" ? multihead::run_convert(argc - 1, argv + 1)
                                           : multihead::run_analysis(argc - 1, argv + 1));
    } catch (const std::bad_alloc&) {
      std::fprintf(stderr, "memory is exhausted\n");
      return multihead::kExitFailed;
    }
  }
  CLI::App app{
      "Runs the model of a Hugging Face folder on token ids. Other commands, each with --help: "
      "lens, patch, ablate, attribute, convert.",
      "multihead-model"};
  Arguments arguments;
  add_options(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return finished(app.exit(error) == 0 ? multihead::kExitOk : multihead::kExitUsage);
  }
  if (arguments.ids.empty() && !arguments.bench) {
    std::fprintf(stderr, "--ids: expected token ids, or --bench, got neither\n");
    return multihead::kExitUsage;
  }
  arguments.generate.cache_type = cache_type(arguments.cache);
  try {
    return finished(run(arguments));
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "memory is exhausted\n");
    return multihead::kExitFailed;
  }
}
