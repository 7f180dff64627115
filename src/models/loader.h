// A loader for a member of a team, or for weights that another device gets.
#pragma once

#include <memory>
#include <span>

#include "engine/runtime/team.h"
#include "multihead/models.h"

// The members of a ModelLoader that are hidden from the public header.
struct multihead::models::ModelLoader::Internals {
  // Does what ModelLoader::create() does. With a team, the model has only this member's rows of the
  // embedding and of each matrix that linear() multiplies by, and runs in calls of this team alone;
  // other tables, norms and biases are whole. ModelInfo describes the whole model.
  static Status create(const Config& config, std::span<const StoredTensor> tensors,
                       const OpenOptions& options, const engine::Team* team, ModelLoader& loader);

  // The model that is being loaded. The shapes of its matrices are known.
  static std::shared_ptr<Model::Internals> model(const ModelLoader& loader);
  // Gives each matrix memory of its own from now on, so that free() can give it back.
  static void separate_matrices(ModelLoader& loader);
  // True if a matrix has all of its numbers.
  static bool is_complete(const ModelLoader& loader, const WeightMatrix& matrix);
  // Frees the memory of a complete matrix, which then has no data.
  static void free(ModelLoader& loader, WeightMatrix& matrix);
};
