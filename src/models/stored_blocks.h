// Types of the weights in safetensors and GGUF files. In safetensors files a matrix of blocks is
// one of I8, (rows, bytes of a row): its rows are those of a WeightMatrix. The quantized types of
// GGUF store blocks of numbers with scales: https://github.com/ggml-org/ggml, ggml-common.h and
// ggml-quants.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "multihead/models.h"

namespace multihead::models {

enum class Stored : uint8_t {
  kGroups,  // floats, read from a matrix of grouped_weights.h
  kF32,
  kF16,
  kBF16,
  kF64,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kInt8,  // rows of a WeightMatrix, as are the following
  kInt4,
  kQ5_0Rows,
  kQ4_1Rows,
  kQ5_1Rows,
  kQ4_KRows,
  kQ5_KRows,
  kQ6_KRows,
};

// Numbers and bytes of a block; one number without blocks.
struct StoredForm {
  Stored type;
  std::string_view name;
  int64_t numbers;
  size_t bytes;
};

// Not for rows of a WeightMatrix.
const StoredForm& form_of(Stored type);
// The type that holds the numbers. F64 is narrowed, and floats of groups become int8.
WeightType packed_type(Stored type);
// The type of memory by default: packed_type(), or int8 for blocks that have no kernel.
WeightType same_type(Stored type);
// Nothing for a type that weights cannot have.
std::optional<Stored> stored_type(std::string_view name);
// The name of a type of ggml.h.
std::string gguf_type_name(uint32_t number);
// The type of a tensor that can be the rows of a matrix of blocks (rows, columns).
std::optional<Stored> stored_rows(const StoredTensor& tensor, int64_t rows, int64_t columns);
constexpr bool has_stored_blocks(Stored type) { return type >= Stored::kQ4_0; }
constexpr bool is_rows_of_matrix(Stored type) { return type >= Stored::kInt8; }

// Changes the scales of a row of blocks from the order of files to this processor's, or back.
void turn_scales(WeightType type, std::byte* row, int64_t columns);

// Writes a row of blocks of a GGUF file as a WeightMatrix of packed_type() has it.
void pack_blocks(Stored type, const std::byte* row, int64_t columns, std::byte* to);

// Writes the `columns` numbers of a row of blocks of a GGUF file, with the bits that ggml's
// functions without SIMD give, or of a WeightMatrix in this processor's order.
void read_blocks(Stored type, const std::byte* row, int64_t columns, float* to);

}  // namespace multihead::models
