#include "models/stored_blocks.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/gemm/weight_blocks.h"
#include "multihead/tensor.h"
#include "multihead/weights.h"
#include "rules/element.h"

namespace multihead::models {
namespace {

constexpr StoredForm kForms[] = {
    {Stored::kGroups, "groups", 1, 4},
#define STORED_TYPE(number, name, numbers, bytes) {Stored::k##name, #name, numbers, bytes},
#define OTHER_TYPE(number, name)
#include "models/stored_types.inc"
#undef OTHER_TYPE
#undef STORED_TYPE
};

unsigned byte_at(const std::byte* from, int64_t at) { return static_cast<unsigned>(from[at]); }

// Copies the half at `from` to place `index` of halves in this processor's order.
void put_half(const std::byte* from, std::byte* to, size_t index) {
  const auto half = static_cast<uint16_t>(byte_at(from, 0) | (byte_at(from, 1) << 8U));
  std::memcpy(to + index * sizeof(half), &half, sizeof(half));
}

// Scale and least number of part j of a block of Q4_K and Q5_K, six bits each.
std::pair<unsigned, unsigned> scales_of(const std::byte* from, int64_t j) {
  if (j < 4) return {byte_at(from, j) & 63U, byte_at(from, j + 4) & 63U};
  const unsigned low = byte_at(from, j + 4);
  return {(low & 15U) | ((byte_at(from, j - 4) >> 6U) << 4U),
          (low >> 4U) | ((byte_at(from, j) >> 6U) << 4U)};
}

// Writes parts of a row of `blocks` blocks: scales, fifth bits and numbers follow one another.
void pack_small(Stored type, const std::byte* row, size_t blocks, std::byte* to) {
  const WeightType same = packed_type(type);
  const size_t bytes = form_of(type).bytes, bits = 2 * cpu::high_bits(same);
  const size_t scales = cpu::has_leasts(same) ? 4 : 2, of_numbers = bytes - scales - 2 * bits;
  const cpu::RowParts at = cpu::row_parts(same, blocks);
  for (size_t block = 0; block < blocks; ++block, row += bytes) {
    put_half(row, to, block);
    if (scales > 2) put_half(row + 2, to + at.leasts, block);
    for (size_t half = 0; half < 2; ++half)
      std::memcpy(to + at.bits + 2 * (half * blocks + block), row + scales + 2 * half, bits);
    std::memcpy(to + at.numbers + block * of_numbers, row + bytes - of_numbers, of_numbers);
  }
}

// Number i of part `part` of a block of 256.
unsigned number_of(Stored type, const std::byte* block, int64_t part, int64_t i) {
  if (type == Stored::kQ6_K) {
    const int64_t half = part / 4, quarter = part % 4;
    const unsigned pair = byte_at(block, half * 64 + quarter % 2 * 32 + i);
    const unsigned two = (byte_at(block, 128 + half * 32 + i) >> (2 * quarter)) & 3U;
    return (quarter < 2 ? pair & 15U : pair >> 4U) | (two << 4U);
  }
  const bool has_fifth = type == Stored::kQ5_K;
  const unsigned pair = byte_at(block, (has_fifth ? 48 : 16) + part / 2 * 32 + i);
  const unsigned fifth = has_fifth ? (byte_at(block, 16 + i) >> part) & 1U : 0;
  return (part % 2 == 0 ? pair & 15U : pair >> 4U) | (fifth << 4U);
}

void pack_k(Stored type, const std::byte* row, size_t blocks, std::byte* to) {
  const WeightType same = packed_type(type);
  const cpu::RowParts at = cpu::row_parts(same, blocks);
  for (size_t block = 0; block < blocks; ++block) {
    const auto part = static_cast<int64_t>(block % 8);
    if (block > 0 && part == 0) row += form_of(type).bytes;
    put_half(row + (cpu::has_leasts(same) ? 0 : 208), to, block / 8);
    if (cpu::has_leasts(same)) put_half(row + 2, to + at.leasts, block / 8);
    const auto [first, second] = cpu::has_leasts(same) ? scales_of(row + 4, part)
                                                       : std::pair(byte_at(row, 192 + 2 * part),
                                                                   byte_at(row, 193 + 2 * part));
    to[at.factors + block] = static_cast<std::byte>(first);
    to[at.factors + blocks + block] = static_cast<std::byte>(second);
    unsigned numbers[32];
    for (int64_t i = 0; i < 32; ++i) numbers[i] = number_of(type, row, part, i);
    for (size_t i = 0; i < 16; ++i) {
      const unsigned pair = (numbers[i] & 15U) | ((numbers[16 + i] & 15U) << 4U);
      to[at.numbers + 16 * block + i] = static_cast<std::byte>(pair);
    }
    // Bytes of the bits of eight numbers.
    for (size_t i = 0; i < 4 * cpu::high_bits(same); ++i) {
      unsigned bits = 0;
      for (size_t bit = 0; bit < 8; ++bit)
        bits |= ((numbers[i % 4 * 8 + bit] >> (4 + i / 4)) & 1U) << bit;
      to[at.bits + 2 * (i / 2 * blocks + block) + i % 2] = static_cast<std::byte>(bits);
    }
  }
}

}  // namespace

const StoredForm& form_of(Stored type) { return kForms[static_cast<size_t>(type)]; }

std::optional<Stored> stored_type(std::string_view name) {
  for (const StoredForm& form : kForms) {
    if (name == form.name) return form.type;
  }
  return std::nullopt;
}

WeightType packed_type(Stored type) {
  using enum WeightType;
  // In the order of Stored.
  constexpr WeightType kSame[] = {kInt8, kF32,  kF16,  kBF16, kF32,  kInt4, kQ4_1,
                                  kQ5_0, kQ5_1, kInt8, kQ4_K, kQ5_K, kQ6_K, kInt8,
                                  kInt4, kQ5_0, kQ4_1, kQ5_1, kQ4_K, kQ5_K, kQ6_K};
  return kSame[static_cast<size_t>(type)];
}

WeightType same_type(Stored type) {
  const WeightType packed = packed_type(type);
  const bool is_block = has_stored_blocks(type) && !is_rows_of_matrix(type);
  return is_block && !cpu::multiplies_few_rows(packed) ? WeightType::kInt8 : packed;
}

std::optional<Stored> stored_rows(const StoredTensor& tensor, int64_t rows, int64_t columns) {
  if (tensor.type != "I8" || tensor.shape.rank() != 2 || tensor.shape[0] != rows || columns < 2)
    return {};
  for (auto at = static_cast<int>(Stored::kInt8); at <= static_cast<int>(Stored::kQ6_KRows); ++at) {
    const auto type = static_cast<Stored>(at);
    if (tensor.shape[1] == weight_row_bytes(same_type(type), columns)) return type;
  }
  return {};
}

void turn_scales(WeightType type, std::byte* row, int64_t columns) {
  const auto blocks = static_cast<size_t>(cpu::weight_blocks(columns));
  rules::turn_numbers({row, cpu::row_parts(type, blocks).factors}, sizeof(Float16));
}

std::string gguf_type_name(uint32_t number) {
  switch (number) {
#define STORED_TYPE(number, name, numbers, bytes) OTHER_TYPE(number, name)
#define OTHER_TYPE(number, name) \
  case number:                   \
    return #name;
#include "models/stored_types.inc"
#undef OTHER_TYPE
#undef STORED_TYPE
    default:
      return "type " + std::to_string(number);
  }
}

void pack_blocks(Stored type, const std::byte* row, int64_t columns, std::byte* to) {
  const auto blocks = static_cast<size_t>(cpu::weight_blocks(columns));
  (form_of(type).numbers == 32 ? pack_small : pack_k)(type, row, blocks, to);
}

void read_blocks(Stored type, const std::byte* row, int64_t columns, float* to) {
  std::vector<std::byte> packed;
  if (!is_rows_of_matrix(type)) {
    packed.resize(static_cast<size_t>(weight_row_bytes(packed_type(type), columns)));
    pack_blocks(type, row, columns, packed.data());
    row = packed.data();
  }
  constexpr int32_t kRow = 0;
  static_cast<void>(
      dequantize({row, packed_type(type), 1, columns}, {&kRow, 1}, {to, {1, columns}}));
}

}  // namespace multihead::models
