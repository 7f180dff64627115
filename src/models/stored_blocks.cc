#include "models/stored_blocks.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "multihead/tensor.h"
#include "multihead/weights.h"
#include "rules/element.h"

namespace multihead::models {
namespace {

constexpr StoredForm kForms[] = {{Stored::kGroups, "groups", 1, 4},
#define STORED_TYPE(number, name, numbers, bytes) {Stored::k##name, #name, numbers, bytes},
#define OTHER_TYPE(number, name)
#include "models/stored_types.inc"
#undef OTHER_TYPE
#undef STORED_TYPE
                                 {Stored::kInt8, "int8", kWeightBlock, 34},
                                 {Stored::kInt4, "int4", kWeightBlock, 18}};

// Sums of products are two statements each, so that no compiler makes one rounding of them.

unsigned byte_at(const std::byte* from, int64_t at) { return static_cast<unsigned>(from[at]); }

float half_at(const std::byte* from, int64_t at) {
  return rules::to_float(
      Float16{static_cast<uint16_t>(byte_at(from, at) | (byte_at(from, at + 1) << 8U))});
}

// Returns number i of a block of 32: the low four bits of byte i for i < 16, the high four bits of
// byte i - 16 else. Numbers of five bits have the fifth one in bit i of the four bytes at `high`.
unsigned digits(const std::byte* low, const std::byte* high, int64_t i) {
  const unsigned pair = byte_at(low, i % 16);
  const unsigned four = i < 16 ? pair & 15U : pair >> 4U;
  return high == nullptr ? four : four | (((byte_at(high, i / 8) >> (i % 8)) & 1U) << 4U);
}

void read_small(Stored type, const std::byte* block, float* to) {
  const float scale = half_at(block, 0);
  const bool has_least = type == Stored::kQ4_1 || type == Stored::kQ5_1;
  const bool has_high = type == Stored::kQ5_0 || type == Stored::kQ5_1;
  const float least = has_least ? half_at(block, 2) : 0.0F;
  const std::byte* numbers = block + (has_least ? 4 : 2);
  const std::byte* const high = has_high ? numbers : nullptr;
  if (has_high) numbers += 4;
  for (int64_t i = 0; i < 32; ++i) {
    if (type == Stored::kQ8_0) {
      to[i] = static_cast<float>(static_cast<int8_t>(byte_at(numbers, i))) * scale;
      continue;
    }
    const int middle = has_least ? 0 : has_high ? 16 : 8;
    to[i] = static_cast<float>(static_cast<int>(digits(numbers, high, i)) - middle) * scale;
    if (has_least) to[i] += least;
  }
}

// Scale and least number of part j of a block of Q4_K and Q5_K, six bits each.
std::pair<unsigned, unsigned> scales_of(const std::byte* from, int64_t j) {
  if (j < 4) return {byte_at(from, j) & 63U, byte_at(from, j + 4) & 63U};
  const unsigned low = byte_at(from, j + 4);
  return {(low & 15U) | ((byte_at(from, j - 4) >> 6U) << 4U),
          (low >> 4U) | ((byte_at(from, j) >> 6U) << 4U)};
}

void read_k45(Stored type, const std::byte* block, float* to) {
  const float scale = half_at(block, 0), least = half_at(block, 2);
  const std::byte* const high = type == Stored::kQ5_K ? block + 16 : nullptr;
  const std::byte* const low = block + (high == nullptr ? 16 : 48);
  for (int64_t part = 0; part < 8; ++part) {
    const auto [factor, offset] = scales_of(block + 4, part);
    const float d = scale * static_cast<float>(factor), m = least * static_cast<float>(offset);
    for (int64_t i = 0; i < 32; ++i) {
      const unsigned pair = byte_at(low, part / 2 * 32 + i);
      unsigned number = part % 2 == 0 ? pair & 15U : pair >> 4U;
      if (high != nullptr) number |= ((byte_at(high, i) >> part) & 1U) << 4U;
      const float product = d * static_cast<float>(number);
      to[part * 32 + i] = product - m;
    }
  }
}

void read_k6(const std::byte* block, float* to) {
  const std::byte* const scales = block + 192;
  const float scale = half_at(block, 208);
  for (int64_t at = 0; at < 256; ++at) {
    const int64_t half = at / 128, quarter = at % 128 / 32, i = at % 32;
    const unsigned pair = byte_at(block, half * 64 + quarter % 2 * 32 + i);
    const unsigned four = quarter < 2 ? pair & 15U : pair >> 4U;
    const unsigned two = (byte_at(block, 128 + half * 32 + i) >> (2 * quarter)) & 3U;
    const auto factor = static_cast<int8_t>(byte_at(scales, half * 8 + quarter * 2 + i / 16));
    const float d = scale * static_cast<float>(factor);
    to[at] = d * static_cast<float>(static_cast<int>(four | (two << 4U)) - 32);
  }
}

void read_rows_of_blocks(Stored type, const std::byte* row, int64_t columns, float* to) {
  const int64_t blocks = (columns + kWeightBlock - 1) / kWeightBlock;
  const std::byte* const numbers = row + static_cast<size_t>(blocks) * sizeof(Float16);
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t block = c / kWeightBlock, i = c % kWeightBlock;
    const int number = type == Stored::kInt8
                           ? static_cast<int>(static_cast<int8_t>(byte_at(numbers, c)))
                           : static_cast<int>(digits(numbers + 16 * block, nullptr, i)) - 8;
    to[c] = static_cast<float>(number) * half_at(row, 2 * block);
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

std::optional<Stored> stored_rows(const StoredTensor& tensor, int64_t rows, int64_t columns) {
  if (tensor.type != "I8" || tensor.shape.rank() != 2 || tensor.shape[0] != rows || columns < 2)
    return {};
  if (tensor.shape[1] == weight_row_bytes(WeightType::kInt8, columns)) return Stored::kInt8;
  if (tensor.shape[1] == weight_row_bytes(WeightType::kInt4, columns)) return Stored::kInt4;
  return {};
}

void turn_scales(std::byte* row, int64_t columns) {
  const int64_t blocks = (columns + kWeightBlock - 1) / kWeightBlock;
  rules::turn_numbers({row, static_cast<size_t>(blocks) * sizeof(Float16)}, sizeof(Float16));
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

void read_blocks(Stored type, const std::byte* row, int64_t columns, float* to) {
  if (type >= Stored::kInt8) return read_rows_of_blocks(type, row, columns, to);
  const StoredForm& form = form_of(type);
  for (int64_t c = 0; c < columns; c += form.numbers, row += form.bytes) {
    if (form.numbers == 32) {
      read_small(type, row, to + c);
    } else if (type == Stored::kQ6_K) {
      read_k6(row, to + c);
    } else {
      read_k45(type, row, to + c);
    }
  }
}

void separate_scales(Stored type, const std::byte* row, int64_t columns, std::byte* to) {
  const size_t bytes = form_of(type).bytes, of_numbers = bytes - sizeof(Float16);
  const int64_t blocks = columns / 32;
  std::byte* numbers = to + static_cast<size_t>(blocks) * sizeof(Float16);
  for (int64_t block = 0; block < blocks; ++block, row += bytes) {
    const auto scale = static_cast<uint16_t>(byte_at(row, 0) | (byte_at(row, 1) << 8U));
    std::memcpy(to + static_cast<size_t>(block) * sizeof(scale), &scale, sizeof(scale));
    std::memcpy(numbers, row + sizeof(scale), of_numbers);
    numbers += of_numbers;
  }
}

}  // namespace multihead::models
