#include "cuda/hopper_kernels.h"

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "cuda/device/hopper_device.h"
#include "cuda/device/launch.h"
#include "cuda/device/tensor_map.h"
#include "cuda/hopper/rows.h"
#include "cuda/hopper/softmax.h"

namespace multihead::cuda::testing {
namespace {

constexpr int kTileBytes = 64 * 128;
constexpr int kSlots = 2;

struct Params {
  TensorMap a, b;
  float* d;
  int steps;
  HopperFault fault;
};

// Four warps multiply, and the first lane of the fifth warp copies.
template <class T, bool kTransposed>
__global__ void __launch_bounds__(160) multiply_tiles(const __grid_constant__ Params p) {
  std::byte* const a = shared_memory();
  std::byte* const b = a + kTileBytes;
  auto* const a_full = reinterpret_cast<uint64_t*>(b + kSlots * kTileBytes);
  uint64_t* const full = a_full + 1;
  uint64_t* const empty = full + kSlots;
  if (thread_index() == 0 && p.fault != HopperFault::kNotInitialized) {
    mbarrier_init(a_full, 1);
    for (int slot = 0; slot < kSlots; ++slot) {
      mbarrier_init(full + slot, 1);
      mbarrier_init(empty + slot, 4);
    }
    mbarrier_init_fence();
  }
  sync_threads();
  if (warp() == 4) {
    if (lane() != 0) return;
    const uint32_t bytes = kTileBytes - (p.fault == HopperFault::kTooFewBytes ? 128 : 0);
    mbarrier_arrive_expect(a_full, bytes);
    tma_load_4d(a, &p.a, a_full, 0, 0, 0, 0);
    for (int step = 0; step < p.steps; ++step) {
      const int slot = step % kSlots;
      if (p.fault != HopperFault::kNoWaitForSlot) {
        mbarrier_wait(empty + slot, (static_cast<uint32_t>(step / kSlots) & 1U) ^ 1U);
      }
      mbarrier_arrive_expect(full + slot, bytes);
      tma_load_4d(b + slot * kTileBytes, &p.b, full + slot, 0, 0, step, 0);
    }
    return;
  }
  float d[32] = {};
  mbarrier_wait(a_full, 0);
  for (int step = 0; step < p.steps; ++step) {
    const int slot = step % kSlots;
    std::byte* const tile = b + slot * kTileBytes;
    if (p.fault != HopperFault::kNoWaitForCopy) {
      mbarrier_wait(full + slot, static_cast<uint32_t>(step / kSlots) & 1U);
    }
    if (p.fault == HopperFault::kNoProxyFence) {
      if (thread_index() == 0) reinterpret_cast<uint32_t*>(tile)[0] = 0;
      barrier_sync(1, 128);
    }
    const auto release = [&] {
      sync_warp();
      if (lane() == 0) mbarrier_arrive(empty + slot);
    };
    if (p.fault != HopperFault::kNoFence) wgmma_fence();
    for (int k = 0; k < 64; k += 16) {
      wgmma<T, kTransposed>(d, matrix_descriptor(a + 2 * k, 0, 1024),
                            matrix_descriptor(tile + (kTransposed ? 128 * k : 2 * k), 0, 1024),
                            true);
    }
    wgmma_commit();
    if (p.fault == HopperFault::kEarlyRelease) release();
    if (p.fault == HopperFault::kEarlyUse) d[0] = 1.0F;
    if (p.fault != HopperFault::kNoLastWait || step + 1 < p.steps) wgmma_wait<0>();
    wgmma_touch(d);
    if (p.fault != HopperFault::kEarlyRelease) release();
    if (p.fault == HopperFault::kTooManyArrivals) release();
  }
  const int row = thread_index() / 32 * 16 + lane() / 4;
  for (int i = 0; i < 32; ++i) {
    p.d[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane() % 4 * 2 + i % 2] = d[i];
  }
}

template <class T>
int launch_typed(const HopperProducts& products, HopperFault fault) {
  Params params{};
  params.d = products.d;
  params.steps = products.steps;
  params.fault = fault;
  const TensorMapShape shape{.data = products.a,
                             .type = products.type,
                             .extents = {64, 64, 1, 1},
                             .byte_strides = {128, kTileBytes, kTileBytes},
                             .box = {64, 64, 1, 1}};
  TensorMapShape tiles = shape;
  tiles.data = products.b;
  tiles.extents[2] = static_cast<uint64_t>(products.steps);
  if (const int error = encode_tensor_map(params.a, shape); error != 0) return error;
  if (const int error = encode_tensor_map(params.b, tiles); error != 0) return error;
  const LaunchShape launch_shape{.threads = 160,
                                 .shared_bytes = (1 + kSlots) * kTileBytes + 8 * (1 + 2 * kSlots),
                                 .stream = nullptr};
  return products.transposed ? launch(launch_shape, multiply_tiles<T, true>, params)
                             : launch(launch_shape, multiply_tiles<T, false>, params);
}

struct RowParams {
  TensorMap a, b;
  float *s, *o;
};

// Stores a warpgroup's 64 rows.
template <size_t kCount>
__device__ void store_sums(const float (&sums)[kCount], float* to) {
  const int row = thread_index() % kWarpgroupSize / kWarpSize * 16 + lane() / 4;
  constexpr int kColumns = 2 * static_cast<int>(kCount);
  for (int i = 0; i < static_cast<int>(kCount); ++i) {
    to[(row + i / 2 % 2 * 8) * kColumns + i / 4 * 8 + lane() % 4 * 2 + i % 2] = sums[i];
  }
}

// One warpgroup copies, the other warpgroups multiply 64 rows each.
template <class T, int kWidth, int kCount, int kConsumers>
__global__ void __launch_bounds__((1 + kConsumers) * kWarpgroupSize, 1)
    multiply_rows(const __grid_constant__ RowParams p) {
  constexpr bool kExchangesRegisters = kConsumers > 1;
  using A = HopperRows<kWidth, kConsumers * 64>;
  using B = HopperRows<kWidth, kCount>;
  std::byte* const a = shared_memory();
  std::byte* const b = a + A::kBytes;
  auto* const full = reinterpret_cast<uint64_t*>(b + B::kBytes);
  if (thread_index() == 0) {
    mbarrier_init(full, 2);
    mbarrier_init_fence();
  }
  sync_threads();
  const int group = uniform(warpgroup());
  if (group == 0) {
    if constexpr (kExchangesRegisters) set_max_registers_down<24>();
    if (thread_index() == 0) {
      load_rows<A>(a, p.a, full, 0, 0, 0);
      load_rows<B>(b, p.b, full, 0, 0, 0);
    }
  } else {
    if constexpr (kExchangesRegisters) set_max_registers_up<240>();
    const int first = 64 * (group - 1);
    float s[kCount / 2], o[kWidth / 2] = {};
    uint32_t weights[kCount / 16][4];
    mbarrier_wait(full, 0);
    wgmma_fence();
    multiply_transposed<T, A, B>(s, a + first * 128, b);
    wgmma_wait<0>();
    wgmma_touch(s);
    store_sums(s, p.s + first * kCount);
    pack_weights<T>(s, weights);
    wgmma_fence();
    add_product<T, B>(o, weights, b);
    wgmma_wait<0>();
    wgmma_touch(o);
    store_sums(o, p.o + first * kWidth);
  }
}

TensorMapShape rows_of(const void* data, DType type, int width, int count) {
  const auto row_bytes = static_cast<uint64_t>(2 * width);
  const auto rows = static_cast<uint32_t>(count);
  return {.data = data,
          .type = type,
          .extents = {static_cast<uint64_t>(width), rows, 1, 1},
          .byte_strides = {row_bytes, row_bytes * rows, row_bytes * rows},
          .box = {64, rows, 1, 1}};
}

template <class T, int kWidth, int kCount, int kConsumers>
int launch_row_shape(const HopperRowProducts& products) {
  using A = HopperRows<kWidth, kConsumers * 64>;
  using B = HopperRows<kWidth, kCount>;
  RowParams params{};
  params.s = products.s;
  params.o = products.o;
  for (const int error :
       {encode_tensor_map(params.a, rows_of(products.a, products.type, kWidth, A::kCount)),
        encode_tensor_map(params.b, rows_of(products.b, products.type, kWidth, kCount))}) {
    if (error != 0) return error;
  }
  return launch(
      {.threads = (1 + kConsumers) * kWarpgroupSize, .shared_bytes = A::kBytes + B::kBytes + 8},
      multiply_rows<T, kWidth, kCount, kConsumers>, params);
}

template <class T, size_t kShape = 0>
int launch_row_type(const HopperRowProducts& products) {
  constexpr int kInvalidValue = 1;
  if constexpr (kShape == std::size(kHopperRowShapes)) {
    return kInvalidValue;
  } else {
    constexpr auto kOne = kHopperRowShapes[kShape];
    if (products.width != kOne.width || products.count != kOne.count) {
      return launch_row_type<T, kShape + 1>(products);
    }
    return products.consumers == 1 ? launch_row_shape<T, kOne.width, kOne.count, 1>(products)
                                   : launch_row_shape<T, kOne.width, kOne.count, 2>(products);
  }
}

}  // namespace

int launch_hopper_row_products(const HopperRowProducts& products) {
  return products.type == DType::kBF16 ? launch_row_type<BFloat16>(products)
                                       : launch_row_type<Float16>(products);
}

int launch_hopper_products(const HopperProducts& products, HopperFault fault) {
  return products.type == DType::kBF16 ? launch_typed<BFloat16>(products, fault)
                                       : launch_typed<Float16>(products, fault);
}

}  // namespace multihead::cuda::testing
