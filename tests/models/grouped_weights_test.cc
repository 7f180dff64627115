// Matrices of MLX, GPTQ and AWQ: the numbers of their definitions, in whole models.
#include "models/grouped_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/golden_models.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "rules/element.h"

namespace multihead::testing::grouped_weights_test {
namespace {

using models::Config;
using models::ConfigValue;
using models::Model;
using models::StoredTensor;
using Bytes = std::vector<std::byte>;

void put(Bytes& to, uint32_t bits, int count = 4) {
  for (int i = 0; i < count; ++i) to.push_back(static_cast<std::byte>(bits >> (8 * i)));
}

struct Files {
  Config config;
  std::vector<StoredTensor> tensors;
  std::vector<Bytes> bytes;

  void add(const std::string& name, const char* type, const Dims& shape, Bytes data) {
    tensors.push_back({name, type, shape});
    bytes.push_back(std::move(data));
  }
};

Status open_files(const Files& files, const models::OpenOptions& options, Model& model,
                  size_t piece = 37) {
  models::ModelLoader loader;
  Status status = models::ModelLoader::create(files.config, files.tensors, options, loader);
  for (const size_t i : loader.needed()) {
    std::span<const std::byte> rest = files.bytes[i];
    while (status.ok() && !rest.empty()) {
      const auto next = rest.first(std::min(piece, rest.size()));
      status = loader.give(i, next);
      rest = rest.subspan(next.size());
    }
  }
  return status.ok() ? loader.finish(model) : status;
}

enum class Format { kMlx4, kMlx8, kGptq, kGptqOrdered, kGptq8, kGptqV2, kAwq };

constexpr int64_t kGroup = 8;

bool is_gptq(Format format) { return format != Format::kMlx4 && format != Format::kMlx8; }
int bits_of(Format format) { return format == Format::kMlx8 || format == Format::kGptq8 ? 8 : 4; }

// Words of numbers (rows, columns), packed along the columns.
Bytes packed(const std::vector<int>& numbers, int bits) {
  Bytes bytes;
  const size_t each = static_cast<size_t>(32 / bits);
  for (size_t at = 0; at < numbers.size(); at += each) {
    uint32_t word = 0;
    for (size_t i = 0; i < each; ++i)
      word |= static_cast<uint32_t>(numbers[at + i]) << (i * static_cast<size_t>(bits));
    put(bytes, word);
  }
  return bytes;
}

// Adds the matrix X (rows, columns) with random numbers. Returns its weights as floats.
std::vector<float> add_matrix(Files& files, const std::string& base, int64_t rows, int64_t columns,
                              Format format, std::mt19937& random) {
  const int bits = bits_of(format);
  const int64_t groups = columns / kGroup;
  const auto at = [](int64_t row, int64_t column, int64_t width) {
    return static_cast<size_t>(row * width + column);
  };
  const auto draw = [&](int64_t count, int most) {
    std::vector<int> numbers(static_cast<size_t>(count));
    for (int& number : numbers) number = static_cast<int>(random() % static_cast<unsigned>(most));
    return numbers;
  };
  const std::vector<int> q = draw(rows * columns, 1 << bits);    // (out, in)
  std::vector<int> zero = draw(rows * groups, (1 << bits) - 1);  // (out, group)
  for (int& each : zero) ++each;                                 // GPTQ stores them minus 1
  std::vector<int64_t> group_of(static_cast<size_t>(columns));
  for (size_t c = 0; c < group_of.size(); ++c) group_of[c] = static_cast<int64_t>(c) / kGroup;
  if (format == Format::kGptqOrdered) std::shuffle(group_of.begin(), group_of.end(), random);
  std::vector<float> scale(static_cast<size_t>(rows * groups));
  for (float& each : scale)
    each = static_cast<float>(1 + static_cast<int>(random() % 64)) / static_cast<float>(16 << bits);
  std::vector<float> dense(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const size_t g = at(r, group_of[static_cast<size_t>(c)], groups);
      // MLX: the bias is a multiple of the scale here, so that both formulas are exact.
      dense[at(r, c, columns)] = static_cast<float>(q[at(r, c, columns)] - zero[g]) * scale[g];
    }
  }
  const auto half = [](float number) { return rules::from_float<Float16>(number).bits; };
  if (!is_gptq(format)) {
    files.add(base + ".weight", "U32", {rows, columns * bits / 32}, packed(q, bits));
    Bytes scales, biases;
    for (size_t i = 0; i < scale.size(); ++i) {
      put(scales, half(scale[i]), 2);
      put(biases, std::bit_cast<uint32_t>(-static_cast<float>(zero[i]) * scale[i]));
    }
    files.add(base + ".scales", "F16", {rows, groups}, scales);
    files.add(base + ".biases", "F32", {rows, groups}, biases);
    return dense;
  }
  const bool is_awq = format == Format::kAwq;
  const int added = is_awq || format == Format::kGptqV2 ? 0 : 1;
  // AWQ: the outputs that one word holds, from its lowest bits on.
  constexpr int64_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto output = [&](int64_t place) {
    return is_awq ? place / 8 * 8 + kOrder[place % 8] : place;
  };
  std::vector<int> numbers, zeros;
  Bytes scales, order;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t place = 0; place < rows; ++place) {
      zeros.push_back(zero[at(output(place), g, groups)] - (added == 1 ? 1 : 0));
      put(scales, half(scale[at(place, g, groups)]), 2);
    }
  }
  for (int& each : zeros) each &= (1 << bits) - 1;
  for (const int64_t g : group_of) put(order, static_cast<uint32_t>(g));
  if (is_awq) {
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t place = 0; place < rows; ++place)
        numbers.push_back(q[at(output(place), c, columns)]);
    files.add(base + ".qweight", "I32", {columns, rows / 8}, packed(numbers, 4));
  } else {
    // (words of inputs, out): the inputs of a word are neighbours.
    for (int64_t word = 0; word < columns * bits / 32; ++word)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < 32 / bits; ++i)
          numbers.push_back(q[at(r, word * (32 / bits) + i, columns)]);
    files.add(base + ".qweight", "I32", {columns * bits / 32, rows}, packed(numbers, bits));
    if (format == Format::kGptqOrdered) files.add(base + ".g_idx", "I32", {columns}, order);
  }
  files.add(base + ".qzeros", "I32", {groups, rows * bits / 32}, packed(zeros, bits));
  files.add(base + ".scales", "F16", {groups, rows}, scales);
  return dense;
}

