// Checks of plans that need no GPU: bounds, and the order of writing and reading.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "webgpu/params.h"
#include "webgpu/plan.h"

namespace multihead::testing {

// The number that every device allows a kernel.
inline constexpr size_t kStorageBuffers = 8;

inline const char* file_of(webgpu::Kernel kernel) {
  static constexpr const char* kFiles[] = {
#define MULTIHEAD_GPU_KERNEL(name, file) #file,
#include "webgpu/kernels.inc"
#undef MULTIHEAD_GPU_KERNEL
  };
  return kFiles[static_cast<size_t>(kernel)];
}

// The text of a kernel's file, with the files that it includes.
inline std::string text_of(const std::string& file_name) {
  std::ifstream file(std::string(MULTIHEAD_CONFORMANCE_FOLDER) + "/../../src/webgpu/kernels/" +
                     file_name);
  std::string text;
  const std::string include = "//#include ";
  for (std::string line; std::getline(file, line);) {
    // Words behind the name of the file are its arguments.
    const std::string name = line.substr(0, line.find(' ', include.size()));
    text += line.starts_with(include) ? text_of(name.substr(include.size())) : line + "\n";
  }
  EXPECT_FALSE(text.empty()) << file_name;
  return text;
}

// The bindings that a kernel writes, found in its text. The kernel only reads its other bindings.
inline const std::set<size_t>& written_bindings(webgpu::Kernel kernel) {
  static std::map<webgpu::Kernel, std::set<size_t>> known;
  const auto found = known.find(kernel);
  if (found != known.end()) return found->second;
  const std::string text = text_of(file_of(kernel) + std::string(".wgsl"));
  std::set<size_t> written;
  const std::string binding = "@binding(", access = ") var<storage, read_write>";
  for (size_t at = text.find(binding); at != std::string::npos; at = text.find(binding, at + 1)) {
    const size_t end = text.find(')', at);
    if (text.compare(end, access.size(), access) != 0) continue;
    written.insert(std::stoul(text.substr(at + binding.size(), end - at - binding.size())) - 1);
  }
  EXPECT_FALSE(written.empty()) << file_of(kernel);
  return known[kernel] = written;
}

template <class Block>
Block block_of(const webgpu::Dispatch& dispatch) {
  Block block;
  EXPECT_EQ(dispatch.parameters.size() * sizeof(uint32_t), sizeof(Block));
  std::memcpy(&block, dispatch.parameters.data(), sizeof(Block));
  return block;
}

// Words that a kernel of operations reads or writes in each of its bindings, from the first on; 0
// for those that are not checked.
inline std::vector<uint64_t> extents(const webgpu::Dispatch& dispatch) {
  using webgpu::Kernel;
  const auto rows = [](uint64_t first, uint64_t count, uint64_t stride, uint64_t columns) {
    return first + (count - 1) * stride + columns;
  };
  const auto vector = [](uint32_t first, uint64_t size) {
    return first == ~0U ? uint64_t{0} : first + size;
  };
  const auto linear = [&](const webgpu::LinearBlock& p, uint64_t matrix_rows) {
    return std::vector<uint64_t>{rows(p.x_first, p.rows, p.x_stride, (p.columns + 3) / 4 * 4),
                                 matrix_rows * p.units * 4, matrix_rows * p.scale_words,
                                 vector(p.bias, matrix_rows),
                                 rows(p.y_first, p.rows, p.y_stride, p.outputs)};
  };
  switch (dispatch.kernel) {
    case Kernel::kLinearFew: {
      const auto p = block_of<webgpu::LinearBlock>(dispatch);
      std::vector<uint64_t> words = linear(p, p.last_row + uint64_t{1});
      words[3] = std::max({words[3], vector(p.gain, p.columns), vector(p.shift, p.columns)});
      return words;
    }
    case Kernel::kLinearMany: {
      const auto p = block_of<webgpu::LinearBlock>(dispatch);
      return linear(p, p.outputs);
    }
    case Kernel::kNorm: {
      const auto p = block_of<webgpu::NormBlock>(dispatch);
      return {rows(p.x_first, p.rows, p.x_stride, p.columns),
              std::max(vector(p.gain, p.columns), vector(p.shift, p.columns)),
              rows(p.y_first, p.rows, p.y_stride, p.columns)};
    }
    case Kernel::kHeads: {
      const auto p = block_of<webgpu::HeadsBlock>(dispatch);
      const auto from = [&](const webgpu::vec4u& of) {
        return rows(p.x_first + of[0], p.tokens, p.x_stride, (of[2] - 1) * of[1] + p.width);
      };
      const uint64_t table =
          rows(std::max(p.cos_first, p.sin_first), p.sequence, p.table_stride, p.pairs);
      const auto to = [&](const webgpu::vec4u& of) {
        return of[3] + uint64_t{p.tokens} * of[2] * p.width;
      };
      EXPECT_LE(to(p.q), p.k[3]);
      EXPECT_LE(to(p.k), p.v[3]);
      return {std::max({from(p.q), from(p.k), from(p.v)}),
              std::max(vector(p.q_gain, p.width), vector(p.k_gain, p.width)),
              p.pairs == 0 ? 0 : table, to(p.v)};
    }
    case Kernel::kWeighted: {
      const auto p = block_of<webgpu::WeightedBlock>(dispatch);
      const uint64_t v = (p.rows / p.tokens - 1) * p.v[0] + (p.heads / p.group - 1) * p.v[1] +
                         (p.keys - 1) * p.v[2] + p.width;
      return {uint64_t{p.rows} * p.heads * p.keys, p.v[3] == 0 ? v : (v + 1) / 2,
              rows(p.y_first, p.rows, p.y_stride, p.heads * p.width)};
    }
    case Kernel::kPointwise: {
      const auto p = block_of<webgpu::PointwiseBlock>(dispatch);
      const uint64_t z = p.mode == 1 || p.mode == 5 ? rows(p.z_first, p.rows, p.z_stride, p.columns)
                         : p.mode == 2              ? p.z_first + (p.columns + p.each - 1) / p.each
                                                    : 0;
      return {rows(p.x_first, p.rows, p.x_stride, p.columns), z,
              rows(p.y_first, p.rows, p.y_stride, p.columns)};
    }
    case Kernel::kEmbed: {
      const auto p = block_of<webgpu::EmbedBlock>(dispatch);
      return {uint64_t{p.table_rows} * p.units * 4, uint64_t{p.table_rows} * p.scale_words,
              std::max<uint64_t>(p.indices + p.rows, vector(p.factors, p.rows)),
              rows(p.y_first, p.rows, p.y_stride, p.columns)};
    }
    default:
      return std::vector<uint64_t>(dispatch.bindings.size());
  }
}

// Every binding lies in its buffer, no dispatch reads and writes one buffer by two bindings, and
// each scratch buffer and output is written before it is read. `operands`: words of each; those
// below `given` have contents.
inline void check_plan(const webgpu::Plan& plan, std::span<const uint64_t> operands, size_t given,
                       const webgpu::Device& device) {
  std::vector<uint64_t> words(operands.begin(), operands.end());
  std::vector<bool> has_contents(words.size());
  std::fill_n(has_contents.begin(), given, true);
  if (!plan.data.empty()) {
    words.push_back(plan.data.size());
    has_contents.push_back(true);
  }
  words.insert(words.end(), plan.scratch.begin(), plan.scratch.end());
  has_contents.resize(words.size());
  for (size_t at = 0; at < plan.dispatches.size(); ++at) {
    const webgpu::Dispatch& dispatch = plan.dispatches[at];
    SCOPED_TRACE(std::to_string(at) + ": " + file_of(dispatch.kernel));
    for (const uint32_t count : dispatch.groups) {
      EXPECT_GE(count, 1U);
      EXPECT_LE(count, device.groups);
    }
    EXPECT_LE(dispatch.bindings.size(), kStorageBuffers);
    const std::set<size_t>& written = written_bindings(dispatch.kernel);
    const std::vector<uint64_t> needed = extents(dispatch);
    ASSERT_EQ(needed.size(), dispatch.bindings.size());
    for (size_t i = 0; i < dispatch.bindings.size(); ++i) {
      const webgpu::Binding& binding = dispatch.bindings[i];
      ASSERT_LT(binding.buffer, words.size());
      EXPECT_EQ(binding.first_word % 64, 0U);
      EXPECT_LE(uint64_t{binding.first_word} + binding.words, words[binding.buffer]);
      EXPECT_LE(uint64_t{binding.words} * 4, device.binding_bytes);
      EXPECT_LE(needed[i], binding.words) << "binding " << i;
      if (written.contains(i)) continue;
      EXPECT_TRUE(has_contents[binding.buffer]) << "binding " << i;
      for (const size_t output : written) {
        if (output >= dispatch.bindings.size()) continue;  // of rows.wgsl without PAIR
        EXPECT_NE(binding.buffer, dispatch.bindings[output].buffer) << "binding " << i;
      }
    }
    for (const size_t output : written) {
      if (output < dispatch.bindings.size()) has_contents[dispatch.bindings[output].buffer] = true;
    }
  }
}

}  // namespace multihead::testing
