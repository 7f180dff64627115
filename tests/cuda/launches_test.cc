// The launches of each plan, on GPUs that the emulator does not model: their shared memory, and
// their numbers of blocks. No kernel runs, and no address is followed.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda/device/grid.h"
#include "cuda/emulator/block.h"
#include "cuda/kernels.h"
#include "cuda/plan/backward_plan.h"
#include "cuda/plan/plan.h"
#include "cuda/tile_axis.h"
#include "engine/attention/validate.h"
#include "engine/cache/cached_rows.h"
#include "multihead/attention.h"
#include "multihead/tensor.h"

namespace multihead::cuda::testing {
namespace {

constexpr std::array kDevices{
    Device{.compute_capability = 80, .multiprocessors = 108, .shared_bytes = 163 << 10},
    Device{.compute_capability = 86, .multiprocessors = 84, .shared_bytes = 99 << 10},
    Device{.compute_capability = 89, .multiprocessors = 128, .shared_bytes = 99 << 10},
    Device{.compute_capability = 90, .multiprocessors = 132, .shared_bytes = 227 << 10},
    Device{.compute_capability = 100, .multiprocessors = 148, .shared_bytes = 227 << 10},
    Device{.compute_capability = 120, .multiprocessors = 170, .shared_bytes = 99 << 10},
};
constexpr std::array kTypes{DType::kF32, DType::kF16, DType::kBF16};
constexpr std::array<int64_t, 6> kWidths{8, 64, 96, 128, 192, 256};

// Collects launches for as long as it exists.
class Observer {
 public:
  Observer() {
    emulator::launch_observer() = [this](const emulator::Launch& launch) {
      launches_.push_back(launch);
    };
  }
  ~Observer() { emulator::launch_observer() = nullptr; }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  const std::vector<emulator::Launch>& launches() const { return launches_; }
  void expect_fit(const Device& device) const {
    ASSERT_FALSE(launches_.empty());
    for (const emulator::Launch& launch : launches_) {
      ASSERT_LE(launch.shared_bytes, static_cast<size_t>(device.shared_bytes));
      ASSERT_GT(launch.blocks, 0U);
    }
  }

