#include "call.h"

#include "memory.h"
#include "multihead/multihead.h"

namespace multihead::bindings {

Context& context() {
  static Context shared(1);
  return shared;
}

bool has_reserve() {
  if (!last_status.ok()) last_status = {};
  return renew_reserve();
}

}  // namespace multihead::bindings