// llama3 with quantized matrices, and with the same weights as floats.
std::pair<Files, Files> quantized(Format format) {
  std::mt19937 random(static_cast<unsigned>(format) + 7);
  Files files, dense;
  Safetensors read;
  EXPECT_TRUE(models::read_config(model_folder("llama3") + "/config.json", files.config).ok());
  EXPECT_TRUE(Safetensors::read(model_folder("llama3") + "/model.safetensors", read).ok());
  dense.config = files.config;
  const auto set = [&](const std::string& name, ConfigValue value) {
    files.config[name] = std::move(value);
  };
  const auto number = [](double value) {
    return ConfigValue{ConfigValue::Kind::kNumber, value, {}};
  };
  const auto text = [](const char* value) {
    return ConfigValue{ConfigValue::Kind::kText, 0, value};
  };
  if (is_gptq(format)) {
    set("quantization_config.quant_method", text(format == Format::kAwq ? "awq" : "gptq"));
    set("quantization_config.bits", number(bits_of(format)));
    if (format == Format::kGptqV2) set("quantization_config.checkpoint_format", text("gptq_v2"));
  } else {
    set("quantization.bits", number(bits_of(format) == 4 ? 8 : 4));
    set("quantization.group_size", number(kGroup));
  }
  for (const auto& [name, entry] : read.entries()) {
    std::vector<float> numbers(static_cast<size_t>(entry.shape.elements()));
    rules::read_floats(entry.data.data(), DType::kBF16, 0, entry.shape.elements(), numbers.data());
    const bool is_table =
        name.find("embed_tokens") != std::string::npos || name.find("lm_head") != std::string::npos;
    if (entry.shape.rank() == 2 && !(is_gptq(format) && is_table)) {
      const std::string base = name.substr(0, name.size() - std::string(".weight").size());
      // One matrix differs from the rest, as MLX says of each.
      if (!is_gptq(format)) set("quantization." + base + ".bits", number(bits_of(format)));
      numbers = add_matrix(files, base, entry.shape[0], entry.shape[1], format, random);
    } else {
      Bytes bytes;
      for (const float each : numbers) put(bytes, std::bit_cast<uint32_t>(each));
      files.add(name, "F32", entry.shape, bytes);
    }
    Bytes bytes;
    for (const float each : numbers) put(bytes, std::bit_cast<uint32_t>(each));
    dense.add(name, "F32", entry.shape, bytes);
  }
  return {std::move(files), std::move(dense)};
}

