#include "webgpu/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "multihead/attention.h"
#include "multihead/kv_cache.h"
#include "support/random_case.h"
#include "webgpu/params.h"
#include "webgpu/plan_attention.h"

namespace multihead {
namespace {

using testing::random_case;
using testing::RandomCase;
using webgpu::AttentionBlock;
using webgpu::Binding;
using webgpu::Device;
using webgpu::Dispatch;
using webgpu::Kernel;
using webgpu::Plan;

// The tensors of a call as operands: numbers in place of addresses, and the words of each.
class Operands {
 public:
  template <class View>
  View operator()(View view, int64_t element = 4) {
    if (!view.given()) return view;
    int64_t last = view.shape.elements() == 0 ? -1 : 0;
    for (int axis = 0; last >= 0 && axis < view.shape.rank(); ++axis) {
      last += (view.shape[axis] - 1) * view.strides[axis];
    }
    words_.push_back(static_cast<uint32_t>(((last + 1) * element + 3) / 4));
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    view.data = reinterpret_cast<decltype(view.data)>(static_cast<uintptr_t>(words_.size()));
    return view;
  }
  Device device() const {
    Device device;
    device.operands = static_cast<uint32_t>(words_.size());
    return device;
  }
  const std::vector<uint32_t>& words() const { return words_; }

 private:
  std::vector<uint32_t> words_;
};

// The plan that `make` writes with a planner.
template <class Make>
Status planned(const Device& device, Plan& plan, const Make& make) {
  webgpu::Planner planner(device);
  const Status status = make(planner);
  return status.ok() ? planner.finish(plan) : status;
}

// A random call on operands.
struct GpuCase {
  RandomCase of;
  Operands operands;
  ConstAnyTensor q, k, v;
  std::vector<ScoreCapture> captures;
  AttentionOutputs outputs;

