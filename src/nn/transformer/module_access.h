// What the bindings do with the parameters and caches of modules, beyond the public calls: a member
// of a team loads its share of the parameters, reads them piece by piece, and makes caches of the
// heads that it computes.
#pragma once

#include "engine/error/guard.h"
#include "engine/runtime/team.h"
#include "multihead/transformer.h"
#include "nn/attention/attention_parameters.h"
#include "nn/parameters.h"
#include "nn/transformer/transformer_block.h"

namespace multihead::nn {

// load_state_dict() of a block or a transformer.
template <class Module>
Status load_parameters(Module& module, const StateDict& dict, ParameterNames names,
                       const Loading& loading) {
  return engine::memory_guard(
      [&] { return Module::Internals::load(module, dict, names, loading); });
}
// An attention module has only one kind of names.
inline Status load_parameters(MultiHeadAttention& module, const StateDict& dict, ParameterNames,
                              const Loading& loading) {
  return engine::memory_guard(
      [&] { return MultiHeadAttention::Internals::load(module, dict, loading); });
}

inline Status initialise_parameters(Transformer& model, const Initialisation& initialisation,
                                    ParameterNames names, const Loading& loading) {
  return engine::memory_guard([&] {
    return Transformer::Internals::take_parameters(model, nullptr, initialisation, names, loading);
  });
}

// create_cache() of a module; with a team, for the heads of this member.
template <class Module, class Cache>
Status create_cache(const Module& module, const KVCacheConfig& config, const engine::Team* team,
                    Cache& cache) {
  return engine::memory_guard(
      [&] { return Module::Internals::create_cache(module, config, team, cache); });
}

// Null if a module has none of its own.
template <class Module>
const Parameters* parameters_of(const Module& module) {
  return Module::Internals::parameters(module);
}

}  // namespace multihead::nn
