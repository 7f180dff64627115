#include "cuda/emulator/memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace multihead::cuda::emulator {
namespace {

constexpr size_t kGranule = 4;
constexpr size_t kMostFindings = 20;

// Bit mask of the bytes of granule `granule` that lie in [first, end).
uint8_t bytes_within(size_t granule, size_t first, size_t end) {
  const size_t begin = granule * kGranule;
  const size_t from = std::max(begin, first) - begin;
  const size_t to = std::min(begin + kGranule, end) - begin;
  return static_cast<uint8_t>((1U << to) - (1U << from));
}

size_t first_byte(size_t granule, uint8_t bytes) {
  size_t i = 0;
  while (((bytes >> i) & 1U) == 0) ++i;
  return granule * kGranule + i;
}

Device the_device;

}  // namespace

void Shadow::reset(size_t bytes, bool written) {
  bytes_ = bytes;
  Granule fresh;
  fresh.written = written ? 0xF : 0;
  granules_.assign((bytes + kGranule - 1) / kGranule, fresh);
}

void Shadow::enter_block(Granule& granule, uint64_t launch, uint64_t block, const Clock& clock,
                         const OrderedBlocks& ordered) {
  if (granule.launch == launch && granule.block == block) return;
  if (granule.launch != launch) {
    granule.others_read = granule.others_wrote = 0;
  } else {
    const auto found = ordered.find(granule.block);
    const bool seen = found != ordered.end() && clock.of(found->second.actor) >= found->second.time;
    for (const Cell& cell : granule.cells) {
      if (cell.actor < 0) continue;
      if (seen && found->second.released.of(cell.actor) >= cell.time) continue;
      (cell.access == Access::kWrite ? granule.others_wrote : granule.others_read) |= cell.bytes;
    }
  }
  granule.cells = {};
  granule.launch = launch;
  granule.block = block;
}

Shadow::Cell& Shadow::place_for(Granule& granule, const Cell& cell, const Clock& clock) {
  // True if every later access that conflicts with `old` also conflicts with `cell`.
  const auto covers = [&](const Cell& old) {
    return (old.bytes & ~cell.bytes) == 0 &&
           (cell.access == Access::kWrite || old.access == Access::kRead);
  };
  for (Cell& old : granule.cells) {
    if (old.actor == cell.actor && covers(old)) return old;
  }
  for (Cell& old : granule.cells) {
    if (old.actor < 0) return old;
  }
  for (Cell& old : granule.cells) {
    if (clock.of(old.actor) >= old.time && covers(old)) return old;
  }
  // Evict a remembered read, or a write if there is no read.
  const size_t first = ++victim_;
  for (size_t i = 0; i < granule.cells.size(); ++i) {
    Cell& old = granule.cells[(first + i) % granule.cells.size()];
    if (old.access == Access::kRead) return old;
  }
  return granule.cells[first % granule.cells.size()];
}

Shadow::Result Shadow::access(size_t first, size_t bytes, Access access, int actor,
                              const Clock& clock, uint64_t launch, uint64_t block,
                              const OrderedBlocks& ordered) {
  Result result;
  const size_t end = first + bytes;
  for (size_t at = first / kGranule; at * kGranule < end; ++at) {
    Granule& granule = granules_[at];
    enter_block(granule, launch, block, clock, ordered);
    const uint8_t touched = bytes_within(at, first, end);
    const auto fault = [&](Fault what, uint8_t which) {
      if (result.fault != Fault::kNone) return;
      result.fault = what;
      result.byte = first_byte(at, which);
    };
    if ((granule.in_flight & touched) != 0) {
      fault(Fault::kInFlight, granule.in_flight & touched);
    } else if (access == Access::kRead && (touched & ~granule.written) != 0) {
      fault(Fault::kUnwritten, static_cast<uint8_t>(touched & ~granule.written));
    }
    const auto others = static_cast<uint8_t>(granule.others_wrote |
                                             (access == Access::kWrite ? granule.others_read : 0));
    if ((others & touched) != 0) fault(Fault::kRaceOfBlocks, others & touched);
    for (const Cell& cell : granule.cells) {
      if (cell.actor < 0 || cell.actor == actor || (cell.bytes & touched) == 0) continue;
      if (access == Access::kRead && cell.access == Access::kRead) continue;
      if (clock.of(cell.actor) >= cell.time) continue;
      if (result.fault == Fault::kNone) {
        result.other = cell.actor;
        result.other_access = cell.access;
      }
      fault(Fault::kRace, cell.bytes & touched);
    }
    if (access == Access::kWrite) granule.written |= touched;
    const Cell cell{.time = clock.of(actor),
                    .actor = static_cast<int16_t>(actor),
                    .bytes = touched,
                    .access = access};
    place_for(granule, cell, clock) = cell;
  }
  return result;
}

void Shadow::set_in_flight(size_t first, size_t bytes, bool in_flight) {
  for (size_t at = first / kGranule; at * kGranule < first + bytes; ++at) {
    const uint8_t touched = bytes_within(at, first, first + bytes);
    if (in_flight) {
      granules_[at].in_flight |= touched;
    } else {
      granules_[at].in_flight &= static_cast<uint8_t>(~touched);
    }
  }
}

bool Shadow::last_write(size_t byte, int& actor, uint32_t& time) const {
  const Granule& granule = granules_[byte / kGranule];
  bool found = false;
  for (const Cell& cell : granule.cells) {
    if (cell.actor < 0 || cell.access != Access::kWrite) continue;
    if (((cell.bytes >> (byte % kGranule)) & 1U) == 0 || (found && cell.time < time)) continue;
    found = true;
    actor = cell.actor;
    time = cell.time;
  }
  return found;
}

void Device::map(const void* data, size_t bytes, Use use, std::string name) {
  if (bytes == 0) return;
  Region region{.begin = static_cast<const std::byte*>(data),
                .bytes = bytes,
                .use = use,
                .name = std::move(name),
                .shadow = {}};
  if (use != Use::kInput) region.shadow.reset(bytes, use == Use::kInPlace);
  regions_.push_back(std::move(region));
}

void Device::unmap(const void* data) {
  std::erase_if(regions_, [&](const Region& region) { return region.begin == data; });
  last_ = 0;
}

Device::Region* Device::find(const void* address, size_t bytes) {
  if (last_ < regions_.size() && regions_[last_].contains(address, bytes)) return &regions_[last_];
  for (size_t i = 0; i < regions_.size(); ++i) {
    if (!regions_[i].contains(address, bytes)) continue;
    last_ = i;
    return &regions_[i];
  }
  return nullptr;
}

void Device::report(std::string finding) {
  if (findings_.size() < kMostFindings) {
    findings_.push_back(std::move(finding));
  } else {
    ++not_listed_;
  }
}

std::vector<std::string> Device::take_findings() {
  std::vector<std::string> result = std::move(findings_);
  findings_.clear();
  if (not_listed_ > 0) result.push_back("and " + std::to_string(not_listed_) + " more");
  not_listed_ = 0;
  return result;
}

Device& device() { return the_device; }

}  // namespace multihead::cuda::emulator
