// A Trainer for an opened model.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/layers/gradients.h"
#include "engine/runtime/scratch.h"
#include "models/metric.h"
#include "models/output.h"
#include "multihead/model_training.h"
#include "nn/call_memory.h"
#include "nn/parameters.h"
#include "nn/training/trainer.h"

namespace multihead::models {
namespace {

class ModelTrainee : public nn::Trainee {
 public:
  // Copies the parameters of these layers, or all. Errors: kMemory.
  Status create(const Model& model, const std::optional<std::vector<int64_t>>& layers) {
    const std::shared_ptr<const Model::Internals> given = Model::Internals::share(model);
    made_ = std::make_shared<Model::Internals>();
    made_->architecture = given->architecture;
    made_->info = given->info;
    made_->parameters = given->parameters;
    made_->graph = given->graph;
    made_->sentence = given->sentence;
    made_->stored = given->stored;
    gradients_ = made_->parameters;

    const std::vector<ConstMember> own = members_of(given->parameters);
    const std::vector<Member> members = members_of(made_->parameters);
    for (StoredParameter& stored : made_->stored) {
      for (size_t at = 0; at < own.size(); ++at) {
        if (stored.matrix != own[at].matrix || stored.vector != own[at].vector) continue;
        stored.matrix = members[at].matrix;
        stored.vector = members[at].vector;
        break;
      }
    }
    std::vector<bool> sets(made_->parameters.layers.size(), !layers.has_value());
    for (const int64_t layer : layers.value_or(std::vector<int64_t>())) {
      const LayerPlan& plan = made_->architecture.layers[static_cast<size_t>(layer)];
      sets[static_cast<size_t>(plan.weights)] = true;
    }
    nn::ParameterList list;
    std::vector<ConstTensor> views(made_->stored.size());
    std::vector<std::pair<Member, const ConstTensor*>> copies;
    bool shares = std::any_of(made_->sentence.steps.begin(), made_->sentence.steps.end(),
                              [](const SentenceStep& step) { return step.out > 0; });
    for (const Member& member : members) {
      const ConstTensor* view = nullptr;
      if (!layers.has_value() || (member.layer >= 0 && sets[static_cast<size_t>(member.layer)])) {
        view = add(member, list, views);
      }
      if (view != nullptr) copies.emplace_back(member, view);
      shares = shares || (view == nullptr && member.data() != nullptr);
    }
    MULTIHEAD_TRY(parameters_->make(list));
    // Memory of `parameters_`.
    for (const auto& [member, view] : copies) {
      MULTIHEAD_TRY(take(member, const_cast<float*>(view->data)));
    }
    made_->owners = {parameters_};
    if (shares) made_->owners.push_back(given);
    return {};
  }

  nn::Parameters& parameters() override { return *parameters_; }
  int64_t classes() const override { return made_->info.vocab_size; }
  void parameters_changed() override {}
  int64_t bytes() const override { return 0; }
  const std::shared_ptr<Model::Internals>& made() const { return made_; }

  Status accumulate(const nn::TrainingPart& part, float* gradients, cpu::CrossEntropyResult& result,
                    bool& began, Context& context) override {
    const Model::Internals& m = *made_;
    Pass pass{.inputs = {.ids = part.tokens, .batch = part.batch}, .end_layer = m.info.num_layers};
    MULTIHEAD_TRY(check_inputs(m, pass, "tokens"));
    // Gradients have the places of the parameters, in another block.
    const float* const first = parameters_->values();
    const std::vector<Member> members = members_of(made_->parameters);
    const std::vector<Member> places = members_of(gradients_);
    for (size_t at = 0; at < members.size(); ++at) {
      const auto* const data = static_cast<const float*>(members[at].data());
      const bool own = data != nullptr && data >= first && data < first + parameters_->elements();
      float* const place = own ? gradients + (data - first) : nullptr;
      if (WeightMatrix* const matrix = places[at].matrix; matrix != nullptr) {
        *matrix = *members[at].matrix;
        matrix->data = place;
      } else {
        *places[at].vector = {place, own ? members[at].vector->size : 0};
      }
    }
    const auto loss = [&](const Tensor& state, const Tensor& gradient) -> Status {
      MULTIHEAD_TRY(this->loss(part.targets, state, gradient, result, began, context));
      // Ends the pass before gradients are written.
      if (std::isfinite(result.loss_sum)) return {};
      return {StatusCode::kOption, "targets", "a loss that is finite", "another"};
    };
    const Status status = differentiate(m, pass, loss, {}, context, &gradients_);
    return std::isfinite(result.loss_sum) ? status : Status();
  }

