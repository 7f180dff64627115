// Sweeps over the parts of a model: activation patching, ablation, and attribution patching.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/error/error.h"
#include "models/metric.h"
#include "models/sites.h"

namespace multihead::models {
namespace {

// Rows of a pass that runs several variants at once.
constexpr int64_t kRowsAtOnce = 512;

// One site of every layer, (layers, site's shape of one sequence).
struct Values {
  SiteShape shape;
  std::vector<float> numbers;

  int64_t size() const { return shape.shape.elements(); }
  Tensor of(int64_t layer) { return {numbers.data() + layer * size(), shape.shape}; }
};

Values values_of(const Question& question, Site site) {
  Values values{shape_of(*question.model, question.pass, site), {}};
  values.numbers.resize(static_cast<size_t>(question.model->info.num_layers * values.size()));
  return values;
}

void capture(Values& values, Site site, int64_t layers, std::vector<Capture>& captures) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    captures.push_back({.site = site, .layer = layer, .out = values.of(layer)});
  }
}

// Runs the question and copies the values of sites; the metric may be null.
Status run(Question& question, const std::vector<Capture>& captures, double* metric,
           Context& context) {
  question.pass.captures = captures;
  Tensor state;
  const Status status = run_layers(*question.model, question.pass, state, context);
  question.pass.captures = {};
  MULTIHEAD_TRY(status);
  if (metric == nullptr) return {};
  std::vector<double> results;
  MULTIHEAD_TRY(question.metric.evaluate(state, question.pass.inputs.ids, results, context));
  MULTIHEAD_TRY(require_finite(results));
  *metric = results[0];
  return {};
}

// The number of parts of a site in a layer. Errors: kOption.
Status count_parts(const Question& question, Site site, By by, int64_t& parts) {
  const SiteShape shape = shape_of(*question.model, question.pass, site);
  MULTIHEAD_TRY(check_site(*question.model, "site", site));
  parts = by == By::kPosition ? question.pass.tokens : 1;
  if (by > By::kPosition) {
    return {StatusCode::kOption, "by", "a By", std::to_string(static_cast<int>(by))};
  }
  if (by != By::kHead) return {};
  if (shape.head_axis != 2) {
    return {StatusCode::kOption, "by", "layer or position for " + std::string(name_of(site)),
            "head"};
  }
  parts = shape.shape[shape.head_axis];
  return {};
}

// The metric of runs in which one part of a layer's site is changed, for each part. Layers before
// it, whose output is `states`, are not computed, and if `z` is given, nor are its heads.
struct Sweep {
  const Question& question;
  Values& states;  // resid_pre
  Values* z = nullptr;
  int64_t parts = 1;
  std::function<Edit(int64_t layer, int64_t part)> edit_of;

  Status run_layer(int64_t layer, std::vector<double>& results, Context& context) const {
    const Pass& whole = question.pass;
    const int64_t most = std::max<int64_t>(1, kRowsAtOnce / whole.tokens);
    const std::vector<int32_t> ids(whole.inputs.ids.begin(), whole.inputs.ids.end());
    for (int64_t first = 0; first < parts; first += most) {
      const int64_t count = std::min(most, parts - first);
      std::vector<int32_t> all_ids;
      std::vector<float> state, heads;
      std::vector<Edit> edits;
      const auto repeat = [&](Values& values, std::vector<float>& to) {
        const Tensor one = values.of(layer);
        for (int64_t i = 0; i < count; ++i) to.insert(to.end(), one.data, one.data + values.size());
      };
      repeat(states, state);
      if (z != nullptr) repeat(*z, heads);
      for (int64_t i = 0; i < count; ++i) {
        all_ids.insert(all_ids.end(), ids.begin(), ids.end());
        edits.push_back(edit_of(layer, first + i));
        edits.back().sequences = {i};
      }
      Pass pass = whole;
      pass.inputs.ids = all_ids;
      pass.inputs.batch = count;
      pass.inputs.edits = edits;
      pass.first_layer = layer;
      const Dims rows{count * whole.tokens, states.size() / whole.tokens};
      pass.state = ConstTensor(state.data(), rows);
      if (z != nullptr) {
        pass.z = ConstTensor(heads.data(), {rows[0], z->size() / whole.tokens});
      }
      Tensor end;
      MULTIHEAD_TRY(run_layers(*question.model, pass, end, context));
      MULTIHEAD_TRY(question.metric.evaluate(end, all_ids, results, context));
    }
    return require_finite(results);
  }

  // Adds the metrics of (layers, parts) to `sums`.
  Status run(std::vector<double>& sums, Context& context,
             const std::function<bool(double share)>& progress) const {
    const int64_t layers = question.model->info.num_layers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::vector<double> results;
      MULTIHEAD_TRY(run_layer(layer, results, context));
      for (size_t part = 0; part < results.size(); ++part) {
        sums[static_cast<size_t>(layer * parts) + part] += results[part];
      }
      if (progress && !progress(static_cast<double>(layer + 1) / static_cast<double>(layers))) {
        return {StatusCode::kOption, "progress", "true to go on", "false"};
      }
    }
    return {};
  }
};

