// What the bindings do with the parameters and caches of modules, beyond the public calls: a member
// of a team loads its share of the parameters, reads them piece by piece, and makes caches of the
// heads that it computes.
#pragma once

#include "engine/guard.h"
#include "multihead/transformer.h"
#include "nn/attention/attention_parameters.h"
#include "nn/parameters.h"
#include "nn/transformer/transformer_block.h"

namespace multihead::nn {

struct ModuleAccess {
  // load_state_dict() of a module. A layer has only one kind of names.
  static Status load(MultiHeadAttention& module, const StateDict& dict, ParameterNames,
                     const Loading& loading) {
    return engine::memory_guard([&] { return module.load_or_throw(dict, loading); });
  }
  static Status load(TransformerBlock& block, const StateDict& dict, ParameterNames names,
                     const Loading& loading) {
    return engine::memory_guard([&] { return block.load_or_throw(dict, names, loading); });
  }
  static Status load(Transformer& model, const StateDict& dict, ParameterNames names,
                     const Loading& loading) {
    return engine::memory_guard([&] { return model.take_parameters(&dict, {}, names, loading); });
  }

  static Status initialise(Transformer& model, const Initialisation& initialisation,
                           ParameterNames names, const Loading& loading) {
    return engine::memory_guard(
        [&] { return model.take_parameters(nullptr, initialisation, names, loading); });
  }

  // create_cache() of a module; with a team, for the heads of this member.
  template <class Module, class Cache>
  static Status create_cache(const Module& module, const KVCacheConfig& config,
                             const engine::Team* team, Cache& cache) {
    return engine::memory_guard([&] { return module.create_cache_or_throw(config, team, cache); });
  }

  // Null if a module has none of its own.
  template <class Module>
  static const Parameters* parameters(const Module& module) {
    return module.memory_ == nullptr ? nullptr : &module.memory_->parameters;
  }
};

}  // namespace multihead::nn
