/// \file
/// Training of a Transformer: cross-entropy, its gradients, AdamW or SGD, and checkpoints.
///
/// ```
/// Transformer model;  // create(), then initialize() or load_state_dict()
/// Trainer trainer;
/// Status status = Trainer::create(model, {.learning_rate = 1e-2F, .clip_norm = 1.0F}, trainer);
/// for (...) status = trainer.step(tokens, batch, targets, {}, result, context);
/// ```
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/multi_head_attention.h"
#include "multihead/state_dict.h"
#include "multihead/status.h"
#include "multihead/transformer.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Algorithms that update the parameters.
enum class Optimizer : uint8_t {
  kAdamW,  ///< Loshchilov and Hutter, arXiv:1711.05101; as torch.optim.AdamW
  kSgd,    ///< with momentum; as torch.optim.SGD
};

/// The learning rate after the warm-up.
enum class LearningRateDecay : uint8_t {
  kConstant,  ///< stays at learning_rate
  kCosine,    ///< half a cosine from learning_rate to final_learning_rate (arXiv:1608.03983)
};

/// Options of Trainer::create().
struct TrainerOptions {
  Optimizer optimizer = Optimizer::kAdamW;  ///< algorithm that updates the parameters
  float learning_rate = 1e-3F;              ///< more than 0
  float beta1 = 0.9F;     ///< AdamW: decay of the mean of gradients, from 0 to less than 1
  float beta2 = 0.999F;   ///< AdamW: decay of the mean of squared gradients, from 0 to less than 1
  float eps = 1e-8F;      ///< AdamW: added to the square root of the mean of squares; more than 0
  float momentum = 0.0F;  ///< SGD only; must be 0 for AdamW
  bool nesterov = false;  ///< SGD only; needs momentum
  /// Weight decay of matrices and embeddings; biases, gains of norms and sinks do not decay.
  float weight_decay = 0.0F;
  /// Step s of the first warmup_steps, counted from 1, uses learning_rate * s / warmup_steps.
  int64_t warmup_steps = 0;
  LearningRateDecay decay = LearningRateDecay::kConstant;  ///< schedule after the warm-up
  int64_t decay_steps = 0;           ///< length of the cosine in steps, after the warm-up
  float final_learning_rate = 0.0F;  ///< learning rate at the end of the cosine and after it
  /// Largest norm of the gradient over all parameters: a larger gradient is scaled down to it; 0
  /// for no limit.
  float clip_norm = 0.0F;
  /// false keeps the activations of all layers between forward and backward. true keeps only each
  /// layer's input and computes a layer's other activations again: one more forward pass (about a
  /// third more time), and memory for the activations of one layer instead of all. The gradients
  /// are bit-identical.
  bool recompute = false;
  uint64_t seed = 0;  ///< seed of dropout; each step uses its own masks
};

/// Results of one update.
struct TrainingStep {
  int64_t step = 0;          ///< number of updates so far
  double loss = 0;           ///< mean cross-entropy over the counted targets, in nats
  double gradient_norm = 0;  ///< norm of the gradient before clipping
  float learning_rate = 0;   ///< learning rate of this step
  int64_t counted = 0;       ///< targets that are not -1
  int64_t correct = 0;       ///< counted targets with the largest logit
};

/// Changes the parameters of a model, which it shares with the Transformer that it was created
/// from. It keeps the gradients, the optimizer's state and the memory of a step; after the first
/// step of a shape, a step allocates nothing.
class Trainer {
 public:
  /// A trainer that refuses every call until create() fills it.
  Trainer();
  ~Trainer();
  /// Movable, not copyable.
  Trainer(Trainer&&) noexcept;
  /// Movable, not copyable.
  Trainer& operator=(Trainer&&) noexcept;

  /// `model` must have parameters, from load_state_dict() or initialize(). Errors: kOption,
  /// kMemory; `trainer` is unchanged.
  [[nodiscard]] static Status create(const Transformer& model, const TrainerOptions& options,
                                     Trainer& trainer);

