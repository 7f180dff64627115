// Memory that operator new falls back on when no other is left.
#pragma once

namespace multihead::bindings {

// False where it was used up, and there is no memory for another: no call may start then.
[[nodiscard]] bool renew_reserve();

}  // namespace multihead::bindings
