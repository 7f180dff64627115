/// \file
/// Training of models of Hugging Face folders: a Trainer for an opened model, and its weights as a
/// file that transformers opens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "multihead/training.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead::models {

/// What create_trainer() trains.
struct FineTuning {
  /// Layers whose parameters are trained, from 0; layers that share parameters are trained
  /// together. Without a list, everything is trained: embeddings, norms and the output, too.
  std::optional<std::vector<int64_t>> layers = {};
};

/// Makes a trainer of a causal language model. The parameters that are trained are copied, as f32;
/// `trained` is a model of these copies, which the trainer changes, and of the other parameters of
/// `model`, which stays as it is. `trainer` and `trained` share the copies: each may end first.
/// A session of `trained` goes on with the new parameters, beside keys and values of the old ones:
/// make a new one after an update.
///
/// The trainer's calls are those of training.h; a target is the token after a position, or -1. They
/// take no options of attention, and Trainer::model() is a Transformer without parameters.
/// Trainer::state_dict() has the names and shapes of the files; gains that the family stores minus
/// 1 (Gemma) are there as they are used.
/// Trainer::bytes() leaves out activations, whose memory each call takes and gives back.
///
/// Errors: kOption (a model that is no causal language model, no layer, a layer out of range,
/// TrainerOptions that are not defined, recompute), kMemory; `trainer` and `trained` are unchanged.
[[nodiscard]] Status create_trainer(const Model& model, const TrainerOptions& options,
                                    const FineTuning& fine_tuning, Trainer& trainer,
                                    Model& trained);

/// Writes the tensors that the model uses to a safetensors file, with the names and shapes of the
/// files that it was opened from, as write_safetensors() does. With config.json and the tokenizer's
/// files beside it, transformers opens the folder. Tensors of Dense modules, which no training
/// changes, are not among them: their files stay as they are. Weights of int8 and int4 become the
/// numbers that they stand for, except with kAsGiven: then all tensors keep their types in memory,
/// and rows of int8 and int4 become I8 (rows, bytes of a row; see weights.h), which open() and
/// openModel() use as they are, and other libraries do not know. Errors: kOption for a model that
/// was not opened or is a tower of two, and those of write_safetensors().
[[nodiscard]] Status save_weights(const Model& model, SafetensorsType type,
                                  const std::string& path);
/// The same file in memory; `bytes` is unchanged on an error.
[[nodiscard]] Status save_weights(const Model& model, SafetensorsType type,
                                  std::vector<std::byte>& bytes);

}  // namespace multihead::models
MULTIHEAD_PUBLIC_END
