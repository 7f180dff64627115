// Invalid calls of decode(), merge_attention() and rotate() of multihead/cuda.h return errors and
// write nothing, and the next call works; in the emulator.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/emulator/memory.h"
#include "cuda/emulator/runtime.h"
#include "cuda/mapped_case.h"
#include "multihead/attention.h"
#include "multihead/cuda.h"
#include "multihead/kv_cache.h"
#include "multihead/rope.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace multihead::cuda::testing {
namespace {

using Layout = KVCacheConfig::Layout;

// q (1, 2, 1, 8), and a paged cache of one key/value head with 4 pages of 5 tokens; 12 tokens are
// in use.
class CudaDecodeRefuses : public ::testing::Test {
 protected:
  CudaDecodeRefuses() : q_(16), rows_(2 * 160), out_(16, kUntouched) {
    cache_.config = {.batch = 1,
                     .num_kv_heads = 1,
                     .head_dim = 8,
                     .value_dim = 8,
                     .capacity = 20,
                     .layout = Layout::kPaged,
                     .page_size = 5};
    cache_.keys = rows_.data();
    cache_.values = rows_.data() + 160;
    cache_.lengths = lengths_;
    cache_.firsts = firsts_;
    cache_.page_table = page_table_;
    cache_.max_length = 12;
    mapping_.add(q_, emulator::Use::kInput, "q");
    mapping_.add(rows_, emulator::Use::kInput, "rows");
    mapping_.add(lengths_, emulator::Use::kInput, "lengths");
    mapping_.add(firsts_, emulator::Use::kInput, "firsts");
    mapping_.add(page_table_, emulator::Use::kInput, "page_table");
    mapping_.add(out_, emulator::Use::kOutput, "out");
  }
  ~CudaDecodeRefuses() override { emulator::runtime_state() = {}; }

  ConstAnyTensor q() const { return {q_.data(), Dims{1, 2, 1, 8}}; }
  AttentionOutputs outputs() { return {.out = {out_.data(), Dims{1, 2, 1, 8}}}; }
  Status decode_it(const Workspace& workspace) {
    return decode(q(), cache_, {}, outputs(), workspace, nullptr);
  }
  void expect(const Status& status, StatusCode code, const std::string& argument,
              const std::string& got) {
    expect_refusal(status, code, argument, got, out_);
  }
  // Expects that decode() refuses the cache as the test has changed it.
  void expect_refused(StatusCode code, const std::string& argument, const std::string& got) {
    const MappedWorkspace workspace(1 << 16);
    expect(decode_it(workspace.get()), code, argument, got);
    EXPECT_TRUE(device_findings().empty());
  }
  static std::vector<std::string> device_findings() { return emulator::device().take_findings(); }