  explicit GpuCase(uint64_t seed) : of(random_case(seed)) {
    AttentionOptions& options = of.options;
    options.dropout = {};
    q = operands(of.q, bytes_of(of.q.dtype));
    k = operands(of.k, bytes_of(of.k.dtype));
    v = operands(of.v, bytes_of(of.v.dtype));
    options.mask = operands(options.mask, 1);
    options.bias = operands(options.bias);
    outputs.out = operands(AnyTensor(nullptr, of.out_type, of.out_shape), bytes_of(of.out_type));
    outputs.lse = operands(Tensor(nullptr, of.lse_shape));
    for (const auto& [stage, heads, first_row, rows] : of.captures) {
      const Dims& scores = of.weights_shape;
      const int64_t count = heads.empty() ? scores[1] : static_cast<int64_t>(heads.size());
      captures.push_back({.stage = stage,
                          .out = operands(Tensor(nullptr, {scores[0], count, rows, scores[3]})),
                          .heads = heads,
                          .first_row = first_row});
    }
    outputs.captures = captures;
  }
  Status plan(Plan& plan, const Device& device) const {
    return planned(device, plan, [&](auto& to) {
      return webgpu::plan_attention({q, k, v, of.options, outputs}, to);
    });
  }
};

// Bindings that a kernel writes, and how many it has.
struct Access {
  size_t bindings;
  std::set<size_t> written;
};
const std::map<Kernel, Access> kAccess{{Kernel::kForward, {8, {6, 7}}},
                                       {Kernel::kDecode, {7, {6}}},
                                       {Kernel::kMerge, {5, {2, 3, 4}}},
                                       {Kernel::kScores, {7, {6}}},
                                       {Kernel::kRows, {3, {2}}}};

void expect_valid(const Plan& plan, const Device& device, const std::vector<uint32_t>& operands) {
  std::vector<uint32_t> words = operands;
  words.push_back(static_cast<uint32_t>(plan.data.size()));
  words.insert(words.end(), plan.scratch.begin(), plan.scratch.end());
  for (const Dispatch& dispatch : plan.dispatches) {
    const bool is_pair = dispatch.kernel == Kernel::kRows && dispatch.constants[0] == 1;
    const auto& [bindings, written] = is_pair ? Access{5, {2, 4}} : kAccess.at(dispatch.kernel);
    ASSERT_EQ(dispatch.bindings.size(), bindings);
    EXPECT_LE(bindings, 8U);  // WebGPU's smallest limit
    for (const uint32_t groups : dispatch.groups)
      EXPECT_TRUE(groups > 0 && groups <= device.groups);
    const size_t block =
        dispatch.kernel == Kernel::kRows ? sizeof(webgpu::RowsBlock) : sizeof(AttentionBlock);
    EXPECT_EQ(dispatch.parameters.size() * sizeof(uint32_t), block);
    std::set<uint32_t> read;
    std::vector<Binding> writes;
    for (size_t i = 0; i < bindings; ++i) {
      const Binding& binding = dispatch.bindings[i];
      ASSERT_LT(binding.buffer, words.size());
      EXPECT_EQ(binding.first_word % 64, 0);
      EXPECT_GT(binding.words, 0);
      EXPECT_LE(binding.words * uint64_t{4}, device.binding_bytes);
      EXPECT_LE(binding.first_word + binding.words, words[binding.buffer]);
      if (written.contains(i)) {
        writes.push_back(binding);
      } else {
        read.insert(binding.buffer);
      }
    }
    // WebGPU refuses a buffer that is read and written by a dispatch, and parts that overlap.
    for (size_t i = 0; i < writes.size(); ++i) {
      EXPECT_FALSE(read.contains(writes[i].buffer));
      for (size_t j = 0; j < i; ++j) {
        EXPECT_TRUE(writes[i].buffer != writes[j].buffer ||
                    writes[i].first_word != writes[j].first_word);
      }
    }
  }
}

AttentionBlock block_of(const Dispatch& dispatch) {
  AttentionBlock block;
  std::memcpy(&block, dispatch.parameters.data(), sizeof(block));
  return block;
}

uint64_t groups_of(const Dispatch& dispatch) {
  return uint64_t{dispatch.groups[0]} * dispatch.groups[1];
}

TEST(GpuPlan, RandomCallsStayInTheirBuffers) {
  for (const uint64_t seed : testing::random_seeds(400)) {
    const GpuCase c(seed);
    SCOPED_TRACE(c.of.description);
    Device device = c.operands.device();
    device.groups = seed % 3 == 0 ? 300 : 65535;
    Plan plan;
    const Status status = c.plan(plan, device);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_valid(plan, device, c.operands.words());
    for (const Dispatch& dispatch : plan.dispatches) {
      if (dispatch.kernel == Kernel::kRows) continue;
      const AttentionBlock b = block_of(dispatch);
      const uint64_t heads = uint64_t{b.batch} * b.kv_heads;
      if (dispatch.kernel == Kernel::kForward) {
        EXPECT_GE(groups_of(dispatch), heads * b.tiles);
        EXPECT_GE(b.tiles * (dispatch.constants[0] == 256 ? 16 : 32), b.rows - b.first_row);
      } else if (dispatch.kernel == Kernel::kDecode) {
        EXPECT_GE(groups_of(dispatch), heads * b.tiles * b.splits);
        EXPECT_GE(uint64_t{b.splits} * b.split_keys, b.keys);
        EXPECT_EQ(b.split_keys % webgpu::TILE, 0);
      } else if (dispatch.kernel == Kernel::kMerge) {
        EXPECT_GE(groups_of(dispatch), heads * b.rows);
      } else {
        EXPECT_GE(groups_of(dispatch), uint64_t{b.batch} * b.out_heads * b.out_rows * b.tiles);
        EXPECT_GE(b.tiles * 64, b.keys);
      }
      EXPECT_GE(dispatch.constants[0] == 0 || dispatch.kernel == Kernel::kScores
                    ? 256
                    : dispatch.constants[0],
                dispatch.kernel == Kernel::kMerge ? 0 : std::max(b.dk, b.dv));
    }
  }
}

TEST(GpuPlan, PackedHoldsEveryNumberInOrder) {
  const GpuCase c(7);
  Plan plan;
  ASSERT_TRUE(c.plan(plan, c.operands.device()).ok());
  const std::vector<uint32_t> words = packed(plan);
  size_t at = 3 + words[0] + words[1];
  EXPECT_TRUE(std::equal(plan.data.begin(), plan.data.end(), words.begin() + 3));
  ASSERT_EQ(words[2], plan.dispatches.size());
  for (const Dispatch& dispatch : plan.dispatches) {
    EXPECT_EQ(words[at], static_cast<uint32_t>(dispatch.kernel));
    at += 1 + Dispatch::kConstants;
    EXPECT_EQ(words[at], dispatch.groups[0]);
    const size_t bindings = words[at + 3], parameters = words[at + 4];
    EXPECT_EQ(words[at + 5], dispatch.bindings[0].buffer);
    EXPECT_EQ(words[at + 7], dispatch.bindings[0].words);
    at += 5 + 3 * bindings + parameters;
    EXPECT_EQ(words[at - 1], dispatch.parameters.back());
  }
  EXPECT_EQ(at, words.size());
}

// A plain call: q (1, 2, N_q, d), k and v (1, 1, N_k, d).
struct Simple {
  Operands operands;
  ConstAnyTensor q, k, v;
  AttentionOptions options;
  AttentionOutputs outputs;

