// Calls whose inputs are NaN. The tensor-core kernels compute rows that are NaN a second time, key
// by key. They must stop when nothing can change any more: otherwise such a call takes a hundred
// times as long as others.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emulator/runtime.h"
#include "cuda/mapped_case.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"
#include "rules/element.h"

namespace multihead::cuda::testing {
namespace {

constexpr int64_t kWidth = 64;
const std::array kInputs{"q", "k", "v", "d_out"};

class Halves {
 public:
  Halves(Mapping& mapping, const Dims& shape, const std::string& name, bool nan)
      : shape_(shape), values_(static_cast<size_t>(shape.elements()) + 8) {
    const auto address = reinterpret_cast<uintptr_t>(values_.data());
    first_ = values_.data() + (16 - address % 16) % 16 / sizeof(BFloat16);
    for (int64_t i = 0; i < shape.elements(); ++i) {
      const float value = 0.01F * static_cast<float>(i * 7 % 200 - 100);
      first_[i] = rules::from_float<BFloat16>(nan ? NAN : value);
    }
    mapping.add(first_, static_cast<size_t>(shape.elements()) * 2, emulator::Use::kInput, name);
  }
  ConstAnyTensor view() const {
    return {static_cast<const void*>(first_), DType::kBF16, shape_, contiguous_strides(shape_)};
  }

 private:
  Dims shape_;
  std::vector<BFloat16> values_;
  BFloat16* first_;
};

struct Floats {
  std::vector<float> values;
  Dims shape;
  Floats(Mapping& mapping, const Dims& dims, const std::string& name)
      : values(static_cast<size_t>(dims.elements()), 0.0F), shape(dims) {
    mapping.add(values, emulator::Use::kOutput, name);
  }
  Tensor view() { return {values.data(), shape}; }
};

// Returns the number of reads and writes of a call whose input `nan` is NaN; of an ordinary call if
// there is no such input.
uint64_t accesses(const std::string& nan, int64_t queries, int64_t keys, bool backward) {
  Mapping mapping;
  const Dims of_queries{1, 1, queries, kWidth}, of_keys{1, 1, keys, kWidth};
  const Halves q(mapping, of_queries, "q", nan == "q"), k(mapping, of_keys, "k", nan == "k");
  const Halves v(mapping, of_keys, "v", nan == "v"),
      d_out(mapping, of_queries, "d_out", nan == "d_out");
  Floats out(mapping, of_queries, "out"), lse(mapping, {1, 1, queries}, "lse");
  Floats d_q(mapping, of_queries, "d_q"), d_k(mapping, of_keys, "d_k"),
      d_v(mapping, of_keys, "d_v");
  const AttentionOutputs outputs{.out = out.view(), .lse = lse.view()};
  uint64_t bytes = 0;
  EXPECT_TRUE(attention_workspace(q.view(), k.view(), v.view(), {}, outputs, bytes).ok());
  const MappedWorkspace workspace(bytes);
  uint64_t before = emulator::device().accesses;
  Status status = attention(q.view(), k.view(), v.view(), {}, outputs, workspace.get(), nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  if (backward) {
    const AttentionResults results{.out = ConstTensor(out.values.data(), out.shape),
                                   .lse = ConstTensor(lse.values.data(), lse.shape)};
    const AttentionGradients to{.d_q = d_q.view(), .d_k = d_k.view(), .d_v = d_v.view()};
    EXPECT_TRUE(attention_backward_workspace(q.view(), k.view(), v.view(), {}, results,
                                             d_out.view(), to, bytes)
                    .ok());
    const MappedWorkspace of_backward(bytes);
    before = emulator::device().accesses;
    status = attention_backward(q.view(), k.view(), v.view(), {}, results, d_out.view(), to,
                                of_backward.get(), nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  const uint64_t count = emulator::device().accesses - before;
  expect_no_findings();
  // Every number that depends on the input is NaN.
  const auto all_nan = [](const Floats& of) {
    for (const float value : of.values) {
      if (!std::isnan(value)) return false;
    }
    return true;
  };
  if (!nan.empty() && nan != "d_out") {
    EXPECT_TRUE(all_nan(out)) << nan;
    EXPECT_EQ(all_nan(lse), nan != "v") << nan;
  }
  if (backward && !nan.empty()) {
    EXPECT_TRUE(all_nan(d_q)) << nan;
    EXPECT_TRUE(all_nan(d_k)) << nan;
    EXPECT_EQ(all_nan(d_v), nan != "v") << nan;
  }
  return count;
}

// The accesses that a call has in addition, because its input is NaN, must not grow with the number
// of keys and queries per row.
void expect_few(int compute_capability, int shared_kb, int64_t queries, bool backward) {
  emulator::runtime_state().device = {.compute_capability = compute_capability,
                                      .multiprocessors = 1,
                                      .shared_bytes = shared_kb << 10};
  constexpr int64_t kFew = 256, kMany = 1024;
  for (const char* const input : kInputs) {
    if (!backward && std::string(input) == "d_out") continue;
    SCOPED_TRACE(input);
    const auto added = [&](int64_t keys) {
      const uint64_t with = accesses(input, queries, keys, backward);
      const uint64_t without = accesses("", queries, keys, backward);
      return with > without ? with - without : 0;
    };
    // d_k and d_v have a row for each key, so that four times as many are recomputed.
    const uint64_t rows = backward ? kMany / kFew : 1;
    EXPECT_LE(added(kMany), 2 * rows * added(kFew) + 1000);
  }
  emulator::runtime_state() = {};
}

TEST(CudaNaN, TakesFewMoreStepsForward) {
  expect_few(80, 163, 64, /*backward=*/false);
  expect_few(90, 227, 64, /*backward=*/false);
}

TEST(CudaNaN, TakesFewMoreStepsInDecoding) { expect_few(80, 163, 1, /*backward=*/false); }

TEST(CudaNaN, TakesFewMoreStepsBackward) {
  expect_few(80, 163, 64, /*backward=*/true);
  expect_few(90, 227, 64, /*backward=*/true);
}

}  // namespace
}  // namespace multihead::cuda::testing