 private:
  std::vector<emulator::Launch> launches_;
};

void* address() { return reinterpret_cast<void*>(0x1000); }  // NOLINT(performance-no-int-to-ptr)

AnyTensor tensor(DType type, const Dims& shape) {
  return {address(), type, shape, contiguous_strides(shape)};
}
Tensor floats(const Dims& shape) { return {static_cast<float*>(address()), shape}; }

struct Shape {
  int64_t batch, heads, kv_heads, queries, keys, width;
};

// Plans a call of attention() and launches its kernels; returns what explain() says.
std::string launch(const Shape& s, DType type, const AttentionOptions& options,
                   const Device& device) {
  const ConstAnyTensor q = tensor(type, {s.batch, s.heads, s.queries, s.width});
  const ConstAnyTensor k = tensor(type, {s.batch, s.kv_heads, s.keys, s.width});
  const AttentionOutputs outputs{.out = tensor(type, q.shape)};
  engine::AttentionShape shape;
  const Status status =
      engine::validate_call({q, k, k, options, outputs}, shape, engine::Values::kOnDevice);
  EXPECT_TRUE(status.ok()) << status.message();
  CallPlan plan = plan_call(q, k, k, shape, options, outputs, device);
  EXPECT_TRUE(run(plan, address(), device, nullptr).ok());
  return explain(plan, device);
}

std::string launch_backward(const Shape& s, DType type, const AttentionOptions& options,
                            const Device& device) {
  const ConstAnyTensor q = tensor(type, {s.batch, s.heads, s.queries, s.width});
  const ConstAnyTensor k = tensor(type, {s.batch, s.kv_heads, s.keys, s.width});
  const AttentionResults results{.out = q, .lse = floats({s.batch, s.heads, s.queries})};
  const AttentionGradients gradients{
      .d_q = floats(q.shape), .d_k = floats(k.shape), .d_v = floats(k.shape)};
  engine::AttentionShape shape;
  EXPECT_TRUE(engine::validate_inputs(q, k, k, shape).ok());
  BackwardPlan plan = plan_backward({q, k, k, options, results, q, gradients}, shape, device);
  EXPECT_TRUE(run(plan, address(), device, nullptr).ok());
  return explain(plan, device);
}

TEST(CudaLaunches, FitInTheSharedMemoryOfEveryDevice) {
  AttentionOptions capped;
  capped.softcap = 20.0F;
  for (const Device& device : kDevices) {
    for (const DType type : kTypes) {
      for (const int64_t width : kWidths) {
        for (const AttentionOptions& options : {AttentionOptions{}, capped}) {
          // Prefill, decoding, and decoding with the group's rows in one tile.
          for (const Shape& s : {Shape{1, 4, 2, 300, 300, width}, Shape{2, 4, 4, 1, 1000, width},
                                 Shape{2, 8, 1, 2, 1000, width}}) {
            SCOPED_TRACE(std::to_string(device.compute_capability) + ", width " +
                         std::to_string(width) + ", queries " + std::to_string(s.queries));
            const Observer forward;
            launch(s, type, options, device);
            forward.expect_fit(device);
            const Observer backward;
            launch_backward(s, type, options, device);
            backward.expect_fit(device);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(CudaLaunches, OfACacheFitInTheSharedMemoryOfEveryDevice) {
  for (const Device& device : kDevices) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
      for (const int64_t width : kWidths) {
        engine::CacheCall call;
        rules::StoredRows& keys = call.inputs.k;
        keys = {.data = address(), .type = type, .stride = {width * 2000, width * 1000, width}};
        call.inputs.v = keys;
        call.inputs.q = {
            .data = address(), .type = DType::kF32, .stride = {width * 4, width, width}};
        if (type == DType::kF16 || type == DType::kBF16) call.inputs.q.type = type;
        call.shape = {.batch = 2,
                      .heads = 4,
                      .kv_heads = 2,
                      .queries = 1,
                      .keys = 1000,
                      .head_dim = width,
                      .value_dim = width};
        const Observer observer;
        CallPlan plan = plan_cache(call, {.out = tensor(DType::kF32, {2, 4, 1, width})}, 0, device);
        ASSERT_TRUE(run(plan, address(), device, nullptr).ok());
        observer.expect_fit(device);
      }
    }
  }
}

TEST(CudaLaunches, TakeTheFastestKernelThatTheDeviceHas) {
  const Shape wide{1, 4, 4, 300, 300, 256}, one{1, 4, 4, 1, 1000, 256};
  const Observer observer;
  for (const Device& device : kDevices) {
    const std::string expected =
        device.compute_capability == 90 ? "wgmma and TMA on" : "mma.sync on";
    EXPECT_EQ(launch(wide, DType::kBF16, {}, device).rfind(expected, 0), 0U);
    EXPECT_EQ(launch_backward(wide, DType::kBF16, {}, device).rfind(expected, 0), 0U);
    EXPECT_EQ(launch(one, DType::kBF16, {}, device).rfind("decode, mma.sync", 0), 0U);
  }
}

TEST(CudaLaunches, SplitTheKeysOfAChunkThatLeavesMultiprocessorsIdle) {
  const Device& h100 = kDevices[3];
  const Observer observer;
  // 64 query rows for each of 8 key/value heads.
  const Shape chunk{1, 32, 8, 16, 4096, 128};
  EXPECT_EQ(launch(chunk, DType::kBF16, {}, h100).rfind("decode, mma.sync", 0), 0U);
  EXPECT_EQ(launch(chunk, DType::kF32, {}, h100).rfind("f32 on", 0), 0U);
  // 16 of them are enough work without splits, and so is a chunk of more rows.
  EXPECT_EQ(launch({16, 32, 8, 16, 4096, 128}, DType::kBF16, {}, h100).rfind("wgmma", 0), 0U);
  EXPECT_EQ(launch({1, 32, 8, 33, 4096, 128}, DType::kBF16, {}, h100).rfind("wgmma", 0), 0U);
}

// The last block of a tile merges its splits, unless they are too many for one block.
TEST(CudaLaunches, DecodeInOneLaunchWhereABlockCanMerge) {
  const Device& h100 = kDevices[3];
  const auto launches = [&](const Shape& s, DType type) {
    const Observer observer;
    launch(s, type, {}, h100);
    return observer.launches().size();
  };
  for (const DType type : {DType::kBF16, DType::kF32}) {
    EXPECT_EQ(launches({1, 32, 8, 1, 512, 128}, type), 1U);
    EXPECT_EQ(launches({1, 32, 8, 1, 8192, 128}, type), 1U);
    EXPECT_EQ(launches({64, 32, 8, 1, 8192, 128}, type), 1U);
    EXPECT_EQ(launches({1, 16, 1, 1, 65536, 128}, type), 2U);
    EXPECT_EQ(launches({1, 64, 8, 1, 4096, 256}, type), 2U);
  }
}

// A tile of Hopper's forward kernel at width 128 has 128 rows.
TEST(CudaLaunches, ShareATileAmongHeadsWithFewQueries) {
  Device device = kDevices[3];
  device.multiprocessors = 1 << 20;  // so that each tile has a block
  const auto tiles = [&](const Shape& s) {
    const Observer observer;
    launch(s, DType::kBF16, {}, device);
    return observer.launches().at(0).blocks;
  };
  EXPECT_EQ(tiles({1, 32, 8, 33, 4096, 128}), 16U);   // two heads of 64 queries
  EXPECT_EQ(tiles({1, 64, 1, 3, 4096, 128}), 2U);     // 32 heads of 4 queries
  EXPECT_EQ(tiles({1, 12, 2, 40, 4096, 128}), 6U);    // 6 heads share a key/value head: two and two
  EXPECT_EQ(tiles({1, 12, 4, 100, 4096, 128}), 12U);  // 3 heads: each has its own tile
  EXPECT_EQ(tiles({1, 32, 8, 1024, 4096, 128}), 256U);  // nothing to gain

  // 1000 sequences of 8 queries: sixteen rows of each of 8 heads.
  const std::vector<int32_t> starts(1001);  // in device memory: values are not read
  const PackedSequences sequences{.cu_q = starts, .cu_k = starts, .max_queries = 8, .max_keys = 8};
  const ConstAnyTensor q = tensor(DType::kBF16, {8000, 32, 128});
  const ConstAnyTensor k = tensor(DType::kBF16, {8000, 4, 128});
  const AttentionOutputs outputs{.out = tensor(DType::kBF16, q.shape)};
  CallPlan plan = plan_packed(q, k, k, sequences, {}, outputs, device);
  const Observer observer;
  ASSERT_TRUE(run(plan, address(), device, nullptr).ok());
  EXPECT_EQ(observer.launches().at(0).blocks, 4U * (8000 / 16 + 1000));
}

// The strides of axes with one element mean nothing.
TEST(CudaLaunches, IgnoreStridesOfAxesOfExtentOne) {
  const Shape s{1, 1, 1, 300, 300, 64};
  const Device& device = kDevices[0];
  const ConstAnyTensor rows(address(), DType::kBF16, {1, 1, s.queries, s.width},
                            {1001, 1003, s.width, 1});
  engine::AttentionShape shape;
  const AttentionOutputs outputs{.out = tensor(DType::kBF16, rows.shape)};
  ASSERT_TRUE(engine::validate_call({rows, rows, rows, {}, outputs}, shape).ok());
  EXPECT_EQ(plan_call(rows, rows, rows, shape, {}, outputs, device).kernel, Kernel::kMma);
  const AttentionResults results{.out = rows, .lse = floats({1, 1, s.queries})};
  const AttentionGradients gradients{.d_q = floats(rows.shape)};
  const BackwardPlan plan =
      plan_backward({rows, rows, rows, {}, results, rows, gradients}, shape, device);
  EXPECT_EQ(plan.kernel, BackwardKernel::kMma);
}

TEST(CudaLaunches, OfPackedSequencesHaveFewBlocksWithoutWork) {
  // One sequence of 32k rows and 1000 of 100: with as many tiles for each as for the longest, there
  // would be 16 million blocks.
  constexpr int64_t kHeads = 32, kLong = 32768, kShort = 100, kSequences = 1001;
  constexpr int64_t kRows = kLong + (kSequences - 1) * kShort;
  const std::vector<int32_t> starts(kSequences + 1);  // in device memory: values are not read
  const PackedSequences sequences{
      .cu_q = starts, .cu_k = starts, .max_queries = kLong, .max_keys = kLong};
  const ConstAnyTensor rows = tensor(DType::kBF16, {kRows, kHeads, 128});
  const AttentionOutputs outputs{.out = tensor(DType::kBF16, rows.shape)};
  const AttentionResults results{.out = rows, .lse = floats({kHeads, kRows})};
  const AttentionGradients gradients{
      .d_q = floats(rows.shape), .d_k = floats(rows.shape), .d_v = floats(rows.shape)};
  // The kernels of mma.sync have tiles of 64 rows, the smallest of those that this call uses.
  constexpr uint64_t kMost = kHeads * (kRows / 64 + kSequences);
  for (const Device& device : {kDevices[0], kDevices[3]}) {
    const Observer observer;
    CallPlan plan = plan_packed(rows, rows, rows, sequences, {}, outputs, device);
    ASSERT_TRUE(run(plan, address(), device, nullptr).ok());
    ASSERT_EQ(observer.launches().size(), 1U);
    EXPECT_LE(observer.launches()[0].blocks, kMost);
    BackwardPlan backward =
        plan_packed_backward({rows, rows, rows, {}, results, rows, gradients}, sequences, device);
    ASSERT_TRUE(run(backward, address(), device, nullptr).ok());
    // delta has a warp for each row; the other kernels have tiles.
    for (size_t i = 2; i < observer.launches().size(); ++i) {
      EXPECT_LE(observer.launches()[i].blocks, kMost);
    }
  }
}

TEST(CudaLaunches, HaveABlockForEachTileBeyond32Bits) {
  // 2^31 - 1 batch entries with 4 heads of one query and one key.
  constexpr int64_t kBatch = std::numeric_limits<int32_t>::max();
  const Shape s{kBatch, 4, 4, 1, 1, 8};
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Observer observer;
    launch(s, type, {}, kDevices[0]);
    launch_backward(s, type, {}, kDevices[0]);
    ASSERT_EQ(observer.launches().size(), 4U);  // forward, delta, d_k and d_v, d_q
    for (size_t i : {0U, 2U, 3U}) EXPECT_GE(observer.launches()[i].blocks, uint64_t{4 * kBatch});
  }
}

TEST(CudaGrid, HasEnoughBlocksAndFewMore) {
  for (const int64_t blocks :
       {int64_t{1}, kMostBlocksOfX, kMostBlocksOfX + 1, int64_t{1} << 32, (int64_t{1} << 40) + 7}) {
    Grid grid;
    ASSERT_TRUE(grid_of(blocks, grid)) << blocks;
    const int64_t all = int64_t{grid.x} * grid.y;
    EXPECT_GE(all, blocks);
    EXPECT_LT(all - blocks, grid.y);
    EXPECT_LE(grid.x, kMostBlocksOfX);
  }
  Grid grid;
  EXPECT_FALSE(grid_of(0, grid));
  EXPECT_FALSE(grid_of(int64_t{1} << 50, grid));
}

TEST(CudaTiles, OfPackedSequencesAreFoundBySlot) {
  // Sequences of 0, 5, 64, 1, 0 and 200 rows, in tiles of 64; three rows of a list per row.
  const std::vector<int32_t> starts{0, 0, 5, 69, 70, 70, 270};
  for (const int64_t group : {1, 3}) {
    const TileAxis axis{.entries = 6,
                        .rows = 270 * group,
                        .tile_rows = 64,
                        .starts = starts.data(),
                        .rows_per_start = group};
    std::vector<std::vector<int64_t>> found(6);
    for (int64_t slot = 0; slot < axis.slots(); ++slot) {
      const auto [entry, tile] = axis.place_of(slot);
      ASSERT_GE(tile, 0);
      found[static_cast<size_t>(entry)].push_back(tile);
    }
    for (size_t s = 0; s < 6; ++s) {
      const int64_t tiles = tiles_of((starts[s + 1] - starts[s]) * group, 64);
      ASSERT_GE(static_cast<int64_t>(found[s].size()), tiles);
      ASSERT_LE(static_cast<int64_t>(found[s].size()), tiles + 1);
      for (size_t i = 0; i < found[s].size(); ++i) EXPECT_EQ(found[s][i], static_cast<int64_t>(i));
    }
  }
}

TEST(CudaTiles, AreFoundForAnyValuesOfTheStarts) {
  const std::vector<int32_t> starts{7, -5, 1 << 30, 3, 0};
  const TileAxis axis{
      .entries = 4, .rows = 100, .tile_rows = 16, .starts = starts.data(), .rows_per_start = 2};
  for (int64_t slot = 0; slot < axis.slots(); ++slot) {
    const auto [entry, tile] = axis.place_of(slot);
    EXPECT_GE(entry, 0);
    EXPECT_LT(entry, 4);
    EXPECT_LE(tile, axis.slots());
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
