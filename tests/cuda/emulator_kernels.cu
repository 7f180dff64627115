// Small kernels for emulator_test.cc: correct ones, and variants with one fault each.
#include "cuda/emulator_kernels.h"

#include <cstddef>
#include <cstdint>

#include "cuda/device/device.h"
#include "cuda/device/launch.h"
#include "multihead/tensor.h"

namespace multihead::cuda::testing {
namespace {

constexpr int kThreads = 64;

// Reverses blocks of 64 numbers through shared memory.
template <Fault kFault>
__global__ void __launch_bounds__(kThreads) reverse(const __grid_constant__ ReverseParams p) {
  auto* const tile = reinterpret_cast<float*>(shared_memory());
  const int t = thread_index();
  if (block_number() >= p.blocks) return;
  const int64_t first = block_number() * kThreads;
  copy_async<4>(tile + t, p.in + first + t);
  commit_copies();
  if constexpr (kFault != Fault::kNoWait) wait_copies<0>();
  if constexpr (kFault != Fault::kNoBarrier) sync_threads();
  constexpr int kLast = kFault == Fault::kSharedBounds ? kThreads : kThreads - 1;
  const float value = tile[kLast - t];
  p.out[first + t + (kFault == Fault::kGlobalBounds ? 1 : 0)] = value;
}

// Sums 64 numbers by halving. With kUnwritten, one number is left unwritten.
template <Fault kFault>
__global__ void __launch_bounds__(kThreads) sum(const __grid_constant__ ReverseParams p) {
  auto* const tile = reinterpret_cast<float*>(shared_memory());
  const int t = thread_index();
  if (kFault != Fault::kUnwritten || t != 5) tile[t] = p.in[t];
  for (int half = kThreads / 2; half > 0; half /= 2) {
    sync_threads();
    if (t < half) tile[t] += tile[t + half];
    // Fault: only one warp reaches this barrier.
    if (kFault == Fault::kDivergentBarrier && half == 8 && warp() == 0) sync_threads();
  }
  if (t == 0 || (kFault == Fault::kTwoWriters && t == 40)) p.out[0] = t == 0 ? tile[0] : 0.0F;
}

// Warp 1 passes numbers to warp 0 through shared memory, ordered by a named barrier. With
// kNoBarrier, warp 0 does not wait.
template <Fault kFault>
__global__ void __launch_bounds__(kThreads) hand_over(const __grid_constant__ ReverseParams p) {
  auto* const tile = reinterpret_cast<float*>(shared_memory());
  if (warp() == 1) {
    tile[lane()] = p.in[lane()];
    barrier_arrive(kFault == Fault::kNoBarrier ? 2 : 1, kThreads);
  } else {
    if constexpr (kFault != Fault::kNoBarrier) barrier_sync(1, kThreads);
    p.out[lane()] = tile[31 - lane()];
  }
}

// Every block writes 64 numbers, and the last one adds up those of all blocks, in out[t].
template <Fault kFault>
__global__ void __launch_bounds__(kThreads) total(const __grid_constant__ ReverseParams p) {
  const int t = thread_index();
  if (block_number() >= p.blocks) return;
  if constexpr (kFault != Fault::kEarly) wait_for_previous_kernel();
  p.out[block_number() * kThreads + t] = p.in[t];
  auto& before = *reinterpret_cast<uint64_t*>(shared_memory());
  if constexpr (kFault != Fault::kNoBarrier) sync_threads();
  if (t == 0) {
    // Fault: a plain number does not order the blocks' accesses.
    before = kFault == Fault::kNoCounter ? read_counter(p.counter) : add_to_counter(p.counter);
    if (kFault == Fault::kNoCounter) replace_counter(p.counter, before, before + 1);
  }
  sync_threads();
  if (before + 1 != static_cast<uint64_t>(p.blocks)) return;
  if (t == 0) replace_counter(p.counter, before + 1, 0);
  float sum = 0.0F;
  for (int b = 0; b < p.blocks; ++b) sum += p.out[b * kThreads + (t + 1) % kThreads];
  sync_threads();
  p.out[t] = sum;
}

// D (16 x 8) = A (16 x 16) B (16 x 8), by one warp; both operands are stored row by row.
template <class T>
__global__ void __launch_bounds__(32) multiply(const __grid_constant__ MultiplyParams p) {
  auto* const a = reinterpret_cast<T*>(shared_memory());
  T* const b = a + 16 * 16;
  for (int i = lane(); i < 16 * 16; i += kWarpSize) a[i] = from_float<T>(p.a[i]);
  for (int i = lane(); i < 16 * 8; i += kWarpSize) b[i] = from_float<T>(p.b[i]);
  sync_threads();
  uint32_t a_part[4], b_part[4];
  load_matrix_x4(a_part, a + lane() % 16 * 16 + lane() / 16 * 8);
  load_matrix_x4_transposed(b_part, b + lane() % 16 * 8);
  float d[4] = {};
  mma_m16n8k16<T>(d, a_part, b_part[0], b_part[1]);
  const int row = lane() / 4, column = 2 * (lane() % 4);
  for (int i = 0; i < 4; ++i) p.d[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];
}

}  // namespace

int launch_reverse(const ReverseParams& p, Fault fault) {
  const LaunchShape shape{
      .blocks = p.blocks, .threads = kThreads, .shared_bytes = kThreads * sizeof(float)};
  switch (fault) {
    case Fault::kNoWait:
      return launch(shape, reverse<Fault::kNoWait>, p);
    case Fault::kNoBarrier:
      return launch(shape, reverse<Fault::kNoBarrier>, p);
    case Fault::kSharedBounds:
      return launch(shape, reverse<Fault::kSharedBounds>, p);
    case Fault::kGlobalBounds:
      return launch(shape, reverse<Fault::kGlobalBounds>, p);
    default:
      return launch(shape, reverse<Fault::kNone>, p);
  }
}

int launch_sum(const ReverseParams& p, Fault fault) {
  const LaunchShape shape{
      .blocks = p.blocks, .threads = kThreads, .shared_bytes = kThreads * sizeof(float)};
  switch (fault) {
    case Fault::kUnwritten:
      return launch(shape, sum<Fault::kUnwritten>, p);
    case Fault::kDivergentBarrier:
      return launch(shape, sum<Fault::kDivergentBarrier>, p);
    case Fault::kTwoWriters:
      return launch(shape, sum<Fault::kTwoWriters>, p);
    default:
      return launch(shape, sum<Fault::kNone>, p);
  }
}

int launch_hand_over(const ReverseParams& p, Fault fault) {
  const LaunchShape shape{.threads = kThreads, .shared_bytes = kThreads * sizeof(float)};
  return fault == Fault::kNoBarrier ? launch(shape, hand_over<Fault::kNoBarrier>, p)
                                    : launch(shape, hand_over<Fault::kNone>, p);
}

int launch_total(const ReverseParams& p, Fault fault) {
  const LaunchShape shape{
      .blocks = p.blocks, .threads = kThreads, .shared_bytes = sizeof(uint64_t)};
  switch (fault) {
    case Fault::kNoBarrier:
      return launch(shape, total<Fault::kNoBarrier>, p);
    case Fault::kNoCounter:
      return launch(shape, total<Fault::kNoCounter>, p);
    case Fault::kEarly:
      return launch(shape, total<Fault::kEarly>, p);
    default:
      return launch(shape, total<Fault::kNone>, p);
  }
}

int launch_multiply(const MultiplyParams& p, DType type) {
  const LaunchShape shape{.threads = kWarpSize, .shared_bytes = (16 * 16 + 16 * 8) * 2};
  return type == DType::kF16 ? launch(shape, multiply<Float16>, p)
                             : launch(shape, multiply<BFloat16>, p);
}

}  // namespace multihead::cuda::testing
