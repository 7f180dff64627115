// Sweeps over the parts of a model: activation patching, ablation, and attribution patching.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "models/source.h"
#include "models/sweep.h"
#include "nn/call_memory.h"

namespace multihead::models {
namespace {

// Rows of a pass that runs several variants at once.
constexpr int64_t kRowsAtOnce = 512;

// Runs the question, and copies the values of sites.
Status measure(Question& question, const std::vector<Capture>& captures,
               std::vector<double>& metrics, Context& context) {
  question.pass.captures = captures;
  Tensor state;
  const Status status = run_layers(*question.model, question.pass, state, context);
  question.pass.captures = {};
  MULTIHEAD_TRY(status);
  return question.metric.evaluate(state, question.pass.inputs.ids, metrics, context);
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

// Errors: kShape unless both sequences are equally long.
Status check_pair(const Question& first, const Question& second) {
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

// Runs all steps of a sweep.
Status finish(Sweep& sweep, PartResults& result, Context& context, const Progress& progress) {
  std::vector<double> metrics;
  while (sweep.done() < 1.0) {
    metrics.clear();
    MULTIHEAD_TRY(sweep.run(kRowsAtOnce, metrics, context));
    MULTIHEAD_TRY(sweep.record(metrics));
    if (progress && !progress(sweep.done())) {
      return {StatusCode::kOption, "progress", "true to go on", "false"};
    }
  }
  result = sweep.results();
  return {};
}

}  // namespace

Status Values::reserve(const Question& question, Site site) {
  site_ = site;
  shape_ = shape_of(*question.model, question.pass, site);
  layers_ = question.model->info.num_layers;
  const Dims& shape = shape_.shape;
  return nn::reserve(memory_, [&](rules::Arena& take) {
    Dims all{layers_};
    for (int axis = 0; axis < shape.rank(); ++axis) all.push_back(shape[axis]);
    take(numbers_, nn::saturated_elements(all));
  });
}

void Values::capture(std::vector<Capture>& captures) const {
  for (int64_t layer = 0; layer < layers_; ++layer) {
    captures.push_back({.site = site_, .layer = layer, .out = of(layer)});
  }
}

Status Sweep::Text::ask(const Model& model, const ModelInputs& inputs, const Metric& metric,
                        Context* context) {
  ids.assign(inputs.ids.begin(), inputs.ids.end());
  token_types.assign(inputs.token_types.begin(), inputs.token_types.end());
  head_scales.assign(inputs.head_scales.begin(), inputs.head_scales.end());
  source.assign(inputs.source.begin(), inputs.source.end());
  ModelInputs own = inputs;
  own.ids = ids;
  own.token_types = token_types;
  own.head_scales = head_scales;
  own.source = source;
  MULTIHEAD_TRY(ask_one(model, own, metric, question, context != nullptr));
  if (context == nullptr) return {};
  return run_encoder(*question.model, question.pass, source_state, *context);
}

Status Sweep::patch(const Model& model, const ModelInputs& clean, const ModelInputs& corrupt,
                    const Metric& metric, Site site, By by) {
  model_ = model;
  metric_ = metric;
  site_ = site;
  by_ = by;
  MULTIHEAD_TRY(texts_.emplace_back().ask(model_, clean, metric_));
  MULTIHEAD_TRY(corrupt_.ask(model_, corrupt, metric_));
  const Question& question = texts_[0].question;
  MULTIHEAD_TRY(check_pair(question, corrupt_.question));
  MULTIHEAD_TRY(count_parts(question, site, by, parts_));
  stage_ = Stage::kCorrupt;
  sums_.resize(static_cast<size_t>(layers() * parts_));
  return {};
}

Status Sweep::ablate(const Model& model, std::span<const ModelInputs> texts, const Metric& metric,
                     Ablation ablation, Site site, Context& context) {
  if (texts.empty()) return {StatusCode::kOption, "texts", "1 or more", "none"};
  if (ablation > Ablation::kMean) {
    return {StatusCode::kOption, "ablation", "an Ablation",
            std::to_string(static_cast<int>(ablation))};
  }
  if (site != Site::kZ && site != Site::kCrossZ) {
    return {StatusCode::kOption, "site", "z or cross_z", name_of(site)};
  }
  model_ = model;
  metric_ = metric;
  site_ = site;
  texts_.resize(texts.size());
  for (size_t text = 0; text < texts.size(); ++text) {
    MULTIHEAD_TRY(texts_[text].ask(model_, texts[text], metric_, &context));
  }
  MULTIHEAD_TRY(check_site(*texts_[0].question.model, "site", site));
  const ModelInfo& info = model_.info();
  parts_ = info.num_heads;
  sums_.resize(static_cast<size_t>(layers() * parts_));
  means_.resize(static_cast<size_t>(layers() * info.num_heads * info.head_dim));
  return ablation == Ablation::kMean ? find_means(context) : Status();
}

// The mean of each head's output over all tokens of all texts.
Status Sweep::find_means(Context& context) {
  std::vector<double> sums(means_.size());
  const int64_t width = model_.info().num_heads * model_.info().head_dim;
  int64_t tokens = 0;
  for (Text& each : texts_) {
    Question& question = each.question;
    Values z;
    MULTIHEAD_TRY(z.reserve(question, site_));
    std::vector<Capture> captures;
    z.capture(captures);
    Pass pass = question.pass;
    pass.captures = captures;
    Tensor ignored;
    MULTIHEAD_TRY(run_layers(*question.model, pass, ignored, context));
    tokens += pass.tokens;
    for (int64_t layer = 0; layer < layers(); ++layer) {
      for (int64_t i = 0; i < z.size(); ++i) {
        sums[static_cast<size_t>(layer * width + i % width)] += z.of(layer).data[i];
      }
    }
  }
  means_ = floats_of(sums, static_cast<double>(tokens));
  return {};
}

Edit Sweep::edit_of(int64_t part) const {
  Edit edit{.site = site_, .layer = layer_};
  if (by_ == By::kHead) edit.heads = {part};
  if (by_ == By::kPosition) edit.tokens = {part};
  if (replacement_.given()) {
    edit.action = Edit::Action::kReplace;
    edit.value = replacement_.of(layer_);
    return edit;
  }
  const int64_t width = model_.info().head_dim;
  edit.value = {means_.data() + (layer_ * parts_ + part) * width, {width}};
  return edit;
}

Status Sweep::run(int64_t most, std::vector<double>& metrics, Context& context) {
  std::vector<Capture> captures;
  if (stage_ == Stage::kCorrupt) {
    MULTIHEAD_TRY(replacement_.reserve(corrupt_.question, site_));
    replacement_.capture(captures);
    return measure(corrupt_.question, captures, metrics, context);
  }
  if (stage_ == Stage::kClean) {
    Question& question = text().question;
    MULTIHEAD_TRY(states_.reserve(question, Site::kResidPre));
    states_.capture(captures);
    if (site_ == Site::kZ) {
      MULTIHEAD_TRY(z_.reserve(question, Site::kZ));
      z_.capture(captures);
    }
    return measure(question, captures, metrics, context);
  }
  const int64_t at_once = std::max<int64_t>(1, kRowsAtOnce / text().question.pass.tokens);
  return run_parts(std::min({most, at_once, parts_ - part_}), metrics, context);
}

// Layers before the part, whose output is `states_`, are not computed, nor are heads if z is known.
Status Sweep::run_parts(int64_t count, std::vector<double>& metrics, Context& context) {
  const Question& question = text().question;
  const int64_t tokens = question.pass.tokens;
  const Tensor& source = question.pass.source.state;
  const int64_t source_size = source.shape.elements();
  engine::Buffer memory;
  float *state = nullptr, *heads = nullptr, *sources = nullptr;
  MULTIHEAD_TRY(nn::reserve(memory, [&](rules::Arena& take) {
    take(state, nn::saturated_elements({count, states_.size()}));
    take(heads, nn::saturated_elements({z_.given() ? count : 0, z_.size()}));
    take(sources, nn::saturated_elements({source.given() ? count : 0, source_size}));
  }));
  std::vector<int32_t> ids;
  std::vector<Edit> edits;
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(states_.of(layer_).data, states_.size(), state + i * states_.size());
    if (z_.given()) std::copy_n(z_.of(layer_).data, z_.size(), heads + i * z_.size());
    if (source.given()) std::copy_n(source.data, source_size, sources + i * source_size);
    ids.insert(ids.end(), text().ids.begin(), text().ids.end());
    edits.push_back(edit_of(part_ + i));
    edits.back().sequences = {i};
  }
  Pass pass = question.pass;
  pass.inputs.ids = ids;
  pass.inputs.batch = count;
  pass.inputs.edits = edits;
  pass.first_layer = layer_;
  pass.state = ConstTensor(state, {count * tokens, states_.size() / tokens});
  if (z_.given()) pass.z = ConstTensor(heads, {count * tokens, z_.size() / tokens});
  if (source.given()) pass.source.state = {sources, {count * source.shape[0], source.shape[1]}};
  Tensor end;
  MULTIHEAD_TRY(run_layers(*question.model, pass, end, context));
  return question.metric.evaluate(end, ids, metrics, context);
}

Status Sweep::record(std::span<const double> metrics) {
  MULTIHEAD_TRY(require_finite(metrics));
  if (stage_ != Stage::kParts) {
    if (stage_ == Stage::kCorrupt) corrupt_metric_ = metrics[0];
    if (stage_ == Stage::kClean) clean_ += metrics[0] / static_cast<double>(texts_.size());
    stage_ = stage_ == Stage::kCorrupt ? Stage::kClean : Stage::kParts;
    return {};
  }
  for (const double metric : metrics)
    sums_[static_cast<size_t>(layer_ * parts_ + part_++)] += metric;
  if (part_ < parts_) return {};
  part_ = 0;
  if (++layer_ < layers()) return {};
  layer_ = 0;
  ++text_;
  stage_ = Stage::kClean;
  return {};
}

double Sweep::done() const {
  const auto all = static_cast<double>(layers() * parts_);
  const auto some = static_cast<double>(layer_ * parts_ + part_);
  return (static_cast<double>(text_) + some / all) / static_cast<double>(texts_.size());
}

PartResults Sweep::results() const {
  return {.clean = clean_,
          .corrupt = corrupt_metric_,
          .parts = parts_,
          .values = floats_of(sums_, static_cast<double>(texts_.size()))};
}

Status patch(const Model& model, const ModelInputs& clean, const ModelInputs& corrupt,
             const Metric& metric, Site site, By by, PartResults& result, Context& context,
             const Progress& progress) {
  return engine::memory_guard([&]() -> Status {
    Sweep sweep;
    MULTIHEAD_TRY(sweep.patch(model, clean, corrupt, metric, site, by));
    return finish(sweep, result, context, progress);
  });
}

Status ablate(const Model& model, std::span<const ModelInputs> texts, const Metric& metric,
              Ablation ablation, PartResults& result, Context& context, const Progress& progress,
              Site site) {
  return engine::memory_guard([&]() -> Status {
    Sweep sweep;
    MULTIHEAD_TRY(sweep.ablate(model, texts, metric, ablation, site, context));
    return finish(sweep, result, context, progress);
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
    MULTIHEAD_TRY(check_captures(*question.model, question.pass, as_captures, "outputs"));
    MULTIHEAD_TRY(check_apart(inputs, as_captures, {}));
    // Outputs are written when nothing can fail any more.
    std::vector<GradientOutput> made(outputs.begin(), outputs.end());
    std::vector<std::vector<float>> numbers;
    for (GradientOutput& output : made) {
      numbers.emplace_back(static_cast<size_t>(output.out.shape.elements()));
      output.out.data = numbers.back().data();
    }
    MULTIHEAD_TRY(differentiate(
        *question.model, question.pass,
        [&](const Tensor& state, const Tensor& gradient) {
          return question.metric.differentiate(state, inputs.ids, gradient, context);
        },
        made, context));
    for (const GradientOutput& output : made) {
      if (all_finite(output.out, context)) continue;
      return {StatusCode::kOption, "gradients", "finite numbers", "NaN or an infinity"};
    }
    for (size_t at = 0; at < made.size(); ++at) {
      std::copy(numbers[at].begin(), numbers[at].end(), outputs[at].out.data);
    }
    return {};
  });
}

Status attribution_patch(const Model& model, const ModelInputs& clean, const ModelInputs& corrupt,
                         const Metric& metric, Site site, By by, bool positions,
                         PartResults& result, Context& context) {
  return engine::memory_guard([&]() -> Status {
    Question question, other;
    MULTIHEAD_TRY(ask_one(model, clean, metric, question));
    MULTIHEAD_TRY(ask_one(model, corrupt, metric, other));
    MULTIHEAD_TRY(check_pair(question, other));
    PartResults made;
    MULTIHEAD_TRY(count_parts(question, site, by, made.parts));
    const int64_t layers = question.model->info.num_layers, tokens = question.pass.tokens;
    Values values, changed, slopes;
    for (Values* each : {&values, &changed, &slopes}) MULTIHEAD_TRY(each->reserve(question, site));
    std::vector<Capture> captures;
    changed.capture(captures);
    std::vector<double> metrics;
    MULTIHEAD_TRY(measure(other, captures, metrics, context));
    MULTIHEAD_TRY(require_finite(metrics));
    made.corrupt = metrics[0];
    captures.clear();
    values.capture(captures);
    question.pass.captures = captures;
    std::vector<GradientOutput> wanted;
    for (int64_t layer = 0; layer < layers; ++layer) {
      wanted.push_back({.site = site, .layer = layer, .out = slopes.of(layer)});
    }
    const auto loss = [&](const Tensor& state, const Tensor& gradient) -> Status {
      const int64_t token = question.metric.token(), width = state.shape[1];
      const Tensor read = token < 0 ? state : Tensor(state.data + token * width, {1, width});
      metrics.clear();
      MULTIHEAD_TRY(question.metric.evaluate(read, clean.ids, metrics, context));
      MULTIHEAD_TRY(require_finite(metrics));
      made.clean = metrics[0];
      return question.metric.differentiate(state, clean.ids, gradient, context);
    };
    MULTIHEAD_TRY(differentiate(*question.model, question.pass, loss, wanted, context));

    const SiteShape& shape = values.shape();
    const Dims strides = contiguous_strides(shape.shape);
    const int64_t per_part = positions ? tokens : 1, width = shape.shape[shape.shape.rank() - 1];
    std::vector<double> sums(static_cast<size_t>(layers * made.parts * per_part));
    for (int64_t layer = 0; layer < layers; ++layer) {
      const float* const slope = slopes.of(layer).data;
      const float *const from = values.of(layer).data, *const to = changed.of(layer).data;
      // The last axis is neither of tokens nor of heads.
      for (int64_t first = 0; first < values.size(); first += width) {
        const auto index = [&](int axis) {
          return axis < 0 ? int64_t{0} : first / strides[axis] % shape.shape[axis];
        };
        const int64_t token = index(shape.token_axis);
        int64_t part = by == By::kPosition ? token : 0;
        if (by == By::kHead) part = index(shape.head_axis);
        double& sum = sums[static_cast<size_t>((layer * made.parts + part) * per_part +
                                               (positions ? token : 0))];
        for (int64_t i = first; i < first + width; ++i) {
          // Hidden scores are -inf in both runs.
          if (slope[i] != 0.0F) sum += slope[i] * (static_cast<double>(to[i]) - from[i]);
        }
      }
    }
    MULTIHEAD_TRY(require_finite(sums));
    made.values = floats_of(sums);
    result = std::move(made);
    return {};
  });
}

}  // namespace multihead::models
