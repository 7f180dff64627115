// A small GPT over the characters of a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/multihead.h"
#include "run_options.h"
#include "text_data.h"
#include "training_loop.h"

namespace multihead::train {

struct TextOptions {
  std::string file;
  int64_t layers = 2, width = 96, heads = 4, context = 64;
  double temperature = 0.8;
  int64_t sample = 400;      // characters per sample
  int64_t sample_every = 0;  // in steps; 0: only at the end
  std::string prompt;
};

class TextLearner : public Learner {
 public:
  // `data` and `options` must outlive this object.
  TextLearner(const TextData& data, const TextOptions& options, const RunOptions& run);

  Trainer& trainer() override { return trainer_; }
  std::vector<std::string> jobs() const override { return {}; }
  std::string title() const override;
  std::vector<KeptOption> kept_options() const override;
  Status step(TrainingStep& result, Context& context) override;
  Status measure(Measurement& result, Context& context) override;
  void after_step(const TrainingStep& step, Progress& progress, Context& context) override;

  const Transformer& model() const { return model_; }
  // Returns the prompt and the text that the model writes after it.
  std::string sample(Context& context) const;

 private:
  MultiHeadAttentionOptions attention_options() const {
    return {.attention = {.alibi_slopes = alibi_slopes_}};
  }

  const TextData& data_;
  const TextOptions& options_;
  const RunOptions& run_;
  std::vector<int32_t> prompt_;
  std::vector<float> alibi_slopes_;
  Transformer model_;
  Trainer trainer_;
  Windows windows_;
};

}  // namespace multihead::train