 private:
  // Adds the tensors of a member, in the order of memory. Returns the view of the first; null if
  // there is none.
  const ConstTensor* add(const Member& member, nn::ParameterList& list,
                         std::vector<ConstTensor>& views) const {
    std::vector<size_t> parts;
    const auto begins_before = [&](size_t a, size_t b) {
      return made_->stored[a].first < made_->stored[b].first;
    };
    for (size_t at = 0; at < made_->stored.size(); ++at) {
      const StoredParameter& stored = made_->stored[at];
      if (stored.matrix != member.matrix || stored.vector != member.vector) continue;
      parts.insert(std::upper_bound(parts.begin(), parts.end(), at, begins_before), at);
    }
    const Parameters& p = made_->parameters;
    const bool is_table = member.matrix == &p.embedding || member.matrix == &p.position;
    const nn::ParameterRole role = member.matrix == nullptr ? nn::ParameterRole::kGain
                                   : is_table               ? nn::ParameterRole::kEmbedding
                                                            : nn::ParameterRole::kWeight;
    for (const size_t at : parts) {
      const StoredParameter& stored = made_->stored[at];
      // The loader takes arrays of more axes, with as many elements.
      const int64_t count = stored.shape.elements();
      const Dims shape = stored.shape.rank() <= 2   ? stored.shape
                         : stored.vector != nullptr ? Dims{count}
                                                    : Dims{stored.rows, count / stored.rows};
      list.add(stored.name, stored.transposed ? Dims{shape[1], shape[0]} : shape, role, views[at],
               stored.transposed ? nn::DictLayout::kTransposed : nn::DictLayout::kAsInMemory);
    }
    return parts.empty() ? nullptr : &views[parts.front()];
  }

  // Copies a member, which is then the copy.
  Status take(const Member& member, float* to) {
    if (member.vector != nullptr) {
      std::copy_n(member.vector->data, member.vector->size, to);
      member.vector->data = to;
      return {};
    }
    WeightMatrix& matrix = *member.matrix;
    const WeightMatrix copy{to, WeightType::kF32, matrix.rows, matrix.columns};
    MULTIHEAD_TRY(read_rows(matrix, 0, matrix.rows, to));
    ModelInfo& info = made_->info;
    info.weight_bytes += copy.bytes() - matrix.bytes();
    // A token reads one row of a table, unless the table is the output matrix, too.
    const bool row = &matrix == &made_->parameters.position ||
                     (&matrix == &made_->parameters.embedding && made_->parameters.output.given());
    info.step_bytes += (copy.bytes() - matrix.bytes()) / (row ? matrix.rows : 1);
    matrix = copy;
    return {};
  }

  // The sum of cross-entropies over the targets and its gradient with respect to the last hidden
  // state; adds the gradient of the output matrix.
  Status loss(std::span<const int32_t> targets, const Tensor& state, const Tensor& gradient,
              cpu::CrossEntropyResult& result, bool& began, Context& context) const {
    const Model::Internals& m = *made_;
    const int64_t rows = state.shape[0], width = state.shape[1], vocab = m.info.vocab_size;
    engine::Buffer memory;
    float *logits = nullptr, *d_logits = nullptr;
    MULTIHEAD_TRY(nn::reserve(memory, [&](rules::Arena& take) {
      take(logits, nn::saturated_elements({rows, vocab}));
      take(d_logits, m.architecture.logit_cap == 0.0F ? 0 : nn::saturated_elements({rows, vocab}));
    }));
    const Tensor all(logits, {rows, vocab});
    MULTIHEAD_TRY(compute_logits(m, state, all, context));
    const bool caps = m.architecture.logit_cap != 0.0F;
    const bool bends = caps || m.architecture.logit_factor != 1.0F;
    const Tensor d(caps ? d_logits : logits, {rows, vocab});
    result = engine::cross_entropy(all, targets, d, 1.0F, context);
    if (!std::isfinite(result.loss_sum)) return {};
    began = true;
    for (int64_t i = 0; bends && i < rows * vocab; ++i) {
      d.data[i] = static_cast<float>(d.data[i] * logit_slope(m.architecture, logits[i]));
    }
    const Projection output =
        m.parameters.output.given()
            ? gradients_.output
            : Projection{.weight = gradients_.embedding, .bias = gradients_.output.bias};
    MULTIHEAD_TRY(nn::add_gradients(state, d, output, context));
    return nn::project_backward(output_matrix(m.parameters), d, {gradient.data, {rows, width}},
                                false, context);
  }

  std::shared_ptr<Model::Internals> made_;
  // The trained model shares these.
  std::shared_ptr<nn::Parameters> parameters_ = std::make_shared<nn::Parameters>();
  Parameters gradients_;  // places in the block of gradients
};

}  // namespace

Status create_trainer(const Model& model, const TrainerOptions& options,
                      const FineTuning& fine_tuning, Trainer& trainer, Model& trained) {
  return engine::memory_guard([&]() -> Status {
    static constexpr int32_t kToken[] = {0};
    Question question;
    MULTIHEAD_TRY(ask(model, {.ids = kToken}, nullptr, question));
    const int64_t most = question.model->info.num_layers;
    if (fine_tuning.layers.has_value() && fine_tuning.layers->empty()) {
      return {StatusCode::kOption, "layers", "at least one layer", "none"};
    }
    for (const int64_t layer : fine_tuning.layers.value_or(std::vector<int64_t>())) {
      if (layer >= 0 && layer < most) continue;
      return {StatusCode::kOption, "layers", "0 to " + std::to_string(most - 1),
              std::to_string(layer)};
    }
    if (options.recompute) {
      return {StatusCode::kOption, "recompute", "false for a model of a folder", "true"};
    }
    auto trainee = std::make_unique<ModelTrainee>();
    MULTIHEAD_TRY(trainee->create(model, fine_tuning.layers));
    std::shared_ptr<Model::Internals> made = trainee->made();
    MULTIHEAD_TRY(Trainer::Internals::create(std::move(trainee), options, trainer));
    Model::Internals::take(trained, std::move(made));
    return {};
  });
}

}  // namespace multihead::models
