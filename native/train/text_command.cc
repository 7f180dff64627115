#include "text_command.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "curve_json.h"
#include "text_data.h"

namespace multihead::train {
namespace {

using Json = nlohmann::ordered_json;

void print_json(const TextOptions& options, const RunOptions& run_options, const TextData& data,
                const TextLearner& learner, const Run& run, const Measurement& held_out,
                const std::string& sample, const Context& context) {
  const Json document = {{"experiment", "text"},
                         {"file", options.file},
                         {"tokens", data.size()},
                         {"vocabulary", data.vocabulary.size()},
                         {"of_bytes", data.of_bytes},
                         {"layers", options.layers},
                         {"width", options.width},
                         {"heads", options.heads},
                         {"context", options.context},
                         {"seed", run_options.seed},
                         {"positions", run_options.positions},
                         {"steps", run_options.steps},
                         {"batch", run_options.batch},
                         {"learning_rate", run_options.learning_rate},
                         {"parameters", learner.model().num_parameters()},
                         {"simd", simd_target()},
                         {"threads", context.threads()},
                         {"resumed_from", run.resumed_from},
                         {"steps_done", run.steps_done},
                         {"interrupted", run.interrupted},
                         {"seconds", run.seconds},
                         {"held_out", {{"loss", held_out.loss}, {"accuracy", held_out.accuracy}}},
                         {"sample", sample},
                         {"curve", json_of(run.curve)}};
  // Replace invalid UTF-8, because a sample of bytes may not be UTF-8.
  std::printf("%s\n", document.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace

ExitCode run_text(const TextOptions& options, const RunOptions& run_options) {
  const TextData data = read_text(options.file, options.context);
  TextLearner learner(data, options, run_options);
  Curve so_far = prepare(learner, run_options);
  Context context(run_options.threads);
  if (!run_options.json) {
    std::printf("%s; %lld parameters, positions: %s; %s, threads: %d\n", learner.title().c_str(),
                static_cast<long long>(learner.model().num_parameters()),
                run_options.positions.c_str(), simd_target(), context.threads());
    std::printf("%lld %s of %zu kinds, the last %lld held out\n",
                static_cast<long long>(data.size()), data.of_bytes ? "bytes" : "characters",
                data.vocabulary.size(), static_cast<long long>(data.size() - data.training));
  }
  const Run run = train(learner, std::move(so_far), run_options, context);
  Measurement held_out;
  check(learner.measure(held_out, context), kExitFailed);
  const std::string sample = run.interrupted ? "" : learner.sample(context);
  if (run_options.json) {
    print_json(options, run_options, data, learner, run, held_out, sample, context);
  } else {
    std::printf("%lld steps in %.2f s\n", static_cast<long long>(run.steps_done - run.resumed_from),
                run.seconds);
    std::printf("\nHeld out: loss %.4f, accuracy %.1f %%\n", static_cast<double>(held_out.loss),
                100 * static_cast<double>(held_out.accuracy));
    if (!sample.empty()) std::printf("\n%s\n", sample.c_str());
  }
  return end(run, learner, run_options);
}

}  // namespace multihead::train