class Grouped : public ::testing::TestWithParam<Format> {};

TEST_P(Grouped, GivesTheNumbersThatItStandsFor) {
  const auto [files, dense] = quantized(GetParam());
  const std::vector<int32_t> ids = {5, 17, 90, 3, 44, 8};
  Context context(1);
  for (const std::optional<WeightType> type :
       {std::optional<WeightType>(WeightType::kF32), {}, {WeightType::kInt4}}) {
    models::OpenOptions options, same;
    options.weights = type;
    // Without a type, integers of groups become int8.
    same.weights = type.value_or(WeightType::kInt8);
    Model model, want;
    const Status status = open_files(files, options, model);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(open_files(dense, same, want).ok());
    EXPECT_EQ(model.info().parameters, want.info().parameters);
    if (type) EXPECT_EQ(model.info().weight_bytes, want.info().weight_bytes);
    if (!type && is_gptq(GetParam())) continue;  // tables stay as they are stored
    EXPECT_EQ(logits_of(model, ids, context), logits_of(want, ids, context));
  }
}
INSTANTIATE_TEST_SUITE_P(Formats, Grouped,
                         ::testing::Values(Format::kMlx4, Format::kMlx8, Format::kGptq,
                                           Format::kGptqOrdered, Format::kGptq8, Format::kGptqV2,
                                           Format::kAwq));

TEST(GroupedWeights, RefusesTensorsThatDoNotFit) {
  for (const Format format : {Format::kMlx4, Format::kGptq, Format::kAwq}) {
    const Files files = quantized(format).first;
    for (size_t i = 0; i < files.tensors.size(); ++i) {
      const Dims& shape = files.tensors[i].shape;
      if (files.tensors[i].type == "F32" && shape.rank() == 1) continue;
      for (int axis = 0; axis < shape.rank(); ++axis) {
        Files changed = files;
        Dims other;
        for (int each = 0; each < shape.rank(); ++each)
          other.push_back(shape[each] + (each == axis ? 1 : 0));
        changed.tensors[i].shape = other;
        Model model;
        const Status status = open_files(changed, {}, model);
        EXPECT_EQ(status.code(), StatusCode::kFormat) << files.tensors[i].name;
        EXPECT_EQ(model.info().num_layers, 0);
      }
    }
    // Without one of its tensors there is no such matrix.
    Files missing = files;
    const auto scales =
        std::find_if(missing.tensors.begin(), missing.tensors.end(),
                     [](const auto& each) { return each.name.ends_with(".scales"); });
    scales->name += "x";
    Model model;
    EXPECT_EQ(open_files(missing, {}, model).code(), StatusCode::kFormat);
  }
}

TEST(GroupedWeights, TakesNoMoreBytesThanTheTensorHas) {
  const Files files = quantized(Format::kGptq).first;
  models::ModelLoader loader;
  ASSERT_TRUE(models::ModelLoader::create(files.config, files.tensors, {}, loader).ok());
  for (const size_t i : loader.needed()) {
    Bytes bytes = files.bytes[i];
    bytes.resize(bytes.size() + 4);
    EXPECT_EQ(loader.give(i, bytes).code(), StatusCode::kFormat);
  }
  Model model;
  EXPECT_NE(loader.finish(model).message().find("less of"), std::string::npos);
}

}  // namespace
}  // namespace multihead::testing::grouped_weights_test
