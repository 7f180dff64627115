// multihead-train four-jobs --heads 4 --seed 1
// multihead-train induction --layers 2
// multihead-train text FILE
//
// Trains small models: the two experiments of multihead/experiments.h, or a model on any text.
#include <CLI/CLI.hpp>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "exit_code.h"
#include "experiment_command.h"
#include "multihead/multihead.h"
#include "positions.h"
#include "run_options.h"
#include "text_command.h"

namespace {

using multihead::ExitCode;
using multihead::train::RunOptions;

// Quotes an argument for a shell if needed.
std::string quoted(const std::string& argument) {
  bool plain = !argument.empty();
  for (const char c : argument) {
    const auto byte = static_cast<unsigned char>(c);
    plain =
        plain && (std::isalnum(byte) != 0 || std::string("-_./=,:+").find(c) != std::string::npos);
  }
  if (plain) return argument;
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Returns the command line that continues a run: the given arguments with a new --resume.
std::string command_to_resume(const std::vector<std::string>& arguments,
                              const std::string& checkpoint) {
  std::string command;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--resume") {
      ++i;  // skip its value
    } else if (!arguments[i].starts_with("--resume=")) {
      command += quoted(arguments[i]) + " ";
    }
  }
  return command + "--resume " + quoted(checkpoint);
}

// Checks --seed, because CLI11 would read -1 as 2^64 - 1.
std::string check_seed(const std::string& text) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && parsed == end) return {};
  return "expected an integer from 0 to 2^64 - 1, got " + text;
}

// Checks --temperature, because CLI::Range accepts NaN.
std::string check_temperature(const std::string& text) {
  double number = 0;
  if (CLI::detail::lexical_cast(text, number) && number >= 0 && number <= 100) return {};
  return "expected a number from 0 to 100, got " + text;
}

void add_common(CLI::App& command, RunOptions& run) {
  command
      .add_option("--steps", run.steps, "Updates of the parameters, those before --resume included")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->capture_default_str();
  command.add_option("--batch", run.batch, "Sequences of a step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command.add_option("--learning-rate", run.learning_rate, "Of AdamW, after the warm-up")
      ->capture_default_str();
  command.add_option("--seed", run.seed, "Seed of the first parameters and the data")
      ->check(check_seed)
      ->capture_default_str();
  command.add_option("--positions", run.positions, "How the model knows the order of tokens")
      ->check(CLI::IsMember(multihead::train::kPositionNames))
      ->capture_default_str();
  command.add_option("--threads", run.threads, "0: as many as the processor has")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--checkpoint", run.checkpoint,
                     "Writes parameters and optimizer to this file, at the end too");
  command.add_option("--checkpoint-every", run.checkpoint_every, "Steps between checkpoints")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->capture_default_str();
  command.add_option("--resume", run.resume,
                     "Continues from this checkpoint, with the other options as before");
  command.add_flag("--json", run.json, "Prints one JSON document instead of text");
  command.add_option("--csv", run.csv, "Writes the curve to this file");
  command.add_option("--chart", run.chart, "Draws the curve to this SVG file");
}

void add_experiment(CLI::App& command, multihead::ExperimentOptions& options) {
  command.add_option("--heads", options.num_heads, "Heads of a layer; must divide its width")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--layers", options.num_layers, "Layers")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
}

void add_text(CLI::App& command, multihead::train::TextOptions& options) {
  command.add_option("file", options.file, "The text to learn")->required();
  command.add_option("--layers", options.layers, "Layers of attention and MLP")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--width", options.width, "Width of the embeddings")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_option("--heads", options.heads, "Heads of a layer; must divide --width")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--context", options.context, "Characters that the model sees at once")
      ->check(CLI::Range(2, 8192))
      ->capture_default_str();
  command.add_option("--sample", options.sample, "Characters that the model writes at the end")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command.add_option("--sample-every", options.sample_every, "Steps between samples; 0 for none")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000}))
      ->capture_default_str();
  command.add_option("--prompt", options.prompt, "What samples continue");
  command
      .add_option("--temperature", options.temperature,
                  "Below 1 likely characters are preferred; 0 takes the likeliest")
      ->check(check_temperature)
      ->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  namespace train = multihead::train;
  using multihead::ExperimentKind;
  CLI::App app("Trains small transformers, and shows what their heads have learned.");
  app.require_subcommand(1);
  app.footer(
      "multihead-train COMMAND --help lists the options of a command. Ctrl-C ends a run after its\n"
      "step and writes its checkpoint.\n"
      "Exit code: 0; 1 if training fails or there is too little memory; 2 for wrong arguments; 3 "
      "if\n"
      "a file cannot be read or written; 130 after Ctrl-C.");
  CLI::App& four_jobs = *app.add_subcommand(
      "four-jobs",
      "One layer learns four jobs: previous token, two back, latest vowel, latest star");
  CLI::App& induction =
      *app.add_subcommand("induction", "Two layers learn to continue sequences that repeat");
  CLI::App& text = *app.add_subcommand("text", "A small GPT learns the characters of a file");

  multihead::ExperimentOptions of_jobs{
      .kind = ExperimentKind::kFourJobs, .num_heads = 4, .num_layers = 1};
  // One thread, because steps this small are slower with several threads.
  RunOptions jobs_run{.steps = 600, .batch = 16, .learning_rate = 1e-2F, .threads = 1};
  multihead::ExperimentOptions of_induction{
      .kind = ExperimentKind::kInduction, .num_heads = 2, .num_layers = 2};
  RunOptions induction_run{.steps = 400, .batch = 32, .learning_rate = 1e-2F, .threads = 1};
  train::TextOptions of_text;
  RunOptions text_run{.steps = 1000, .batch = 16, .learning_rate = 3e-3F};
  add_experiment(four_jobs, of_jobs);
  add_common(four_jobs, jobs_run);
  add_experiment(induction, of_induction);
  add_common(induction, induction_run);
  add_text(text, of_text);
  add_common(text, text_run);
  const std::vector<std::string> arguments(argv, argv + argc);
  try {
    app.parse(argc, argv);
    for (RunOptions* const run : {&jobs_run, &induction_run, &text_run}) {
      run->command_to_resume = command_to_resume(arguments, run->checkpoint);
    }
    ExitCode code = multihead::kExitOk;
    if (four_jobs.parsed()) code = train::run_experiment(of_jobs, jobs_run);
    if (induction.parsed()) code = train::run_experiment(of_induction, induction_run);
    text_run.input = of_text.file;
    if (text.parsed()) code = train::run_text(of_text, text_run);
    return multihead::finished(code);
  } catch (const CLI::ParseError& error) {
    // CLI11 reports --help as an exception too, although it is not an error.
    return multihead::finished(app.exit(error) == 0 ? multihead::kExitOk : multihead::kExitUsage);
  } catch (const train::Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return failure.code();
  } catch (const std::bad_alloc&) {
    std::fputs("memory: expected as much as the training needs, got none left to allocate\n",
               stderr);
    return multihead::kExitFailed;
  }
}