  /// Updates the parameters from one batch: accumulate(), then update(), with their arguments and
  /// errors.
  [[nodiscard]] Status step(std::span<const int32_t> tokens, int64_t batch,
                            std::span<const int32_t> targets,
                            const MultiHeadAttentionOptions& options, TrainingStep& result,
                            Context& context);

  /// Adds the gradients of a part of a batch. There are batch * N tokens, and num_readouts targets
  /// for each token. A target is the correct class at that position, below vocab_size, or -1 if the
  /// position does not count. `options` are the options of Transformer::forward(); the trainer sets
  /// `training` and `dropout_seed`. The loss of the update is the mean over the targets of all
  /// parts. Errors: kShape, kOption, kMemory, and kOption for a loss that is not finite, naming the
  /// step and the first parameter that is not finite. The parameters and the gradients so far are
  /// unchanged, except that kMemory may forget the gradients.
  [[nodiscard]] Status accumulate(std::span<const int32_t> tokens, int64_t batch,
                                  std::span<const int32_t> targets,
                                  const MultiHeadAttentionOptions& options, Context& context);
  /// Updates the parameters with the accumulated gradients, and clears the gradients. Errors:
  /// kOption if no target was counted, or if a gradient is not finite, naming its parameter; the
  /// parameters and the optimizer's state are unchanged, and the gradients are cleared.
  [[nodiscard]] Status update(TrainingStep& result, Context& context);

  /// Replaces the learning rate of the options from the next step on. Errors: kOption.
  [[nodiscard]] Status set_learning_rate(float learning_rate);

  /// The accumulated gradients of the sum of the loss over the counted targets, under the names of
  /// the parameters. They are views of the trainer's memory, which the next call changes. Errors:
  /// kOption before create().
  [[nodiscard]] Status gradients(StateDict& dict) const;

  /// The model, whose parameters this trainer changes.
  const Transformer& model() const;
  /// The options given to create(), with the learning rate that was set since.
  const TrainerOptions& options() const;
  int64_t steps() const;  ///< updates so far
  /// Bytes of parameters, gradients, the optimizer's state and activations.
  int64_t bytes() const;

  /// Views of all tensors that continue a training: the parameters under their names, and the
  /// optimizer's state under these names with the prefixes "optimizer.mean." and
  /// "optimizer.variance." (SGD: "optimizer.momentum."). "trainer.state" (8) holds the number of
  /// steps and the seed, each as four digits of 16 bits, lowest first. update() and
  /// load_state_dict() change the values of all views; the trainer must outlive them. Errors:
  /// kOption between accumulate() and update().
  [[nodiscard]] Status state_dict(StateDict& dict) const;
  /// Loads the tensors of state_dict() from a trainer of an equal model. With equal options,
  /// training then continues with the same bits as if it had not been interrupted. Tensors whose
  /// names begin with "run." are ignored: a program may store its own tensors under them. Errors:
  /// kShape, which names every missing, unexpected and misshaped tensor; kOption, kMemory. Nothing
  /// is changed then.
  [[nodiscard]] Status load_state_dict(const StateDict& dict);

  /// Writes state_dict() to a safetensors file. save() writes a second file, "PATH.N.part" beside
  /// it, waits until the disk has it, and then renames it, so that a crash leaves the old file
  /// intact. A link stays a link: the file that it points to is replaced. It is in the library
  /// multihead::safetensors. Errors: also kFormat if the file cannot be written.
  [[nodiscard]] Status save(const std::string& path) const;
  /// Runs load_state_dict() on a safetensors file. It is in the library multihead::safetensors.
  /// Errors: also kFormat (no safetensors file, or a truncated file).
  [[nodiscard]] Status load(const std::string& path);

  struct Internals;  ///< for the library's own use

 private:
  std::unique_ptr<Internals> internals_;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
