// Experiment: its model, its trainer and its steps.
#include "lab/experiment.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "multihead/experiments.h"

namespace multihead {
namespace {

TransformerConfig config_of(const ExperimentOptions& options) {
  const lab::ExperimentSize size = lab::experiment_size(options.kind);
  TransformerConfig config{
      .block = {.attention = {.embed_dim = size.embed_dim,
                              .num_heads = options.num_heads,
                              .bias = false},
                .norm = Norm::kRmsNorm,
                .norm_affine = false},
      .num_layers = options.num_layers,
      .vocab_size = size.vocab_size,
      .num_readouts = static_cast<int64_t>(Experiment::jobs(options.kind).size())};
  if (options.positions == PositionKind::kRope) {
    config.block.attention.rope = {.style = Rope::Style::kHalf};
  } else if (options.positions == PositionKind::kLearned) {
    config.max_positions = lab::kExperimentLength;
  }
  return config;
}

Status with_defaults(const ExperimentOptions& given, ExperimentOptions& options) {
  MULTIHEAD_TRY(engine::validate_enumerator(Name::kKind, given.kind, ExperimentKind::kInduction));
  MULTIHEAD_TRY(
      engine::validate_enumerator(Name::kPositions, given.positions, PositionKind::kNone));
  const lab::ExperimentSize size = lab::experiment_size(given.kind);
  options = given;
  const struct {
    Name name;
    int64_t& value;
    int64_t own, most;
  } numbers[] = {{Name::kNumHeads, options.num_heads, size.num_heads, size.embed_dim},
                 {Name::kNumLayers, options.num_layers, size.num_layers, 64},
                 {Name::kSteps, options.steps, size.steps, int64_t{1} << 40},
                 {Name::kBatch, options.batch, size.batch, 1 << 16}};
  for (const auto& [name, value, own, most] : numbers) {
    if (value < 0 || value > most) return option_error(name, Message::kRange, 0, most, value);
    if (value == 0) value = own;
  }
  return {};
}

Status not_created() { return option_error(Name::kExperiment, Message::kCreated); }

}  // namespace

Experiment::Experiment() = default;
Experiment::~Experiment() = default;
Experiment::Experiment(Experiment&&) noexcept = default;
Experiment& Experiment::operator=(Experiment&&) noexcept = default;

Status Experiment::create(const ExperimentOptions& options, Experiment& experiment) {
  return engine::memory_guard([&]() -> Status {
    auto made = std::make_unique<Internals>();
    MULTIHEAD_TRY(with_defaults(options, made->options));
    const ExperimentOptions& o = made->options;
    MULTIHEAD_TRY(Transformer::create(config_of(o), made->model));
    if (o.positions == PositionKind::kAlibi) {
      made->alibi_slopes.resize(static_cast<size_t>(o.num_heads));
      alibi_slopes(made->alibi_slopes);
    }
    // With embeddings of 0.5 instead of 2, induction takes longer than 400 steps with half of the
    // seeds. With 4, heads of kFourJobs more often share jobs.
    const Initialization initialization{.seed = o.seed, .embedding = 2.0F};
    MULTIHEAD_TRY(made->model.initialize(initialization));
    MULTIHEAD_TRY(Trainer::create(made->model,
                                  {.learning_rate = o.learning_rate,
                                   .beta1 = 0.9F,
                                   .beta2 = 0.95F,
                                   .eps = 1e-8F,
                                   .warmup_steps = 50,
                                   .clip_norm = 1.0F,
                                   .recompute = o.recompute,
                                   .seed = o.seed},
                                  made->trainer));
    experiment.internals_ = std::move(made);
    return {};
  });
}

Status Experiment::step(TrainingStep& result, Context& context) {
  if (internals_ == nullptr) return not_created();
  return engine::memory_guard([&] {
    Internals& own = *internals_;
    lab::draw_batch(own.options, lab::DataStream::kTraining, own.trainer.steps(), 0,
                    own.options.batch, own.tokens, own.targets);
    return own.trainer.step(own.tokens, own.options.batch, own.targets, attention_options(), result,
                            context);
  });
}

Status Experiment::held_out(int64_t first, int64_t count, std::vector<int32_t>& tokens,
                            std::vector<int32_t>& targets) const {
  if (internals_ == nullptr) return not_created();
  constexpr int64_t kMost = 1 << 20;
  if (first < 0 || first > kMost)
    return option_error(Name::kFirst, Message::kRange, 0, kMost, first);
  if (count < 0 || count > kMost)
    return option_error(Name::kCount, Message::kRange, 0, kMost, count);
  return engine::memory_guard([&]() -> Status {
    lab::draw_batch(internals_->options, lab::DataStream::kHeldOut, 0, first, count, tokens,
                    targets);
    return {};
  });
}

bool Experiment::finished() const { return trainer().steps() >= options().steps; }

MultiHeadAttentionOptions Experiment::attention_options() const {
  return {.attention = {.alibi_slopes = internals_->alibi_slopes}};
}

const ExperimentOptions& Experiment::options() const { return internals_->options; }
const Transformer& Experiment::model() const { return internals_->model; }
Trainer& Experiment::trainer() { return internals_->trainer; }
const Trainer& Experiment::trainer() const { return internals_->trainer; }

}  // namespace multihead
