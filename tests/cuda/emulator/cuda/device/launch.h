// launch() of src/cuda/device/launch.h for the emulator: the kernel has ended when it returns.
// Grids have few blocks along x, so that nearly all have a second row, and blocks beyond the last
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "cuda/device/device.h"
#include "cuda/device/grid.h"
#include "cuda/device/recorded.h"
#include "cuda/emulator/block.h"

namespace multihead::cuda {

struct LaunchShape {
  int64_t blocks = 1;
  int threads = 0;
  size_t shared_bytes = 0;
  void* stream = nullptr;
  bool early = false;
};

template <class... Params>
int find_code(void (*)(Params...), int& version) {
  version = 0;
  return 0;
}

template <class... Params>
int launch(const LaunchShape& shape, void (*kernel)(Params...),
           std::type_identity_t<Params>... params) {
  const std::tuple<void (*)(Params...), Params...> call(kernel, params...);
  Grid grid;
  constexpr int kInvalidConfiguration = 9;
  if (!grid_of(shape.blocks, grid, emulator::launch_observer() ? kMostBlocksOfX : 5)) {
    return kInvalidConfiguration;
  }
  const auto run = [=] {
    emulator::run_grid({grid.x, grid.y, 1}, shape.threads, shape.shared_bytes,
                       {.kernel = reinterpret_cast<const void*>(kernel),
                        .run =
                            [](const void* data) {
                              std::apply(
                                  [](auto start, const Params&... values) { start(values...); },
                                  *static_cast<const decltype(call)*>(data));
                            },
                        .data = &call,
                        .bytes = sizeof(call)});
  };
  const auto enqueue = [=](void* /*stream*/) {
    if (emulator::launch_recorder()) {
      emulator::launch_recorder()(run);
    } else {
      run();
    }
    return 0;
  };
  if (recorded_launches() == nullptr) return enqueue(nullptr);
  recorded_launches()->emplace_back(enqueue);
  return 0;
}

}  // namespace multihead::cuda
