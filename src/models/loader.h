// A loader for a member of a team.
#pragma once

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
};
