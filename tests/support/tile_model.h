// A model of AMX's bf16 tile instructions, so that kernels that use them are tested on any
// processor. The library itself never uses it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace multihead::testing {

// Eight tile registers of 16 rows of 64 bytes.
class TileModel {
 public:
  // TILELOADD
  template <int kTile>
  void load(const void* from, size_t row_step) {
    load_rows(tiles_[kTile], from, row_step);
  }
  // TILEZERO
  template <int kTile>
  void zero() {
    tiles_[kTile] = {};
  }
  // TDPBF16PS
  template <int kC, int kA, int kB>
  void multiply() {
    multiply_add(tiles_[kC], tiles_[kA], tiles_[kB]);
  }
  // TILESTORED
  template <int kTile>
  void store(void* to, size_t row_step) const {
    store_rows(tiles_[kTile], to, row_step);
  }

 private:
  using Tile = std::array<std::array<uint32_t, 16>, 16>;

  static void load_rows(Tile& tile, const void* from, size_t row_step);
  static void store_rows(const Tile& tile, void* to, size_t row_step);
  static void multiply_add(Tile& c, const Tile& a, const Tile& b);

  std::array<Tile, 8> tiles_ = {};
};

// While this object exists, the library uses the model instead of AMX.
class UseTileModel {
 public:
  UseTileModel();
  ~UseTileModel();
  UseTileModel(const UseTileModel&) = delete;
  UseTileModel& operator=(const UseTileModel&) = delete;

  // Returns the number of tile products computed since this object was made.
  int64_t products() const;

 private:
  int64_t before_;
};

}  // namespace multihead::testing