// The clean and the corrupt sequence.
Status ask_pair(const Model& model, const ModelInputs& clean, const ModelInputs& corrupt,
                const Metric& metric, Question& first, Question& second) {
  MULTIHEAD_TRY(ask_one(model, clean, metric, first));
  MULTIHEAD_TRY(ask_one(model, corrupt, metric, second));
  if (first.pass.tokens == second.pass.tokens) return {};
  return {StatusCode::kShape, "corrupt",
          std::to_string(first.pass.tokens) + " tokens, as the clean sequence has",
          std::to_string(second.pass.tokens)};
}

std::vector<float> floats_of(const std::vector<double>& values, double divisor = 1.0) {
  std::vector<float> floats;
  for (const double value : values) floats.push_back(static_cast<float>(value / divisor));
  return floats;
}

}  // namespace

Status patch(const Model& model, const ModelInputs& clean, const ModelInputs& corrupt,
             const Metric& metric, Site site, By by, PartResults& result, Context& context,
             const Progress& progress) {
  return engine::memory_guard([&]() -> Status {
    Question question, other;
    MULTIHEAD_TRY(ask_pair(model, clean, corrupt, metric, question, other));
    PartResults made;
    MULTIHEAD_TRY(count_parts(question, site, by, made.parts));
    const int64_t layers = question.model->info.num_layers;
    Values states = values_of(question, Site::kResidPre), z = values_of(question, Site::kZ);
    Values replacement = values_of(question, site);
    std::vector<Capture> captures;
    capture(states, Site::kResidPre, layers, captures);
    if (site == Site::kZ) capture(z, Site::kZ, layers, captures);
    MULTIHEAD_TRY(run(question, captures, &made.clean, context));
    captures.clear();
    capture(replacement, site, layers, captures);
    MULTIHEAD_TRY(run(other, captures, &made.corrupt, context));
    const Sweep sweep{.question = question,
                      .states = states,
                      .z = site == Site::kZ ? &z : nullptr,
                      .parts = made.parts,
                      .edit_of = [&](int64_t layer, int64_t part) {
                        Edit edit{.site = site, .layer = layer};
                        if (by == By::kHead) edit.heads = {part};
                        if (by == By::kPosition) edit.tokens = {part};
                        edit.action = Edit::Action::kReplace;
                        edit.value = replacement.of(layer);
                        return edit;
                      }};
    std::vector<double> sums(static_cast<size_t>(layers * made.parts));
    MULTIHEAD_TRY(sweep.run(sums, context, progress));
    made.values = floats_of(sums);
    result = std::move(made);
    return {};
  });
}

Status gradients(const Model& model, const ModelInputs& inputs, const Metric& metric,
                 std::span<const GradientOutput> outputs, Context& context) {
  return engine::memory_guard([&]() -> Status {
    Question question;
    MULTIHEAD_TRY(ask_one(model, inputs, metric, question));
    std::vector<Capture> as_captures;
    for (const GradientOutput& output : outputs) {
      as_captures.push_back({.site = output.site, .layer = output.layer, .out = output.out});
    }
    MULTIHEAD_TRY(check_captures(*question.model, question.pass, as_captures));
    return differentiate(
        *question.model, question.pass,
        [&](const Tensor& state, const Tensor& gradient) {
          return question.metric.differentiate(state, inputs.ids, gradient, context);
        },
        outputs, context);
  });
}

