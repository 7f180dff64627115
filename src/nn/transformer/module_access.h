// Access of the bindings to parameters and caches of modules, beyond the public calls: a team
// member loads its share of the parameters, reads parameters in parts, and creates caches for the
// heads that it computes.
#pragma once

#include "engine/error/error.h"
#include "engine/runtime/team.h"
#include "multihead/transformer.h"
#include "nn/attention/attention_parameters.h"
#include "nn/parameters.h"
#include "nn/transformer/transformer_block.h"

namespace multihead::nn {

// Implements load_state_dict() of a block or a transformer.
template <class Module>
Status load_parameters(Module& module, const StateDict& dict, ParameterNames names,
                       const Loading& loading) {
  return engine::memory_guard(
      [&] { return Module::Internals::load(module, dict, names, loading); });
}
// Ignores `names`: an attention module has only one kind of names.
inline Status load_parameters(MultiHeadAttention& module, const StateDict& dict, ParameterNames,
                              const Loading& loading) {
  return engine::memory_guard(
      [&] { return MultiHeadAttention::Internals::load(module, dict, loading); });
}

inline Status initialize_parameters(Transformer& model, const Initialization& initialization,
                                    ParameterNames names, const Loading& loading) {
  return engine::memory_guard([&] {
    return Transformer::Internals::take_parameters(model, nullptr, initialization, names, loading);
  });
}

// Implements create_cache() of a module. With a team: for the heads of this member only.
template <class Module, class Cache>
Status create_cache(const Module& module, const KVCacheConfig& config, const engine::Team* team,
                    Cache& cache) {
  return engine::memory_guard(
      [&] { return Module::Internals::create_cache(module, config, team, cache); });
}

}  // namespace multihead::nn
