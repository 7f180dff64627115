#include "webgpu/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/error/error.h"

namespace multihead::webgpu {

uint32_t Planner::scratch(uint64_t words) {
  buffers_.push_back((std::max<uint64_t>(words, 1) + 3) / 4 * 4);
  return static_cast<uint32_t>(buffers_.size()) - 1;
}

Binding Planner::scratch(const char* argument, double words) {
  check_bytes(argument, 4 * words);
  if (!status_.ok()) return {};
  return whole(scratch(static_cast<uint64_t>(words)));
}

void Planner::move_rows(const Move& rows, const Extents& e, RowsBlock block, const Move* more) {
  const double count = product({e[0], e[1], e[2]});
  if (count == 0 || e[3] == 0) return;
  block.x = rows.from.block();
  block.y = rows.to.block();
  block.count = static_cast<uint32_t>(count);
  block.heads = word(e[1]);
  block.rows = word(e[2]);
  block.width = word(e[3]);
  std::vector<Binding> bindings{rows.from.binding, data(), rows.to.binding};
  if (more != nullptr) {
    block.x2 = more->from.block();
    block.y2 = more->to.block();
    bindings.insert(bindings.end(), {more->from.binding, more->to.binding});
  }
  const uint32_t pair = more == nullptr ? 0 : 1;
  dispatch(Kernel::kRows, {pair}, count * (1 + pair), std::move(bindings), block);
}

std::array<uint32_t, 3> Planner::folded(double groups, uint32_t z) {
  const double most = std::min(std::pow(device_.groups, 2.0), 0x1p32 - 1);
  if (groups > most) {
    fail({StatusCode::kOption, argument_,
          "at most " + std::to_string(static_cast<int64_t>(most)) + " workgroups on a GPU",
          std::to_string(static_cast<int64_t>(std::min(groups, 0x1p62))) +
              ": cut the batch into several calls"});
    return {};
  }
  const double rows = std::max(1.0, std::ceil(groups / device_.groups));
  return {static_cast<uint32_t>(std::ceil(groups / rows)), static_cast<uint32_t>(rows), z};
}

void Planner::check_bytes(const char* argument, double bytes) {
  const double most = std::min(static_cast<double>(device_.binding_bytes), 0x1p32 - 4);
  if (bytes <= most) return;
  fail({StatusCode::kOption, argument,
        "at most " + std::to_string(static_cast<int64_t>(most)) +
            " bytes, the longest binding of this GPU",
        std::to_string(static_cast<int64_t>(std::min(bytes, 0x1p62))) +
            ": cut the batch or the heads into several calls"});
}

Status Planner::finish(Plan& plan) {
  MULTIHEAD_TRY(status_);
  // The dispatches that use each scratch buffer.
  const size_t count = buffers_.size() - operands_;
  std::vector<size_t> last(count), place(count, std::numeric_limits<size_t>::max());
  for (size_t at = 0; at < plan_.dispatches.size(); ++at) {
    for (const Binding& binding : plan_.dispatches[at].bindings) {
      if (binding.buffer < operands_ || binding.buffer == kData) continue;
      last[binding.buffer - operands_] = at;
    }
  }
  struct Memory {
    uint64_t words = 0;
    size_t busy_until = 0;
  };
  std::vector<Memory> memories;
  const uint32_t first_scratch = operands_ + (plan_.data.empty() ? 0 : 1);
  uint64_t longest = plan_.data.size();
  for (size_t at = 0; at < plan_.dispatches.size(); ++at) {
    for (Binding& binding : plan_.dispatches[at].bindings) {
      if (binding.buffer == kData) {
        if (binding.words == 0) {
          binding.words = static_cast<uint32_t>(plan_.data.size()) - binding.first_word;
        }
        binding.buffer = operands_;
        continue;
      }
      longest = std::max<uint64_t>(longest, binding.words);
      if (binding.buffer < operands_) continue;
      const size_t id = binding.buffer - operands_;
      const uint64_t words = buffers_[binding.buffer];
      if (place[id] == std::numeric_limits<size_t>::max()) {
        // The smallest free memory that is large enough, or the largest, which then grows.
        Memory* best = nullptr;
        for (Memory& each : memories) {
          if (each.busy_until >= at) continue;
          const uint64_t now = best == nullptr ? 0 : best->words;
          const bool fits = each.words >= words && each.words < now;
          if (best == nullptr || (now < words ? each.words > now : fits)) best = &each;
        }
        if (best == nullptr) best = &memories.emplace_back();
        *best = {std::max(best->words, words), last[id]};
        place[id] = static_cast<size_t>(best - memories.data());
      }
      binding.buffer = first_scratch + static_cast<uint32_t>(place[id]);
    }
  }
  if (longest * sizeof(uint32_t) > device_.binding_bytes) {
    return {StatusCode::kOption, argument_,
            "bindings of " + std::to_string(longest * sizeof(uint32_t)) + " bytes",
            std::to_string(device_.binding_bytes)};
  }
  plan_.scratch.clear();
  for (const Memory& memory : memories) {
    plan_.scratch.push_back(static_cast<uint32_t>(memory.words));
  }
  plan = std::move(plan_);
  return {};
}

}  // namespace multihead::webgpu
