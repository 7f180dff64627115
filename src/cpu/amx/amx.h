// AMX: Intel's matrix instructions, eight tile registers of 1 kB. Highway 1.2 does not have them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace multihead::cpu {

// Products of bf16 matrices in tiles, with sums in f32, in the layout of the instructions.
//
// A tile of A is kTileSide rows of kTileDepth numbers, a tile of B kTileSide rows of pairs: row k
// of column c holds the numbers 2k and 2k + 1 of that column. Both are 16 rows of 64 bytes, and so
// is a tile of C, whose elements are floats.
inline constexpr size_t kTileSide = 16;
inline constexpr size_t kTileDepth = 32;
inline constexpr size_t kTileRowBytes = 64;

// C = A B, or C += A B, in whole tiles. All steps are in bytes.
struct TileProduct {
  const void* a;
  size_t a_row;  // from one row of A to the next; elements of a row are adjacent
  const void* b;
  size_t b_row;  // from one row of pairs to the next; tiles of columns are adjacent
  float* c;
  size_t c_row;
  size_t row_tiles, column_tiles, depth_tiles;
  bool accumulate = false;
};

// State of AMX with bf16 in this process, with the reason why it cannot be used.
enum class AmxState : uint8_t {
  kReady,
  kNotCompiled,       // compiled for another processor or system than x86-64 Linux
  kNoInstruction,     // this processor has no AMX with bf16
  kNotEnabled,        // the operating system does not save tile registers
  kPermissionDenied,  // Linux refused arch_prctl(ARCH_REQ_XCOMP_PERM)
};

// The first call requests AMX permission from Linux for the whole process. The permission enlarges
// every thread's signal frames, which must hold the tile registers, so call this only after bf16
// has been requested.
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

// Replaces the instructions by a model, so that tests can run all AMX code on any processor.
// amx_state() is then kReady. Null removes the model.
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
