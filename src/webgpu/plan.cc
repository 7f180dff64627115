#include "webgpu/plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "multihead/status.h"

namespace multihead::webgpu {

Status fold(const char* argument, uint64_t groups, const Device& device,
            std::array<uint32_t, 3>& folded) {
  const uint64_t most = uint64_t{device.groups} * device.groups;
  if (groups > std::min<uint64_t>(most, UINT32_MAX)) {
    return {StatusCode::kOption, argument,
            "at most " + std::to_string(most) + " workgroups on a GPU",
            std::to_string(groups) + ": cut the batch into several calls"};
  }
  const uint64_t rows = std::max<uint64_t>(1, (groups + device.groups - 1) / device.groups);
  folded = {static_cast<uint32_t>((groups + rows - 1) / rows), static_cast<uint32_t>(rows), 1};
  return {};
}

std::vector<uint32_t> packed(const Plan& plan) {
  std::vector<uint32_t> to;
  const auto put = [&](const auto&... numbers) {
    (to.push_back(static_cast<uint32_t>(numbers)), ...);
  };
  const auto put_all = [&](const auto& numbers) {
    to.insert(to.end(), numbers.begin(), numbers.end());
  };
  put(plan.data.size(), plan.scratch.size(), plan.dispatches.size());
  put_all(plan.data);
  put_all(plan.scratch);
  for (const Dispatch& dispatch : plan.dispatches) {
    put(dispatch.kernel);
    put_all(dispatch.constants);
    put_all(dispatch.groups);
    put(dispatch.bindings.size(), dispatch.parameters.size());
    for (const auto& [buffer, first_word, words] : dispatch.bindings)
      put(buffer, first_word, words);
    put_all(dispatch.parameters);
  }
  return to;
}

}  // namespace multihead::webgpu