  Simple(int64_t queries, int64_t keys, int64_t width) {
    q = operands(ConstAnyTensor(nullptr, {1, 2, queries, width}));
    k = operands(ConstAnyTensor(nullptr, {1, 1, keys, width}));
    v = operands(ConstAnyTensor(nullptr, {1, 1, keys, width}));
    outputs.out = operands(AnyTensor(nullptr, {1, 2, queries, width}));
  }
  Status plan(Plan& plan, const Device& device) const {
    return planned(device, plan, [&](auto& to) {
      return webgpu::plan_attention({q, k, v, options, outputs}, to);
    });
  }
  std::vector<Kernel> kernels() const {
    Plan made;
    EXPECT_TRUE(plan(made, operands.device()).ok());
    std::vector<Kernel> kernels;
    for (const Dispatch& dispatch : made.dispatches) kernels.push_back(dispatch.kernel);
    return kernels;
  }
};

TEST(GpuPlan, FewRowsAreDecodedInSplits) {
  Simple c(8, 1000, 64);
  EXPECT_EQ(c.kernels(), (std::vector{Kernel::kDecode, Kernel::kMerge}));
  Plan plan;
  ASSERT_TRUE(c.plan(plan, c.operands.device()).ok());
  EXPECT_EQ(block_of(plan.dispatches[0]).splits, 16);
  EXPECT_EQ(plan.dispatches[0].constants, (std::array<uint32_t, 4>{64, 0, 1, 0}));
  EXPECT_EQ(Simple(9, 1000, 64).kernels(), std::vector{Kernel::kForward});
}

TEST(GpuPlan, OptionsAddDispatches) {
  Simple c(40, 50, 63);
  EXPECT_EQ(c.kernels(), std::vector{Kernel::kForward});
  c.options.rope.style = Rope::Style::kHalf;
  c.options.rope.rotary_dim = 32;
  EXPECT_EQ(c.kernels(), (std::vector{Kernel::kRows, Kernel::kRows, Kernel::kForward}));
  c.outputs.out.dtype = DType::kF16;
  EXPECT_EQ(c.kernels(),
            (std::vector{Kernel::kRows, Kernel::kRows, Kernel::kForward, Kernel::kRows}));
  c.outputs.weights = c.operands(Tensor(nullptr, {1, 2, 40, 50}));
  c.outputs.lse = c.operands(Tensor(nullptr, {1, 2, 40}));
  EXPECT_EQ(c.kernels(), (std::vector{Kernel::kRows, Kernel::kRows, Kernel::kForward,
                                      Kernel::kMerge, Kernel::kRows, Kernel::kScores}));
}

TEST(GpuPlan, SubgroupsOf4And8OrMore) {
  for (const auto& [size, constant] : std::map<uint32_t, uint32_t>{
           {0, 0}, {1, 0}, {2, 0}, {4, 4}, {8, 8}, {16, 8}, {32, 8}, {64, 8}}) {
    Simple c(40, 50, 64);
    Device device = c.operands.device();
    device.subgroup = size;
    Plan plan;
    ASSERT_TRUE(c.plan(plan, device).ok());
    EXPECT_EQ(plan.dispatches[0].constants[1], constant) << size;
  }
}

TEST(GpuPlan, EntriesSayWhoSeesWhom) {
  Simple c(3, 9, 8);
  c.options.causal = Causal::bottom_right_of_length();
  const int32_t lengths[] = {7};
  c.options.kv_lengths = lengths;
  Plan plan;
  ASSERT_TRUE(c.plan(plan, c.operands.device()).ok());
  ASSERT_GE(plan.data.size(), webgpu::ENTRY_WORDS);
  const std::vector<int32_t> entry(plan.data.begin(), plan.data.begin() + webgpu::ENTRY_WORDS);
  constexpr int32_t kOpen = -(1 << 29);
  // Query 0 is at position 4, and sees the keys up to it.
  EXPECT_EQ(entry, (std::vector<int32_t>{0, 3, 0, 0, 7, kOpen, 5, 6}));
}

TEST(GpuPlan, EntriesOfPackedSequences) {
  Operands operands;
  const ConstAnyTensor q = operands(ConstAnyTensor(nullptr, {20, 2, 8}));
  const ConstAnyTensor k = operands(ConstAnyTensor(nullptr, {30, 1, 8}));
  const ConstAnyTensor v = operands(ConstAnyTensor(nullptr, {30, 1, 8}));
  const AttentionOutputs outputs{.out = operands(AnyTensor(nullptr, {20, 2, 8}))};
  const AttentionOptions options{.causal = Causal::bottom_right()};
  const int32_t cu_q[] = {0, 5, 20}, cu_k[] = {0, 11, 30};
  Plan plan;
  ASSERT_TRUE(planned(operands.device(), plan, [&](auto& to) {
                return webgpu::plan_varlen({q, k, v, options, outputs}, cu_q, cu_k, to);
              }).ok());
  expect_valid(plan, operands.device(), operands.words());
  const std::vector<int32_t> entry(plan.data.begin() + webgpu::ENTRY_WORDS, plan.data.end());
  EXPECT_EQ(entry, (std::vector<int32_t>{5, 15, 11, 0, 19, -(1 << 29), 5, 4}));
  const AttentionBlock block = block_of(plan.dispatches[0]);
  EXPECT_EQ(block.rows, 30);  // of the longest
  EXPECT_EQ(block.q, (webgpu::vec4u{0, 8, 16, 0}));
}

TEST(GpuPlan, RefusesWhatTheCpuComputes) {
  Plan plan;
  Simple c(3, 9, 257);
  EXPECT_EQ(c.plan(plan, c.operands.device()).message(),
            "q: expected d_k up to 256 on a GPU, got 257: wider heads are computed on the CPU");
  Simple dropped(3, 9, 8);
  dropped.options.dropout.probability = 0.5F;
  EXPECT_EQ(
      dropped.plan(plan, dropped.operands.device()).message(),
      "dropout.probability: expected 0 on a GPU, got another: dropout is computed on the CPU");
  Simple far(3, 9, 8);
  far.options.rope.style = Rope::Style::kHalf;
  far.options.causal = Causal::at_offset(int64_t{1} << 28);
  EXPECT_EQ(far.plan(plan, far.operands.device()).code(), StatusCode::kOption);
  KVCache cache;
  EXPECT_EQ(
      webgpu::create_cache(
          {.num_kv_heads = 1, .head_dim = 8, .value_dim = 8, .capacity = 4, .type = DType::kInt8},
          cache)
          .code(),
      StatusCode::kOption);
}

TEST(GpuPlan, RefusesWhatTheGpuCannotHold) {
  Plan plan;
  Simple c(40, 1000, 64);
  Device device = c.operands.device();
  device.binding_bytes = 256'000;
  EXPECT_TRUE(c.plan(plan, device).ok());
  device.binding_bytes = 255'999;
  EXPECT_EQ(
      c.plan(plan, device).message(),
      "k: expected at most 255999 bytes, the longest binding of this GPU, got 256000: cut the "
      "batch or the heads into several calls");
  Simple many(4000, 4, 4);
  device = many.operands.device();
  device.groups = 15;  // 250 tiles
  EXPECT_EQ(many.plan(plan, device).code(), StatusCode::kOption);
  device.groups = 16;
  ASSERT_TRUE(many.plan(plan, device).ok());
  EXPECT_EQ(plan.dispatches[0].groups, (std::array<uint32_t, 3>{16, 16, 1}));
  c.q.strides[2] = -64;
  EXPECT_EQ(c.plan(plan, c.operands.device()).message(),
            "q: expected strides of 0 or more on a GPU, got -64");
}

// The errors of attention(), in the same words.
TEST(GpuPlan, ErrorsAreThoseOfTheCpu) {
  Context context;
  const auto expect_same = [&](const auto& change) {
    Simple c(3, 9, 8);
    change(c);
    Plan plan;
    const Status here = c.plan(plan, c.operands.device());
    EXPECT_FALSE(here.ok());
    EXPECT_EQ(here.message(), attention(c.q, c.k, c.v, c.options, c.outputs, context).message());
  };
  expect_same([](Simple& c) { c.k.shape[3] = 7; });
  expect_same([](Simple& c) { c.v.shape[2] = 8; });
  expect_same([](Simple& c) { c.q.data = nullptr; });
  expect_same([](Simple& c) { c.q.strides[3] = 2; });
  expect_same([](Simple& c) { c.outputs.out.shape[1] = 3; });
  expect_same([](Simple& c) { c.options.softcap = -1.0F; });
  expect_same([](Simple& c) { c.options.window.alignment = Alignment::kTopLeft; });
  expect_same([](Simple& c) { c.options.causal = Causal::bottom_right_of_length(); });
  expect_same([](Simple& c) { c.options.dropout.probability = 1.0F; });
  expect_same([](Simple& c) { c.options.rope.rotary_dim = 4; });
}

TEST(GpuPlan, CachesCountTokensThatTheGpuStores) {
  KVCache cache;
  const KVCacheConfig config{.batch = 2,
                             .num_kv_heads = 1,
                             .head_dim = 4,
                             .value_dim = 4,
                             .capacity = 5,
                             .layout = KVCacheConfig::Layout::kRing,
                             .type = DType::kF16};
  ASSERT_TRUE(webgpu::create_cache(config, cache).ok());
  Operands operands;
  const Dims stored{2, 1, 5, 4};
  operands(ConstAnyTensor(nullptr, stored), 2);
  operands(ConstAnyTensor(nullptr, stored), 2);
  const ConstAnyTensor k = operands(ConstAnyTensor(nullptr, {2, 1, 4, 4}));
  const ConstAnyTensor v = operands(ConstAnyTensor(nullptr, {2, 1, 4, 4}));
  const Device device = operands.device();
  const webgpu::CacheOperands rows{.keys = 1, .values = 2};
  Plan plan;
  const int32_t counts[] = {4, 3};
  const auto append = [&](const ConstAnyTensor& values, std::span<const int32_t> of,
                          const Device& on) {
    return planned(on, plan,
                   [&](auto& to) { return webgpu::plan_append(cache, rows, k, values, of, to); });
  };
  ASSERT_TRUE(append(v, counts, device).ok());
  expect_valid(plan, device, operands.words());
  EXPECT_EQ(plan.data, (std::vector<uint32_t>{0, 1, 2, 3, 0, 1, 2, UINT32_MAX}));
  EXPECT_EQ(plan.dispatches.size(), 1);  // of both keys and values
  ASSERT_TRUE(append(v, {}, device).ok());
  EXPECT_EQ(plan.data, (std::vector<uint32_t>{4, 0, 1, 2, 3, 4, 0, 1}));
  EXPECT_EQ(cache.length(0), 8);
  EXPECT_EQ(cache.first_kept(1), 2);
  EXPECT_FALSE(append({}, {}, device).ok());
  Device small = device;
  small.binding_bytes = 100;
  EXPECT_FALSE(append(v, {}, small).ok());
  EXPECT_EQ(cache.length(0), 8);

  const ConstAnyTensor q = operands(ConstAnyTensor(nullptr, {2, 1, 1, 4}));
  const AttentionOutputs outputs{.out = operands(AnyTensor(nullptr, {2, 1, 1, 4}))};
  const AttentionOptions options{.causal = Causal::bottom_right()};
  ASSERT_TRUE(planned(operands.device(), plan, [&](auto& to) {
                return webgpu::plan_attend(cache, rows, q, options, outputs, to);
              }).ok());
  expect_valid(plan, operands.device(), operands.words());
  const std::vector<int32_t> entry(plan.data.begin(), plan.data.begin() + webgpu::ENTRY_WORDS);
  EXPECT_EQ(entry, (std::vector<int32_t>{0, 1, 0, 3, 8, -(1 << 29), 8, 7}));
  EXPECT_EQ(block_of(plan.dispatches[0]).ring, 5);
}

}  // namespace
}  // namespace multihead
