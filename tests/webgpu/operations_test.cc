#include "webgpu/operations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "multihead/weights.h"
#include "rules/element.h"
#include "support/random_case.h"
#include "webgpu/params.h"
#include "webgpu/plan_checks.h"

namespace multihead::gpu_operations_test {
namespace {

using webgpu::Builder;
using webgpu::MatrixForm;

constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kF16, WeightType::kBF16,
                                 WeightType::kInt8, WeightType::kInt4};

// The number of a matrix as kernels/numbers.wgsl reads it.
float number_of(const MatrixForm& form, const std::vector<uint32_t>& words, uint32_t row,
                uint32_t column) {
  const uint32_t* const units = words.data() + size_t{row} * form.units() * 4;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(units);
  const auto half = [](const uint32_t* from, uint32_t index) {
    return static_cast<uint16_t>(from[index / 2] >> (16 * (index % 2)));
  };
  const uint32_t* const scales =
      words.data() + form.first_scale() + size_t{row} * form.scale_words();
  const auto scale = [&] { return rules::to_float(Float16{half(scales, column / 32)}); };
  switch (form.type) {
    case WeightType::kF32: {
      float number = 0;
      std::memcpy(&number, units + column, sizeof(number));
      return number;
    }
    case WeightType::kF16:
      return rules::to_float(Float16{half(units, column)});
    case WeightType::kBF16:
      return rules::to_float(BFloat16{half(units, column)});
    case WeightType::kInt8:
      return static_cast<float>(static_cast<int8_t>(bytes[column])) * scale();
    case WeightType::kInt4: {
      const uint32_t of_block = column % 32;
      const uint8_t both = bytes[column / 32 * 16 + of_block % 16];
      return static_cast<float>((of_block < 16 ? both & 15 : both >> 4) - 8) * scale();
    }
    default:
      return 0;
  }
}

TEST(GpuOperations, PackedRowsAreTheMatrix) {
  Context context(1);
  for (const WeightType type : kTypes) {
    for (const int64_t columns : {1, 4, 30, 32, 33, 96, 130}) {
      const int64_t rows = 5;
      std::vector<float> numbers(static_cast<size_t>(rows * columns));
      for (size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = std::sin(static_cast<float>(i) * 0.7F);
      }
      std::vector<std::byte> bytes(static_cast<size_t>(weight_bytes(type, rows, columns)));
      ASSERT_TRUE(
          quantize(ConstAnyTensor(numbers.data(), {rows, columns}), type, bytes.data(), context)
              .ok());
      const WeightMatrix matrix{bytes.data(), type, rows, columns};
      const MatrixForm form{type, static_cast<uint32_t>(rows), static_cast<uint32_t>(columns)};
      std::vector<uint32_t> words(form.words(), ~0U);
      // In two pieces.
      const auto pack = [&](int64_t first, int64_t count) {
        webgpu::pack_rows(
            matrix, first, count, words.data() + first * form.units() * 4,
            words.data() + form.first_scale() + static_cast<uint64_t>(first) * form.scale_words());
      };
      pack(0, 2);
      pack(2, 3);
      std::vector<int32_t> all(static_cast<size_t>(rows));
      std::iota(all.begin(), all.end(), 0);
      std::vector<float> expected(numbers.size());
      ASSERT_TRUE(dequantize(matrix, all, {expected.data(), {rows, columns}}).ok());
      for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t c = 0; c < columns; ++c) {
          EXPECT_EQ(number_of(form, words, row, c),
                    expected[row * static_cast<uint32_t>(columns) + c])
              << name_of(type) << ' ' << columns << ' ' << row << ' ' << c;
        }
      }
    }
  }
}

TEST(GpuOperations, LongMatricesAreCutAtRows) {
  webgpu::Device device;
  device.binding_bytes = 1 << 15;
  for (const WeightType type : kTypes) {
    for (const uint32_t rows : {1U, 20U}) {
      const MatrixForm matrix{type, 1000, 96};
      const uint64_t operands[] = {4, matrix.words(), uint64_t{20} * 96};
      Builder builder(device, operands, 0);
      EXPECT_FALSE(builder.fits(matrix));
      const webgpu::Rows y{builder.scratch(uint64_t{rows} * 1000), 0, 1000};
      builder.linear({2, 0, 96}, rows, matrix, 1, {}, y);
      webgpu::Plan plan;
      // The values of 20 rows are longer than a binding.
      EXPECT_EQ(builder.finish(plan).ok(), rows == 1);
      if (rows > 1) continue;
      uint64_t next = 0;  // word of the matrix
      for (const webgpu::Dispatch& dispatch : plan.dispatches) {
        EXPECT_EQ(dispatch.bindings[1].first_word, next);
        EXPECT_LE(dispatch.bindings[1].words, device.binding_bytes / 4);
        const auto block = testing::block_of<webgpu::LinearBlock>(dispatch);
        EXPECT_EQ(block.y_first * uint64_t{matrix.units()} * 4, next);
        next += dispatch.bindings[1].words;
      }
      EXPECT_EQ(next, uint64_t{1000} * matrix.units() * 4);
    }
  }
}

TEST(GpuOperations, ScratchBuffersShareMemoryInTurns) {
  const webgpu::Device device;
  const uint64_t operands[] = {64, 64};
  Builder builder(device, operands, 0);
  // A chain of six values: two memories are enough, because each dispatch reads one and writes the
  // other.
  webgpu::Rows x{1, 0, 64};
  for (int i = 0; i < 6; ++i) {
    const webgpu::Rows y{builder.scratch(64), 0, 64};
    builder.pointwise(x, 1, 64, {}, y);
    x = y;
  }
  webgpu::Plan plan;
  ASSERT_TRUE(builder.finish(plan).ok());
  EXPECT_EQ(plan.scratch.size(), 2U);
  testing::check_plan(plan, operands, 2, device);
}

TEST(GpuOperations, OperandsOfACallArePlacesInBuffers) {
  const webgpu::Device device;
  const uint64_t operands[] = {64, 256};
  Builder builder(device, operands, 0);
  EXPECT_EQ(builder.data(std::vector<uint32_t>{1}), 0U);
  builder.begin_data();
  EXPECT_EQ(builder.put(std::vector<uint32_t>{7, 8}), 0U);
  builder.bind({{1, 128}, {Builder::kData, 64}});
  const auto rows = [&](uintptr_t number) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return builder.rows("x", reinterpret_cast<void*>(number), DType::kF32, {8, 4, 4}, {1, 2, 1, 4});
  };
  builder.move_rows({rows(1), builder.scratch_rows("y", {1, 2, 1, 4})}, {1, 2, 1, 4},
                    webgpu::as_they_are());
  EXPECT_EQ(rows(2).binding.buffer, Builder::kData);
  EXPECT_EQ(rows(2).binding.first_word, 64U);
  webgpu::Plan plan;
  ASSERT_TRUE(builder.finish(plan).ok());
  const auto& bindings = plan.dispatches.front().bindings;
  EXPECT_EQ(bindings[0].buffer, 1U);
  EXPECT_EQ(bindings[0].first_word, 128U);
  EXPECT_EQ(bindings[1].buffer, 2U);  // the data from the call's own arrays on
  EXPECT_EQ(bindings[1].first_word, 64U);
  EXPECT_EQ(plan.data[64], 7U);
  EXPECT_EQ(bindings[1].words, 2U);
  EXPECT_EQ(bindings[2].buffer, 3U);
}

}  // namespace
}  // namespace multihead::gpu_operations_test
