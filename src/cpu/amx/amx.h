// AMX: Intel's matrix instructions, eight tile registers of 1 kB. Highway 1.2 does not have them.
#pragma once

#include <cstdint>

#include "cpu/amx/tile_product.h"

namespace multihead::cpu {

// Whether this process can use AMX with bf16, and why not.
enum class AmxState : uint8_t {
  kReady,
  kNotCompiled,       // compiled for another processor or system than x86-64 Linux
  kNoInstruction,     // this processor has no AMX with bf16
  kNotEnabled,        // the operating system does not save tile registers
  kPermissionDenied,  // Linux refused arch_prctl(ARCH_REQ_XCOMP_PERM)
};

// The first call asks Linux for the permission. It holds for the process, and each thread's signal
// frames then have room for the tile registers, so nothing calls this before AMX is asked for.
AmxState amx_state();

// Implementation of the tile instructions. Between begin() and end(), which configure and free the
// tile registers of the calling thread, multiply() may be called any number of times.
struct TileUnit {
  void (*begin)();
  void (*multiply)(const TileProduct& product);
  void (*end)();
};

// Null unless amx_state() is kReady.
const TileUnit* tile_unit();

// Tests replace the instructions by a model of them, so that all that uses them can be tested on
// any processor. amx_state() is then kReady. Null removes the model.
void replace_tile_unit(const TileUnit* model);

// Keeps the tile registers configured while it lives.
class TileSession {
 public:
  explicit TileSession(const TileUnit& unit) : unit_(unit) { unit_.begin(); }
  ~TileSession() { unit_.end(); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  const TileUnit& unit_;
};

}  // namespace multihead::cpu
