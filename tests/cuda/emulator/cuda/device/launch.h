// launch() of src/cuda/device/launch.h for the emulator: the kernel has ended when it returns.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>

#include "cuda/device/device.h"
#include "cuda/emulator/block.h"

namespace multihead::cuda {

struct LaunchShape {
  Index3 grid = {1, 1, 1};
  int threads = 0;
  size_t shared_bytes = 0;
  void* stream = nullptr;
};

template <class... Params>
int launch(const LaunchShape& shape, void (*kernel)(Params...),
           std::type_identity_t<Params>... params) {
  const std::tuple<void (*)(Params...), Params...> call(kernel, params...);
  emulator::run_grid({shape.grid.x, shape.grid.y, shape.grid.z}, shape.threads, shape.shared_bytes,
                     {.kernel = reinterpret_cast<const void*>(kernel),
                      .run =
                          [](const void* data) {
                            std::apply([](auto run, const Params&... values) { run(values...); },
                                       *static_cast<const decltype(call)*>(data));
                          },
                      .data = &call,
                      .bytes = sizeof(call)});
  return 0;
}

}  // namespace multihead::cuda
