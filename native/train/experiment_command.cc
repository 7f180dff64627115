#include "experiment_command.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "curve_json.h"
#include "multihead/multihead.h"
#include "positions.h"
#include "training_loop.h"

namespace multihead::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFinalSequences = 512;  // in the final evaluation
constexpr double kDoesTheJob = 0.5;       // attention at which a head is named after a job

std::vector<std::string> strings(std::span<const std::string_view> names) {
  return {names.begin(), names.end()};
}

const char* name_of(ExperimentKind kind) {
  return kind == ExperimentKind::kFourJobs ? "four-jobs" : "induction";
}

class ExperimentLearner : public Learner {
 public:
  explicit ExperimentLearner(const ExperimentOptions& options) {
    check(Experiment::create(options, experiment_));
  }

  Trainer& trainer() override { return experiment_.trainer(); }
  std::vector<std::string> jobs() const override {
    const auto names = strings(Experiment::jobs(experiment_.options().kind));
    return names.size() > 1 ? names : std::vector<std::string>{};
  }
  std::string title() const override {
    const ExperimentOptions& o = experiment_.options();
    return std::string(name_of(o.kind)) + ", heads: " + std::to_string(o.num_heads) +
           ", layers: " + std::to_string(o.num_layers) + ", seed: " + std::to_string(o.seed);
  }
  std::vector<KeptOption> kept_options() const override {
    const ExperimentOptions& o = experiment_.options();
    return {{"run.heads", "--heads", o.num_heads},
            {"run.positions", "--positions", static_cast<int64_t>(o.positions), position_name}};
  }
  Status step(TrainingStep& result, Context& context) override {
    return experiment_.step(result, context);
  }
  Status measure(Measurement& result, Context& context) override {
    Evaluation evaluation;
    Status status =
        experiment_.evaluate({.sequences = 64, .attention = false}, evaluation, context);
    result = {static_cast<float>(evaluation.loss),
              static_cast<float>(evaluation.accuracy),
              {evaluation.job_accuracy.begin(), evaluation.job_accuracy.end()}};
    return status;
  }

  const Experiment& experiment() const { return experiment_; }

 private:
  Experiment experiment_;
};

// Returns "head 2", or with several layers "layer 1, head 2", counted from 1.
std::string head_name(const ExperimentOptions& options, int64_t head) {
  std::string of_layer = "head " + std::to_string(head % options.num_heads + 1);
  if (options.num_layers == 1) return of_layer;
  return "layer " + std::to_string(head / options.num_heads + 1) + ", " + of_layer;
}

