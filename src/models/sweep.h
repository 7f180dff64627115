// Runs of a model in which one part of a layer has another value, for each part in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/runtime/scratch.h"
#include "models/metric.h"
#include "models/sites.h"

namespace multihead::models {

// One site of every layer, (layers, site's shape of one sequence).
class Values {
 public:
  // Errors: kMemory.
  Status reserve(const Question& question, Site site);
  bool given() const { return numbers_ != nullptr; }
  const SiteShape& shape() const { return shape_; }
  // Numbers of a layer.
  int64_t size() const { return shape_.shape.elements(); }
  Tensor of(int64_t layer) const { return {numbers_ + layer * size(), shape_.shape}; }
  void capture(std::vector<Capture>& captures) const;

 private:
  Site site_ = Site::kResidPre;
  SiteShape shape_;
  int64_t layers_ = 0;
  engine::Buffer memory_;
  float* numbers_ = nullptr;
};

// patch() and ablate(), a few runs at a time. It copies its inputs, and the model stays.
class Sweep {
 public:
  Sweep() = default;
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;
  ~Sweep() = default;

  // One of these begins. Errors: as patch() and ablate() of analysis.h.
  Status patch(const Model& model, const ModelInputs& clean, const ModelInputs& corrupt,
               const Metric& metric, Site site, By by);
  Status ablate(const Model& model, std::span<const ModelInputs> texts, const Metric& metric,
                Ablation ablation, Site site, Context& context);

  // The metrics of the next runs, at most `most`; record() takes them. Errors: kMemory, kOption.
  Status run(int64_t most, std::vector<double>& metrics, Context& context);
  // Errors: kOption for numbers that are not finite.
  Status record(std::span<const double> metrics);

  // Share of the runs that are recorded, 1 at the end.
  double done() const;
  // At the end.
  PartResults results() const;

 private:
  // A checked input.
  struct Text {
    std::vector<int32_t> ids, token_types, source;
    std::vector<float> head_scales;
    Question question;
    engine::Buffer source_state;

    // `context`: where an encoder runs; null if the call is not for models with one.
    Status ask(const Model& model, const ModelInputs& inputs, const Metric& metric,
               Context* context = nullptr);
  };
  enum class Stage : uint8_t { kCorrupt, kClean, kParts };

  int64_t layers() const { return texts_[0].question.model->info.num_layers; }
  Text& text() { return texts_[text_]; }
  Edit edit_of(int64_t part) const;
  Status find_means(Context& context);
  Status run_parts(int64_t count, std::vector<double>& metrics, Context& context);

  Model model_;
  Metric metric_;
  std::vector<Text> texts_;  // of patch() the clean one
  Text corrupt_;
  Site site_ = Site::kZ;
  By by_ = By::kHead;
  Values states_, z_;         // of the text: resid_pre and, if `site_` is z, z
  Values replacement_;        // of patch()
  std::vector<float> means_;  // of ablate()
  int64_t parts_ = 0;
  double clean_ = 0, corrupt_metric_ = 0;
  std::vector<double> sums_;  // (layers, parts)
  Stage stage_ = Stage::kClean;
  size_t text_ = 0;
  int64_t layer_ = 0, part_ = 0;
};

}  // namespace multihead::models