Status attribution_patch(const Model& model, const ModelInputs& clean, const ModelInputs& corrupt,
                         const Metric& metric, Site site, By by, bool positions,
                         PartResults& result, Context& context) {
  return engine::memory_guard([&]() -> Status {
    Question question, other;
    MULTIHEAD_TRY(ask_pair(model, clean, corrupt, metric, question, other));
    PartResults made;
    MULTIHEAD_TRY(count_parts(question, site, by, made.parts));
    const int64_t layers = question.model->info.num_layers, tokens = question.pass.tokens;
    Values values = values_of(question, site), changed = values_of(question, site);
    Values slopes = values_of(question, site);
    std::vector<Capture> captures;
    capture(changed, site, layers, captures);
    MULTIHEAD_TRY(run(other, captures, &made.corrupt, context));
    captures.clear();
    capture(values, site, layers, captures);
    question.pass.captures = captures;
    std::vector<GradientOutput> wanted;
    for (int64_t layer = 0; layer < layers; ++layer) {
      wanted.push_back({.site = site, .layer = layer, .out = slopes.of(layer)});
    }
    const auto loss = [&](const Tensor& state, const Tensor& gradient) -> Status {
      const int64_t token = question.metric.token(), width = state.shape[1];
      const Tensor read = token < 0 ? state : Tensor(state.data + token * width, {1, width});
      std::vector<double> metrics;
      MULTIHEAD_TRY(question.metric.evaluate(read, clean.ids, metrics, context));
      MULTIHEAD_TRY(require_finite(metrics));
      made.clean = metrics[0];
      return question.metric.differentiate(state, clean.ids, gradient, context);
    };
    MULTIHEAD_TRY(differentiate(*question.model, question.pass, loss, wanted, context));

    const SiteShape& shape = values.shape;
    const int64_t per_part = positions ? tokens : 1;
    std::vector<double> sums(static_cast<size_t>(layers * made.parts * per_part));
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (int64_t i = 0; i < values.size(); ++i) {
        const auto at = static_cast<size_t>(layer * values.size() + i);
        const auto index = [&](int axis) {
          return axis < 0 ? int64_t{0}
                          : i / contiguous_strides(shape.shape)[axis] % shape.shape[axis];
        };
        const int64_t token = index(shape.token_axis);
        int64_t part = by == By::kPosition ? token : 0;
        if (by == By::kHead) part = index(shape.head_axis);
        const int64_t to = (layer * made.parts + part) * per_part + (positions ? token : 0);
        const double change = static_cast<double>(changed.numbers[at]) - values.numbers[at];
        // Hidden scores are -inf in both runs.
        if (slopes.numbers[at] != 0.0F)
          sums[static_cast<size_t>(to)] += slopes.numbers[at] * change;
      }
    }
    MULTIHEAD_TRY(require_finite(sums));
    made.values = floats_of(sums);
    result = std::move(made);
    return {};
  });
}

Status ablate(const Model& model, std::span<const ModelInputs> texts, const Metric& metric,
              Ablation ablation, PartResults& result, Context& context, const Progress& progress) {
  return engine::memory_guard([&]() -> Status {
    if (texts.empty()) return {StatusCode::kOption, "texts", "1 or more", "none"};
    if (ablation > Ablation::kMean) {
      return {StatusCode::kOption, "ablation", "an Ablation",
              std::to_string(static_cast<int>(ablation))};
    }
    std::vector<Question> questions(texts.size());
    for (size_t text = 0; text < texts.size(); ++text) {
      MULTIHEAD_TRY(ask_one(model, texts[text], metric, questions[text]));
    }
    const ModelInfo& info = questions[0].model->info;
    const int64_t layers = info.num_layers, width = info.num_heads * info.head_dim;
    std::vector<double> sums(static_cast<size_t>(layers * width));
    int64_t tokens = 0;
    for (Question& question : questions) {
      if (ablation == Ablation::kZero) break;
      Values z = values_of(question, Site::kZ);
      std::vector<Capture> captures;
      capture(z, Site::kZ, layers, captures);
      MULTIHEAD_TRY(run(question, captures, nullptr, context));
      tokens += question.pass.tokens;
      for (int64_t i = 0; i < layers * z.size(); ++i) {
        const int64_t layer = i / z.size(), column = i % width;
        sums[static_cast<size_t>(layer * width + column)] += z.numbers[static_cast<size_t>(i)];
      }
    }
    std::vector<float> means = floats_of(sums, tokens == 0 ? 1.0 : static_cast<double>(tokens));

    PartResults made;
    made.parts = info.num_heads;
    std::vector<double> metrics(static_cast<size_t>(layers * made.parts));
    const auto count = static_cast<double>(texts.size());
    for (size_t text = 0; text < texts.size(); ++text) {
      Question& question = questions[text];
      Values states = values_of(question, Site::kResidPre), z = values_of(question, Site::kZ);
      std::vector<Capture> captures;
      capture(states, Site::kResidPre, layers, captures);
      capture(z, Site::kZ, layers, captures);
      double clean = 0;
      MULTIHEAD_TRY(run(question, captures, &clean, context));
      made.clean += clean / count;
      const Sweep sweep{.question = question,
                        .states = states,
                        .z = &z,
                        .parts = made.parts,
                        .edit_of = [&](int64_t layer, int64_t head) {
                          const float* const mean =
                              means.data() + layer * width + head * info.head_dim;
                          return Edit{.site = Site::kZ,
                                      .layer = layer,
                                      .heads = {head},
                                      .action = Edit::Action::kSet,
                                      .value = {mean, {info.head_dim}}};
                        }};
      MULTIHEAD_TRY(sweep.run(metrics, context, [&](double share) {
        return !progress || progress((static_cast<double>(text) + share) / count);
      }));
    }
    made.values = floats_of(metrics, count);
    result = std::move(made);
    return {};
  });
}

}  // namespace multihead::models