  std::vector<float> q_, rows_, out_;
  std::vector<int32_t> lengths_{12}, firsts_{0}, page_table_{3, 0, 2, -1};
  CacheView cache_;
  Mapping mapping_;
};

TEST_F(CudaDecodeRefuses, MemoryOfTheHost) {
  const std::vector<float> host(160);
  const CacheView whole = cache_;
  cache_.keys = host.data();
  expect_refused(StatusCode::kDevice, "keys", "memory of the host");
  cache_ = whole;
  cache_.values = host.data();
  expect_refused(StatusCode::kDevice, "values", "memory of the host");
  cache_ = whole;
  const std::vector<int32_t> integers{12, 12, 12, 12};
  cache_.lengths = {integers.data(), 1};
  expect_refused(StatusCode::kDevice, "lengths", "memory of the host");
  cache_ = whole;
  cache_.firsts = {integers.data(), 1};
  expect_refused(StatusCode::kDevice, "firsts", "memory of the host");
  cache_ = whole;
  cache_.page_table = integers;
  expect_refused(StatusCode::kDevice, "page_table", "memory of the host");
  cache_ = whole;
  const MappedWorkspace workspace(1 << 16);
  const Status next = decode_it(workspace.get());
  EXPECT_TRUE(next.ok()) << next.message();
  EXPECT_NE(out_[0], kUntouched);
}

TEST_F(CudaDecodeRefuses, MisalignedAddresses) {
  cache_.keys = reinterpret_cast<const std::byte*>(rows_.data()) + 2;
  expect_refused(StatusCode::kShape, "keys", "one 2 above");
}

TEST_F(CudaDecodeRefuses, AViewWhoseNumbersDoNotFit) {
  const CacheView whole = cache_;
  const auto refused = [&](const std::string& argument, const std::string& got) {
    expect_refused(StatusCode::kOption, argument, got);
    cache_ = whole;
  };
  cache_.max_length = 21;
  refused("max_length", "21");
  cache_.max_length = -1;
  refused("max_length", "-1");
  cache_.lengths = {};
  refused("lengths", "0");
  cache_.page_table = {page_table_.data(), 3};
  refused("page_table", "3");
  cache_.config.page_size = 0;
  refused("page_size", "0");
  cache_.config.layout = static_cast<Layout>(9);
  refused("layout", "9");
  cache_.config.type = DType::kInt8;
  refused("key_scales", "none");
  cache_.config.capacity = int64_t{1} << 40;
  refused("capacity", "1099511627776");
}

TEST_F(CudaDecodeRefuses, RowsThatAreTooWide) {
  cache_.config.head_dim = 264;
  const std::vector<float> wide(2 * 264);
  const MappedWorkspace workspace(1 << 16);
  expect(decode({wide.data(), Dims{1, 2, 1, 264}}, cache_, {}, outputs(), workspace.get(), nullptr),
         StatusCode::kShape, "q", "264");
}

TEST_F(CudaDecodeRefuses, AWorkspaceThatIsTooSmall) {
  uint64_t bytes = 0;
  ASSERT_TRUE(decode_workspace(q(), cache_, {}, outputs(), bytes).ok());
  ASSERT_GT(bytes, 0U);
  expect(decode_it({}), StatusCode::kOption, "workspace", "none");
  const MappedWorkspace small(bytes - 1);
  expect(decode_it(small.get()), StatusCode::kOption, "workspace", std::to_string(bytes - 1));
}

TEST_F(CudaDecodeRefuses, AStreamInAnErrorStateAndAnOldDevice) {
  emulator::runtime_state().stream_error = 700;
  expect_refused(StatusCode::kDevice, "stream", "700");
  emulator::runtime_state() = {};
  emulator::runtime_state().device.compute_capability = 75;
  expect_refused(StatusCode::kDevice, "device", "75");
}

// Page numbers in device memory are not checked before the call: a page outside the pool hides its
// tokens.
TEST_F(CudaDecodeRefuses, NoPageNumberReadsOutsideOfThePool) {
  const MappedWorkspace workspace(1 << 16);
  for (const int32_t page : {-1, 4, INT32_MAX, INT32_MIN}) {
    page_table_[1] = page;
    EXPECT_TRUE(decode_it(workspace.get()).ok());
    EXPECT_EQ(device_findings(), std::vector<std::string>());
  }
  for (const int32_t length : {-5, 13, INT32_MAX}) {
    lengths_[0] = length;
    EXPECT_TRUE(decode_it(workspace.get()).ok());
    EXPECT_EQ(device_findings(), std::vector<std::string>());
  }
}

// Shapes: a and b are (1, 1, 2, 4).
class CudaRowsRefuse : public ::testing::Test {
 protected:
  CudaRowsRefuse() : in_(16, 0.5F), out_(16, kUntouched) {
    mapping_.add(in_, emulator::Use::kInput, "in");
    mapping_.add(positions_, emulator::Use::kInput, "positions");
    mapping_.add(out_, emulator::Use::kInPlace, "out");
  }
  ~CudaRowsRefuse() override { emulator::runtime_state() = {}; }

  void expect(const Status& status, StatusCode code, const std::string& argument,
              const std::string& got) {
    expect_refusal(status, code, argument, got, out_);
  }
  Status merge_with(const float* out_b) {
    return merge_attention({out_.data(), rows_}, {out_.data() + 8, lse_}, {out_b, rows_},
                           {in_.data() + 8, lse_}, nullptr);
  }
  Status rotate_with(const float* x, std::span<const int32_t> positions) {
    return rotate({x, rows_}, positions, {.style = Rope::Style::kHalf}, {out_.data(), rows_},
                  nullptr);
  }

  const Dims rows_{1, 1, 2, 4}, lse_{1, 1, 2};
  std::vector<float> in_, out_;
  std::vector<int32_t> positions_{0, 1};
  Mapping mapping_;
};

TEST_F(CudaRowsRefuse, MemoryOfTheHost) {
  const std::vector<float> host(8);
  const std::vector<int32_t> integers{0, 1};
  expect(merge_with(host.data()), StatusCode::kDevice, "out_b", "memory of the host");
  expect(rotate_with(host.data(), positions_), StatusCode::kDevice, "x", "memory of the host");
  expect(rotate_with(in_.data(), integers), StatusCode::kDevice, "positions", "memory of the host");
}

TEST_F(CudaRowsRefuse, AStreamInAnErrorStateAndAnOldDevice) {
  emulator::runtime_state().stream_error = 700;
  expect(merge_with(in_.data()), StatusCode::kDevice, "stream", "700");
  expect(rotate_with(in_.data(), positions_), StatusCode::kDevice, "stream", "700");
  emulator::runtime_state() = {};
  emulator::runtime_state().device.compute_capability = 70;
  expect(merge_with(in_.data()), StatusCode::kDevice, "device", "70");
  expect(rotate_with(in_.data(), positions_), StatusCode::kDevice, "device", "70");
  emulator::runtime_state() = {};
  EXPECT_TRUE(rotate_with(in_.data(), positions_).ok());
  EXPECT_EQ(out_[0], 0.5F);
}

}  // namespace
}  // namespace multihead::cuda::testing
