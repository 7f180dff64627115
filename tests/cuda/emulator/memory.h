// The memory of an emulated GPU. A shadow records for each byte whether it was written, and which
// actors read or wrote it last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/emulator/clock.h"

namespace multihead::cuda::emulator {

// Allowed accesses of kernels to a range of global memory.
enum class Use : uint8_t {
  kInput,      // read
  kOutput,     // write, and read only written bytes
  kWorkspace,  // treated like kOutput
  kInPlace,    // read and write
};

enum class Access : uint8_t { kRead, kWrite };

// What another block did before it added to a counter, which an actor of this block then read.
struct OrderedBlock {
  Clock released;  // of the other block
  int actor = 0;   // of this block, and its time since then
  uint32_t time = 0;
};
// By the number of the other block.
using OrderedBlocks = std::map<uint64_t, OrderedBlock>;

// Two accesses of different actors conflict if one is a write and neither is ordered before the
// other.
class Shadow {
 public:
  // The kind of fault of an access.
  enum class Fault : uint8_t { kNone, kRace, kRaceOfBlocks, kUnwritten, kInFlight };
  struct Result {
    Fault fault = Fault::kNone;
    size_t byte = 0;
    int other = 0;  // kRace: the other actor
    Access other_access = Access::kRead;
  };

  void reset(size_t bytes, bool written);
  // Checks and records an access of an actor of block `block` of launch `launch`, at the time of
  // `clock`.
  Result access(size_t first, size_t bytes, Access access, int actor, const Clock& clock,
                uint64_t launch, uint64_t block, const OrderedBlocks& ordered);
  // Marks bytes that an asynchronous copy will write.
  void set_in_flight(size_t first, size_t bytes, bool in_flight);
  // Gets the actor and time of the last write to a byte by this block. Returns false if there was
  // none.
  bool last_write(size_t byte, int& actor, uint32_t& time) const;

 private:
  // One remembered access of some bytes of a granule.
  struct Cell {
    uint32_t time = 0;
    int16_t actor = -1;  // -1: no access
    uint8_t bytes = 0;   // bit i: byte i of the granule
    Access access = Access::kRead;
  };
  // Four bytes. Like ThreadSanitizer, it remembers the last few accesses.
  struct Granule {
    std::array<Cell, 4> cells{};
    uint64_t launch = 0, block = 0;
    uint8_t written = 0, in_flight = 0;         // bit i: byte i
    uint8_t others_read = 0, others_wrote = 0;  // by other blocks of the launch
  };
  // Notes what the last other block did that is not ordered before `clock`.
  static void enter_block(Granule& granule, uint64_t launch, uint64_t block, const Clock& clock,
                          const OrderedBlocks& ordered);
  // Returns the remembered access that `cell` replaces.
  Cell& place_for(Granule& granule, const Cell& cell, const Clock& clock);

  std::vector<Granule> granules_;
  size_t bytes_ = 0;
  size_t victim_ = 0;
};

// Global memory that kernels may use, and the faults found.
class Device {
 public:
  // Kernels may use [data, data + bytes) until unmap().
  void map(const void* data, size_t bytes, Use use, std::string name);
  void unmap(const void* data);

  // Seed of the order in which threads run.
  void set_seed(uint64_t seed) { seed_ = seed; }
  uint64_t seed() const { return seed_; }

  // If set, threads must call wait_for_previous_kernel() before they use global memory.
  void set_waits_first(bool waits_first) { waits_first_ = waits_first; }
  bool waits_first() const { return waits_first_; }

  // A counter that blocks of a launch add to, with what each block did before.
  struct Counter {
    uint64_t launch = 0;
    std::map<uint64_t, Clock> released;
  };
  Counter& counter(const void* address) { return counters_[address]; }

  // Returns the text of every fault since the last call.
  std::vector<std::string> take_findings();
  void report(std::string finding);

  struct Region {
    const std::byte* begin = nullptr;
    size_t bytes = 0;
    Use use = Use::kInput;
    std::string name;
    Shadow shadow;  // empty for kInput
    bool contains(const void* address, size_t size) const {
      const auto* const first = static_cast<const std::byte*>(address);
      return first >= begin && first < begin + bytes &&
             size <= static_cast<size_t>(begin + bytes - first);
    }
  };
  Region* find(const void* address, size_t bytes);

  // Reads and writes of kernels since the program began. Local arrays do not count.
  uint64_t accesses = 0;

 private:
  std::vector<Region> regions_;
  size_t last_ = 0;
  std::vector<std::string> findings_;
  size_t not_listed_ = 0;
  uint64_t seed_ = 1;
  bool waits_first_ = false;
  std::map<const void*, Counter> counters_;
};

// The one emulated device.
Device& device();

}  // namespace multihead::cuda::emulator
