// The list of operations of a family's layers.
#pragma once

#include "models/architecture.h"
#include "nn/graph/graph.h"

namespace multihead::models {

// The layers of a model are alike, except for what LayerPlan says, and for norms without
// parameters, which do nothing. `layer`: the parameters of one of them, which tell whether q, k and
// v, and gate and up, are one matrix.
nn::Graph layer_graph(const Architecture& architecture, const nn::LayerParameters& layer);

}  // namespace multihead::models
