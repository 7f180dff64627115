// A reserve of memory for operator new.
#pragma once

namespace multihead::bindings {

// Replaces the reserve if it was used. False if there is no memory for that: no call may start
// then.
[[nodiscard]] bool renew_reserve();

}  // namespace multihead::bindings