// Returns the patterns to which this head attends more than any other head.
std::vector<std::string> jobs_of_head(const ExperimentOptions& options,
                                      const Evaluation& evaluation, int64_t head) {
  const auto patterns = strings(Experiment::patterns(options.kind));
  std::vector<std::string> found;
  for (size_t pattern = 0; pattern < patterns.size(); ++pattern) {
    if (evaluation.head_of_pattern[pattern] == head &&
        evaluation.attention[static_cast<size_t>(head) * patterns.size() + pattern] >=
            kDoesTheJob) {
      found.push_back(patterns[pattern]);
    }
  }
  return found;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

constexpr int kLabelWidth = 16;

// Prints one row of a table. The columns are as wide as their names.
void print_row(const std::string& label, const std::vector<std::string>& columns,
               const double* values, bool per_cent, const std::string& note) {
  std::printf("  %-*s", kLabelWidth, label.c_str());
  for (size_t column = 0; column < columns.size(); ++column) {
    const int width = static_cast<int>(columns[column].size());
    if (per_cent) {
      std::printf("  %*.1f %%", width < 7 ? 5 : width - 2, 100 * values[column]);
    } else {
      std::printf("  %*.2f", width, values[column]);
    }
  }
  std::printf("%s%s\n", note.empty() ? "" : "  ", note.c_str());
}

void print_columns(const std::vector<std::string>& columns) {
  std::printf("  %-*s", kLabelWidth, "");
  for (const std::string& column : columns) std::printf("  %s", column.c_str());
  std::printf("\n");
}

void print_report(const ExperimentOptions& options, const Evaluation& evaluation) {
  const auto jobs = strings(Experiment::jobs(options.kind));
  const auto patterns = strings(Experiment::patterns(options.kind));
  const int64_t heads = options.num_heads * options.num_layers;
  std::printf("\nOn %lld held-out sequences: loss %.4f, accuracy %.1f %%\n",
              static_cast<long long>(kFinalSequences), evaluation.loss, 100 * evaluation.accuracy);
  std::printf("\nMean attention on the keys that hold the answer\n");
  print_columns(patterns);
  for (int64_t head = 0; head < heads; ++head) {
    print_row(head_name(options, head), patterns,
              &evaluation.attention[static_cast<size_t>(head) * patterns.size()], false,
              joined(jobs_of_head(options, evaluation, head)));
  }
  std::printf("\nAccuracy with one head muted\n");
  print_columns(jobs);
  print_row("none", jobs, evaluation.job_accuracy.data(), true, "");
  for (int64_t head = 0; head < heads; ++head) {
    print_row(head_name(options, head), jobs,
              &evaluation.muted_accuracy[static_cast<size_t>(head) * jobs.size()], true,
              joined(jobs_of_head(options, evaluation, head)));
  }
}

Json named_values(const std::vector<std::string>& names, const double* values) {
  Json object = Json::object();
  for (size_t i = 0; i < names.size(); ++i) object[names[i]] = values[i];
  return object;
}

void print_json(const Experiment& experiment, const Evaluation& evaluation, const Run& run,
                const Context& context) {
  const ExperimentOptions& options = experiment.options();
  const auto jobs = strings(Experiment::jobs(options.kind));
  const auto patterns = strings(Experiment::patterns(options.kind));
  Json heads = Json::array();
  for (int64_t head = 0; head < options.num_heads * options.num_layers; ++head) {
    const auto at = static_cast<size_t>(head);
    heads.push_back(
        {{"layer", head / options.num_heads + 1},
         {"head", head % options.num_heads + 1},
         {"attention", named_values(patterns, &evaluation.attention[at * patterns.size()])},
         {"jobs", jobs_of_head(options, evaluation, head)},
         {"accuracy_if_muted", named_values(jobs, &evaluation.muted_accuracy[at * jobs.size()])}});
  }
  const Json document = {{"experiment", name_of(options.kind)},
                         {"heads", options.num_heads},
                         {"layers", options.num_layers},
                         {"seed", options.seed},
                         {"positions", kPositionNames[static_cast<size_t>(options.positions)]},
                         {"steps", options.steps},
                         {"batch", options.batch},
                         {"learning_rate", options.learning_rate},
                         {"parameters", experiment.model().num_parameters()},
                         {"simd", simd_target()},
                         {"threads", context.threads()},
                         {"resumed_from", run.resumed_from},
                         {"steps_done", run.steps_done},
                         {"interrupted", run.interrupted},
                         {"seconds", run.seconds},
                         {"held_out",
                          {{"sequences", kFinalSequences},
                           {"loss", evaluation.loss},
                           {"accuracy", evaluation.accuracy},
                           {"jobs", named_values(jobs, evaluation.job_accuracy.data())}}},
                         {"attention_heads", heads},
                         {"curve", json_of(run.curve)}};
  std::printf("%s\n", document.dump().c_str());
}

}  // namespace

ExitCode run_experiment(ExperimentOptions options, RunOptions run_options) {
  options.seed = run_options.seed;
  options.positions = position_kind(run_options.positions);
  options.steps = run_options.steps;
  options.batch = run_options.batch;
  options.learning_rate = run_options.learning_rate;
  ExperimentLearner learner(options);
  const Experiment& experiment = learner.experiment();
  options = experiment.options();
  run_options.steps = options.steps;
  Curve so_far = prepare(learner, run_options);
  Context context(run_options.threads);
  if (!run_options.json) {
    std::printf("%s; %lld parameters, positions: %s; %s, threads: %d\n", learner.title().c_str(),
                static_cast<long long>(experiment.model().num_parameters()),
                run_options.positions.c_str(), simd_target(), context.threads());
  }
  const Run run = train(learner, std::move(so_far), run_options, context);
  Evaluation evaluation;
  check(experiment.evaluate({.sequences = kFinalSequences, .ablation = true}, evaluation, context),
        kExitFailed);
  if (run_options.json) {
    print_json(experiment, evaluation, run, context);
  } else {
    std::printf("%lld steps in %.2f s\n", static_cast<long long>(run.steps_done - run.resumed_from),
                run.seconds);
    print_report(options, evaluation);
  }
  return end(run, learner, run_options);
}

}  // namespace multihead::train
