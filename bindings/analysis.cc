// Analyses of models as JavaScript calls them.
#include "multihead/analysis.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "functions.h"
#include "handles.h"
#include "lists.h"
#include "models/sweep.h"
#include "results.h"

namespace multihead::bindings {
namespace {

using models::Model;

// What the last analysis gave, which JavaScript copies.
struct Given {
  LensRows rows;
  PartResults parts;
  LogitAttribution attribution;
};
Given last;

// A sweep; and where the next row of logits goes, if JavaScript computes the metric.
struct JavaScriptSweep {
  models::Sweep sweep;
  float* row = nullptr;
};

// Functions of JavaScript are computed there; here they have a gradient, or give their logits away.
Metric metric_of(const GivenMetric& given, JavaScriptSweep* sweep = nullptr) {
  Metric metric = given;
  if (metric.kind != Metric::Kind::kFunction) return metric;
  metric.function = [slopes = given.slopes, sweep](std::span<const float> logits,
                                                   std::span<float> gradient) {
    std::copy_n(slopes.begin(), std::min(slopes.size(), gradient.size()), gradient.begin());
    if (sweep != nullptr) sweep->row = std::copy(logits.begin(), logits.end(), sweep->row);
    return 0.0;
  };
  return metric;
}

// Runs an analysis, and writes what it gave.
template <class Result, class Work>
int32_t analyze(const Arguments& from, const Result& result, Work work) {
  last = {};
  const int32_t status = run(from, work);
  if (status == 0) write(result);
  return status;
}

}  // namespace

int32_t model_lens(int32_t handle) {
  const LensCall call;
  return analyze(call.from, last.rows, [&] {
    const Edited input(call.inputs, call.edits);
    models::Lens lens;
    Status status = models::lens(at<Model>(handle), input.inputs,
                                 {.layers = {call.layers.begin(), call.layers.end()},
                                  .top = call.top,
                                  .tokens = {call.tokens.begin(), call.tokens.end()}},
                                 lens, call.logits, context());
    last.rows = {std::move(lens.ids),
                 std::move(lens.probabilities),
                 {lens.ranks.begin(), lens.ranks.end()},
                 std::move(lens.token_probabilities)};
    return status;
  });
}

int32_t model_log_probabilities(int32_t handle) {
  const LogProbabilitiesCall call;
  return analyze(call.from, last.rows, [&] {
    const Edited input(call.inputs, call.edits);
    models::TokenProbabilities rated;
    Status status = models::log_probabilities(at<Model>(handle), input.inputs, rated, context());
    last.rows.probabilities = std::move(rated.values);
    last.rows.ranks = {rated.ranks.begin(), rated.ranks.end()};
    return status;
  });
}

int32_t model_measure(int32_t handle) {
  const MeasureCall call;
  return analyze(call.from, last.parts, [&]() -> Status {
    const Edited input(call.inputs, call.edits);
    std::vector<double> metrics;
    MULTIHEAD_TRY(models::measure(at<Model>(handle), input.inputs, metric_of(call.metric), metrics,
                                  context()));
    last.parts.clean = metrics[0];
    return {};
  });
}

int32_t model_gradients(int32_t handle) {
  const GradientsCall call;
  return run(call.from, [&] {
    std::vector<models::GradientOutput> outputs;
    for (const models::Capture& each : captures_of(call.outputs)) {
      outputs.push_back({.site = each.site, .layer = each.layer, .out = each.out});
    }
    return models::gradients(at<Model>(handle), call.inputs, metric_of(call.metric), outputs,
                             context());
  });
}

int32_t model_attribution_patch(int32_t handle) {
  const AttributionPatchCall call;
  return analyze(call.from, last.parts, [&] {
    return models::attribution_patch(at<Model>(handle), call.clean, call.corrupt,
                                     metric_of(call.metric), call.site, call.by, call.positions,
                                     last.parts, context());
  });
}

int32_t model_logit_attribution(int32_t handle) {
  const LogitAttributionCall call;
  return analyze(call.from, last.attribution, [&] {
    return models::logit_attribution(at<Model>(handle), call.inputs, metric_of(call.metric),
                                     last.attribution, context());
  });
}

int32_t patch_sweep_create(int32_t model) {
  const PatchSweepCall call;
  return make<JavaScriptSweep>(call.from, [&](JavaScriptSweep& made) {
    return made.sweep.patch(at<Model>(model), call.clean, call.corrupt,
                            metric_of(call.metric, &made), call.site, call.by);
  });
}

int32_t ablation_sweep_create(int32_t model) {
  const AblationSweepCall call;
  return make<JavaScriptSweep>(call.from, [&](JavaScriptSweep& made) {
    std::vector<ModelInputs> texts;
    size_t first = 0, first_of_source = 0;
    for (size_t text = 0; text < call.lengths.size(); ++text) {
      ModelInputs& inputs = texts.emplace_back(call.inputs);
      const auto cut = [text](std::span<const int32_t> ids, std::span<const int32_t> lengths,
                              size_t& begin) {
        if (lengths.empty()) return ids;
        const auto tokens = static_cast<size_t>(lengths[text]);
        begin += tokens;
        return ids.subspan(begin - tokens, tokens);
      };
      inputs.ids = cut(inputs.ids, call.lengths, first);
      inputs.source = cut(inputs.source, call.source_lengths, first_of_source);
    }
    return made.sweep.ablate(at<Model>(model), texts, metric_of(call.metric, &made), call.ablation,
                             call.site, context());
  });
}

void sweep_release(int32_t handle) { release_object<JavaScriptSweep>(handle); }

int32_t sweep_run(int32_t handle) {
  const SweepRunCall call;
  auto& [sweep, row] = at<JavaScriptSweep>(handle);
  SweepProgress progress;
  const int32_t status = run(call.from, [&]() -> Status {
    std::vector<double> metrics;
    row = call.logits.data;
    MULTIHEAD_TRY(sweep.run(call.most, metrics, context()));
    progress.runs = static_cast<int64_t>(metrics.size());
    if (row == nullptr) MULTIHEAD_TRY(sweep.record(metrics));
    progress.done = sweep.done();
    return {};
  });
  if (status == 0) write(progress);
  return status;
}

int32_t sweep_record(int32_t handle) {
  const SweepRecordCall call;
  models::Sweep& sweep = at<JavaScriptSweep>(handle).sweep;
  SweepProgress progress;
  const int32_t status = run(call.from, [&] { return sweep.record(call.metrics); });
  progress.done = sweep.done();
  if (status == 0) write(progress);
  return status;
}

void sweep_results(int32_t handle) {
  last = {};
  last.parts = at<JavaScriptSweep>(handle).sweep.results();
  write(last.parts);
}

}  // namespace multihead::bindings
