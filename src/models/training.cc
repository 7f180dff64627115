// A Trainer for an opened model.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
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

using nn::ParameterRole;

// The role of a member of a model's parameters.
template <class Member>
ParameterRole role_of(const Parameters& p, const Member& member) {
  if constexpr (std::is_same_v<Member, WeightMatrix>) {
    return &member == &p.embedding || &member == &p.position ? ParameterRole::kEmbedding
                                                             : ParameterRole::kWeight;
  } else {
    return ParameterRole::kGain;
  }
}

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
    made_->owners = {given};  // of the parameters that are not copied
    gradients_ = made_->parameters;

    // Members of `made_`, by those of `given`.
    std::map<const void*, const void*> members;
    over_parameters(given->parameters, made_->parameters,
                    [&](const auto& own, auto& other) { members[&own] = &other; });
    for (StoredParameter& stored : made_->stored) {
      if (stored.matrix != nullptr) {
        stored.matrix = static_cast<const WeightMatrix*>(members.at(stored.matrix));
      } else {
        stored.vector = static_cast<const Vector*>(members.at(stored.vector));
      }
    }
    const std::vector<bool> sets = trained_sets(layers);
    nn::ParameterList list;
    std::vector<ConstTensor> views(made_->stored.size());
    std::map<const void*, ConstTensor*> first_view;  // of each member that is trained
    over_parameters(given->parameters, made_->parameters, [&](const auto&, auto& member) {
      if (is_trained(&member, layers.has_value(), sets)) add(member, list, views, first_view);
    });
    MULTIHEAD_TRY(parameters_.make(list));
    Status status;
    over_parameters(given->parameters, made_->parameters, [&](const auto& own, auto& member) {
      const auto found = first_view.find(&member);
      if (found == first_view.end() || !status.ok()) return;
      // Memory of `parameters_`.
      status = take(own, const_cast<float*>(found->second->data), member);
    });
    return status;
  }

  nn::Parameters& parameters() override { return parameters_; }
  int64_t classes() const override { return made_->info.vocab_size; }
  void parameters_changed() override {}
  int64_t bytes() const override { return 0; }
  const std::shared_ptr<Model::Internals>& made() const { return made_; }

  Status accumulate(const nn::TrainingPart& part, float* gradients, cpu::CrossEntropyResult& result,
                    bool& began, Context& context) override {
    const Model::Internals& m = *made_;
    Pass pass{.inputs = {.ids = part.tokens, .batch = part.batch}, .end_layer = m.info.num_layers};
    MULTIHEAD_TRY(check_inputs(m, pass));
    // Gradients have the places of the parameters, in another block.
    const float* const first = parameters_.values();
    const auto place = [&](const void* data) -> float* {
      const auto* const at = static_cast<const float*>(data);
      const bool own = at != nullptr && at >= first && at < first + parameters_.elements();
      return own ? gradients + (at - first) : nullptr;
    };
    over_parameters(m.parameters, gradients_, [&](const auto& own, auto& gradient) {
      gradient = own;
      if constexpr (std::is_same_v<decltype(own), const Vector&>) {
        gradient.data = place(own.data);
        if (gradient.data == nullptr) gradient = {};
      } else {
        gradient.data = place(own.data);
      }
    });
    const auto loss = [&](const Tensor& state, const Tensor& gradient) -> Status {
      MULTIHEAD_TRY(this->loss(part.targets, state, gradient, result, began, context));
      // Ends the pass before gradients are written.
      return std::isfinite(result.loss_sum) ? Status() : not_finite_loss();
    };
    const Status status = differentiate(m, pass, loss, {}, context, &gradients_);
    return std::isfinite(result.loss_sum) ? status : Status();
  }

 private:
  static Status not_finite_loss() {
    return {StatusCode::kOption, "targets", "a loss that is finite", "another"};
  }

  std::vector<bool> trained_sets(const std::optional<std::vector<int64_t>>& layers) const {
    std::vector<bool> sets(made_->parameters.layers.size(), !layers.has_value());
    for (const int64_t layer : layers.value_or(std::vector<int64_t>())) {
      const LayerPlan& plan = made_->architecture.layers[static_cast<size_t>(layer)];
      sets[static_cast<size_t>(plan.weights)] = true;
    }
    return sets;
  }

  // True if the member belongs to a layer that is trained, or if everything is.
  bool is_trained(const void* member, bool some, const std::vector<bool>& sets) const {
    if (!some) return true;
    const std::less<const void*> before;
    for (size_t set = 0; set < sets.size(); ++set) {
      const LayerParameters* const layer = &made_->parameters.layers[set];
      if (!before(member, layer) && before(member, layer + 1)) return sets[set];
    }
    return false;
  }

  // Adds the tensors of a member, in the order of memory.
  template <class Member>
  void add(const Member& member, nn::ParameterList& list, std::vector<ConstTensor>& views,
           std::map<const void*, ConstTensor*>& first_view) const {
    std::vector<size_t> parts;
    for (size_t at = 0; at < made_->stored.size(); ++at) {
      const StoredParameter& stored = made_->stored[at];
      if (stored.matrix == static_cast<const void*>(&member) ||
          stored.vector == static_cast<const void*>(&member)) {
        parts.push_back(at);
      }
    }
    std::sort(parts.begin(), parts.end(),
              [&](size_t a, size_t b) { return made_->stored[a].first < made_->stored[b].first; });
    for (const size_t at : parts) {
      const StoredParameter& stored = made_->stored[at];
      const Dims& shape = stored.shape;
      list.add(stored.name, stored.transposed ? Dims{shape[1], shape[0]} : shape,
               role_of(made_->parameters, member), views[at],
               stored.transposed ? nn::DictLayout::kTransposed : nn::DictLayout::kAsInMemory);
      if (at == parts.front()) first_view[&member] = &views[at];
    }
  }

  static Status take(const Vector& own, float* to, Vector& member) {
    std::copy_n(own.data, own.size, to);
    member.data = to;
    return {};
  }
  static Status take(const WeightMatrix& own, float* to, WeightMatrix& member) {
    std::vector<int32_t> rows(static_cast<size_t>(own.rows));
    std::iota(rows.begin(), rows.end(), 0);
    MULTIHEAD_TRY(dequantize(own, rows, {to, {own.rows, own.columns}}));
    member = {to, WeightType::kF32, own.rows, own.columns};
    return {};
  }

  // The sum of cross-entropies over the targets and its gradient with respect to the last hidden
  // state; adds that of the output matrix.
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
    const double cap = m.architecture.logit_cap;
    const Tensor d(cap == 0.0 ? logits : d_logits, {rows, vocab});
    result = engine::cross_entropy(all, targets, d, 1.0F, context);
    if (!std::isfinite(result.loss_sum)) return {};
    began = true;
    for (int64_t i = 0; cap != 0.0 && i < rows * vocab; ++i) {
      const double bent = logits[i] / cap;
      d.data[i] = static_cast<float>(d.data[i] * (1.0 - bent * bent));
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
  nn::Parameters parameters_;
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
