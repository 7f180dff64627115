// Checks the primitives of device code on a GPU. If one of these checks fails, all kernels that use
// the primitive fail.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cuda/device_checks.h"
#include "cuda/device_memory.h"
#include "cuda/emulator_kernels.h"
#include "cuda/hopper_kernels.h"
#include "cuda/hopper_products.h"
#include "multihead/tensor.h"
#include "support/random_case.h"

namespace multihead::testing {
namespace {

using cuda::testing::Fault;
using cuda::testing::HopperFault;
using cuda::testing::launch_hand_over;
using cuda::testing::launch_hopper_products;
using cuda::testing::launch_hopper_row_products;
using cuda::testing::launch_multiply;
using cuda::testing::launch_reverse;
using cuda::testing::launch_sum;

// Waits until a launch has ended.
void run(int error, const char* what) {
  must(static_cast<cudaError_t>(error), what);
  must(cudaDeviceSynchronize(), what);
}

// Returns 1 if some number is wrong, and prints the first wrong one with its row and column.
int compare(const std::string& what, const std::vector<float>& got,
            const std::vector<float>& expected, size_t columns) {
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - expected[i]) <= 1e-4F * (1.0F + std::abs(expected[i]))) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return 0;
  std::printf("%s: %zu of %zu numbers are wrong, first (%zu, %zu): %g instead of %g\n",
              what.c_str(), wrong, got.size(), first / columns, first % columns,
              static_cast<double>(got[first]), static_cast<double>(expected[first]));
  return 1;
}

int check_row_products(int consumers) {
  int wrong = 0;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const auto& [width, count] : cuda::testing::kHopperRowShapes) {
      cuda::testing::RowProductsCase c(type, width, count, consumers);
      const std::string what = std::string(name_of(type)) + ", " + std::to_string(count) +
                               " rows of width " + std::to_string(width);
      DeviceMemory memory;
      for (auto* const array : {&c.a, &c.b}) memory.add(*array);
      for (auto* const array : {&c.s, &c.o}) memory.add(*array);
      run(launch_hopper_row_products({memory.at(c.a.data()), memory.at(c.b.data()),
                                      memory.at(c.s.data()), memory.at(c.o.data()), type, width,
                                      count, consumers}),
          what.c_str());
      memory.read_back();
      wrong += compare(what + ", both from shared memory", c.s, c.expected_s,
                       static_cast<size_t>(count));
      wrong += compare(what + ", left from registers, right transposed", c.o, c.expected_o,
                       static_cast<size_t>(width));
    }
  }
  return wrong;
}

}  // namespace

int check_asynchronous_copies() {
  std::vector<float> in(192), out(192), expected(192);
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<float>(i);
    expected[i] = static_cast<float>(i / 64 * 64 + 63 - i % 64);
  }
  DeviceMemory memory;
  memory.add(in);
  memory.add(out);
  run(launch_reverse({memory.at(in.data()), memory.at(out.data()), 3}, Fault::kNone), "cp.async");
  memory.read_back();
  return compare("cp.async", out, expected, 64);
}

int check_barriers() {
  std::vector<float> in(64), out(32), expected(32);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  for (size_t i = 0; i < out.size(); ++i) expected[i] = static_cast<float>(31 - i);
  DeviceMemory memory;
  memory.add(in);
  memory.add(out);
  run(launch_hand_over({memory.at(in.data()), memory.at(out.data()), 1}, Fault::kNone),
      "bar.arrive and bar.sync");
  memory.read_back();
  int wrong = compare("bar.arrive and bar.sync", out, expected, 32);
  run(launch_sum({memory.at(in.data()), memory.at(out.data()), 1}, Fault::kNone), "__syncthreads");
  memory.read_back();
  expected = out;
  expected[0] = 63.0F * 32;
  wrong += compare("__syncthreads", out, expected, 32);
  return wrong;
}

int check_mma() {
  int wrong = 0;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    Random random(1);
    std::vector<float> a = cuda::testing::exact_numbers(random, size_t{16} * 16, 0.125F);
    std::vector<float> b = cuda::testing::exact_numbers(random, size_t{16} * 8, 0.125F);
    std::vector<float> d(size_t{16} * 8);
    const std::vector<float> expected = cuda::testing::product(a, b, 16, 8, 16, false);
    DeviceMemory memory;
    for (auto* const array : {&a, &b, &d}) memory.add(*array);
    run(launch_multiply({memory.at(a.data()), memory.at(b.data()), memory.at(d.data())}, type),
        "ldmatrix and mma.sync");
    memory.read_back();
    wrong += compare(std::string("ldmatrix and mma.sync of ") + name_of(type), d, expected, 8);
  }
  return wrong;
}

int check_tma_and_wgmma() {
  constexpr int kSteps = 5;
  constexpr size_t kTile = size_t{64} * 64;
  int wrong = 0;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const bool transposed : {false, true}) {
      Random random(3);
      const std::vector<float> of_a = cuda::testing::exact_numbers(random, kTile, 0.125F);
      const std::vector<float> of_b = cuda::testing::exact_numbers(random, kSteps * kTile, 0.125F);
      std::vector<uint16_t> a = cuda::testing::bits_of(of_a, type);
      std::vector<uint16_t> b = cuda::testing::bits_of(of_b, type);
      std::vector<float> d(kTile), expected(kTile);
      for (size_t step = 0; step < kSteps; ++step) {
        const auto first = of_b.begin() + static_cast<std::ptrdiff_t>(step * kTile);
        const std::vector<float> tile(first, first + static_cast<std::ptrdiff_t>(kTile));
        const std::vector<float> part =
            cuda::testing::product(of_a, tile, 64, 64, 64, /*transposes_b=*/!transposed);
        for (size_t i = 0; i < kTile; ++i) expected[i] += part[i];
      }
      const std::string what = std::string("TMA, mbarriers and wgmma of ") + name_of(type) +
                               (transposed ? ", right operand transposed" : "");
      DeviceMemory memory;
      for (auto* const array : {&a, &b}) memory.add(*array);
      memory.add(d);
      run(launch_hopper_products({memory.at(a.data()), memory.at(b.data()), memory.at(d.data()),
                                  kSteps, type, transposed},
                                 HopperFault::kNone),
          what.c_str());
      memory.read_back();
      wrong += compare(what, d, expected, 64);
    }
  }
  return wrong;
}

int check_wgmma_shapes() { return check_row_products(/*consumers=*/1); }
int check_register_exchange() { return check_row_products(/*consumers=*/2); }

}  // namespace multihead::testing
