#include "webgpu/plan.h"

#include <cstdint>
#include <vector>

namespace multihead::webgpu {

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
