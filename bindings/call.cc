#include "call.h"

#include <emscripten/em_js.h>

#include <cstdint>
#include <optional>

#include "engine/runtime/team.h"
#include "functions.h"
#include "memory.h"
#include "multihead/multihead.h"

// Calls the function that loader.ts gave to the glue.
EM_JS(int32_t, multihead_exchange, (uint32_t data, int32_t rows, int32_t stride, uint32_t bounds),
      { return Module['exchange'](data >>> 0, rows, stride, bounds >>> 0); });

namespace multihead::bindings {

void set_team(int32_t rank, int32_t members) {
  static std::optional<engine::WorkerTeam> team;
  team.reset();
  if (members > 0) {
    team.emplace(
        rank, members, [](void* data, int64_t rows, int64_t stride, const uint32_t* bounds) {
          return multihead_exchange(
                     address_of(data), static_cast<int32_t>(rows), static_cast<int32_t>(stride),
                     static_cast<uint32_t>(reinterpret_cast<uintptr_t>(bounds))) != 0;
        });
  }
  engine::set_team(context(), team ? &*team : nullptr);
}

Context& context() {
  static Context shared(1);
  return shared;
}

bool has_reserve() {
  if (!last_status.ok()) last_status = {};
  return renew_reserve();
}

}  // namespace multihead::bindings
