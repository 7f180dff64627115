// The team of WebAssembly workers, and of threads in tests: divides attention() and linear() among
// its members and exchanges their results.
#pragma once

#include "engine/runtime/team.h"

namespace multihead::engine {

class WorkerTeam final : public Team {
 public:
  using Team::Team;

  Status run_attention(ForwardPlan& plan, Context& context) override;
  Status run_linear(const LinearCall& call, Context& context) override;
};

}  // namespace multihead::engine
