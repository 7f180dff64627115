#include "models/grouped_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "rules/element.h"

namespace multihead::models {
// A namespace of its own, since files of a library are compiled together.
namespace grouped_weights {
namespace {

constexpr std::string_view kScales = ".scales";

// Extents are below 2^31, so that the product of two cannot overflow.
bool is_matrix(const StoredTensor& tensor, std::string_view type) {
  constexpr int64_t kMost = int64_t{1} << 31;
  return tensor.type == type && tensor.shape.rank() == 2 && tensor.shape[0] > 0 &&
         tensor.shape[1] > 0 && tensor.shape[0] < kMost && tensor.shape[1] < kMost;
}

bool is_float(const StoredTensor& tensor) {
  return is_matrix(tensor, "F32") || is_matrix(tensor, "F16") || is_matrix(tensor, "BF16");
}

uint32_t word_at(const std::vector<std::byte>& bytes, int64_t at) {
  uint32_t word = 0;
  for (int64_t i = 4; i-- > 0;)
    word = (word << 8U) | static_cast<uint32_t>(bytes[static_cast<size_t>(4 * at + i)]);
  return word;
}

float number_at(const std::vector<std::byte>& bytes, std::string_view type, int64_t at) {
  if (type == "F32") return std::bit_cast<float>(word_at(bytes, at));
  const auto byte = [&](int64_t i) {
    return static_cast<unsigned>(bytes[static_cast<size_t>(2 * at + i)]);
  };
  const auto bits = static_cast<uint16_t>(byte(0) | (byte(1) << 8U));
  return type == "F16" ? rules::to_float(Float16{bits}) : rules::to_float(BFloat16{bits});
}

// Number `at` of a packed row, which begins at word `row`.
int packed_at(const std::vector<std::byte>& bytes, int64_t row, int64_t at, int64_t bits) {
  const int64_t each = 32 / bits;
  return static_cast<int>((word_at(bytes, row + at / each) >> (at % each * bits)) &
                          ((1U << bits) - 1));
}

class Finder {
 public:
  Finder(const Config& config, std::vector<StoredTensor>& tensors,
         std::vector<GroupedWeights>& groups)
      : config_(config), tensors_(tensors), groups_(groups) {
    for (size_t i = 0; i < tensors.size(); ++i) by_name_.emplace(tensors[i].name, i);
    const auto format = config.find("quantization_config.checkpoint_format");
    is_v2_ = format != config.end() && format->second.text == "gptq_v2";
  }

  Status find() {
    const size_t count = tensors_.size();
    for (size_t i = 0; i < count; ++i) {
      const std::string name = tensors_[i].name;
      if (!name.ends_with(kScales) || !is_float(tensors_[i])) continue;
      const std::string base = name.substr(0, name.size() - kScales.size());
      GroupedWeights found;
      found.scales = i;
      const bool is_mlx = has(base + ".weight", "U32") && at(base + ".biases") != kNone;
      const bool is_gptq = has(base + ".qweight", "I32") && has(base + ".qzeros", "I32");
      if (!is_mlx && !is_gptq) continue;
      if (!(is_mlx ? fit_mlx(base, found) : fit_gptq(base, found))) {
        return {StatusCode::kFormat, engine::printable(name),
                "scales of groups that fit the other tensors of the matrix",
                tensors_[i].shape.to_string()};
      }
      groups_.push_back(found);
      tensors_.push_back({base + ".weight", "groups", {found.rows, found.columns}});
    }
    return {};
  }

 private:
  static constexpr size_t kNone = GroupedWeights::kNone;

  size_t at(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? kNone : found->second;
  }
  bool has(const std::string& name, std::string_view type) const {
    const size_t found = at(name);
    return found != kNone && is_matrix(tensors_[found], type);
  }
  static bool is_packed(int64_t numbers, int64_t words, int64_t bits) {
    return (bits == 4 || bits == 8) && words * 32 == numbers * bits;
  }

  // A setting of MLX, for one matrix or for all.
  int64_t setting(const std::string& base, const std::string& name, int64_t absent) const {
    for (const std::string& of : {"quantization." + base + "." + name, "quantization." + name}) {
      const auto found = config_.find(of);
      if (found != config_.end() && std::abs(found->second.number) < 1e6)
        return static_cast<int64_t>(found->second.number);
    }
    return absent;
  }

  bool fit_mlx(const std::string& base, GroupedWeights& to) const {
    to.kind = GroupedWeights::Kind::kMlx;
    to.numbers = at(base + ".weight");
    to.zeros = at(base + ".biases");
    const Dims& words = tensors_[to.numbers].shape;
    const Dims& scales = tensors_[to.scales].shape;
    const Dims& biases = tensors_[to.zeros].shape;
    to.rows = words[0];
    to.bits = setting(base, "bits", 4);
    to.group = setting(base, "group_size", 64);
    if (to.bits != 4 && to.bits != 8) return false;
    to.columns = words[1] * 32 / to.bits;
    return to.group > 0 && to.group * scales[1] == to.columns && scales[0] == to.rows &&
           biases == scales && is_float(tensors_[to.zeros]);
  }

  bool fit_gptq(const std::string& base, GroupedWeights& to) const {
    to.numbers = at(base + ".qweight");
    to.zeros = at(base + ".qzeros");
    const Dims& words = tensors_[to.numbers].shape;
    const Dims& zeros = tensors_[to.zeros].shape;
    const Dims& scales = tensors_[to.scales].shape;
    to.rows = scales[1];
    const bool is_awq = words[1] != to.rows;
    to.kind = is_awq ? GroupedWeights::Kind::kAwq : GroupedWeights::Kind::kGptq;
    to.bits = zeros[1] * 32 / to.rows;
    to.columns = is_awq ? words[0] : words[0] * 32 / std::max<int64_t>(1, to.bits);
    to.group = to.columns / scales[0];
    to.added_zero = is_awq || is_v2_ ? 0 : 1;
    to.order = is_awq ? kNone : at(base + ".g_idx");
    const bool has_order = to.order != kNone;
    if (has_order &&
        !(tensors_[to.order].type == "I32" && tensors_[to.order].shape == Dims{to.columns})) {
      return false;
    }
    return to.group > 0 && (has_order || to.group * scales[0] == to.columns) &&
           zeros[0] == scales[0] && is_packed(to.rows, zeros[1], to.bits) &&
           (is_awq ? to.bits == 4 && is_packed(to.rows, words[1], 4)
                   : is_packed(to.columns, words[0], to.bits));
  }

  const Config& config_;
  std::vector<StoredTensor>& tensors_;
  std::vector<GroupedWeights>& groups_;
  std::map<std::string, size_t, std::less<>> by_name_;
  bool is_v2_ = false;
};

// The place of an output in its packed row: a word holds eight outputs in AWQ's order.
int64_t awq_place(int64_t at) {
  constexpr int64_t kPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};
  return at / 8 * 8 + kPlaces[at % 8];
}

}  // namespace
}  // namespace grouped_weights

Status find_groups(const Config& config, std::vector<StoredTensor>& tensors,
                   std::vector<GroupedWeights>& groups) {
  return grouped_weights::Finder(config, tensors, groups).find();
}

uint64_t group_bytes(const StoredTensor& tensor) {
  const uint64_t each = tensor.type == "F16" || tensor.type == "BF16" ? 2 : 4;
  return each * static_cast<uint64_t>(tensor.shape.elements());
}

void read_groups(const GroupedWeights& weights, std::span<const StoredTensor> tensors,
                 int64_t first, int64_t count, float* to) {
  using namespace grouped_weights;
  using Kind = GroupedWeights::Kind;
  const auto& [numbers, scales, zeros, order] = weights.bytes;
  const std::string_view type = tensors[weights.scales].type;
  const int64_t bits = weights.bits, columns = weights.columns, rows = weights.rows;
  const int64_t groups = tensors[weights.scales].shape[weights.kind == Kind::kMlx ? 1 : 0];
  for (int64_t c = 0; c < columns; ++c) {
    int64_t group = c / weights.group;
    if (!order.empty()) {
      group = std::clamp<int64_t>(static_cast<int32_t>(word_at(order, c)), 0, groups - 1);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = first + i;
      float& weight = to[i * columns + c];
      if (weights.kind == Kind::kMlx) {
        const int64_t at = row * groups + group;
        const float bias = number_at(zeros, tensors[weights.zeros].type, at);
        weight = static_cast<float>(packed_at(numbers, row * columns * bits / 32, c, bits)) *
                 number_at(scales, type, at);
        weight += bias;
        continue;
      }
      const bool is_awq = weights.kind == Kind::kAwq;
      const int64_t place = is_awq ? awq_place(row) : row;
      const int number =
          is_awq
              ? packed_at(numbers, c * rows / 8, place, 4)
              : static_cast<int>((word_at(numbers, c * bits / 32 * rows + row) >> (c * bits % 32)) &
                                 ((1U << bits) - 1));
      const int zero = packed_at(zeros, group * rows * bits / 32, place, bits) + weights.added_zero;
      weight = static_cast<float>(number - zero) * number_at(scales, type, group * rows + row);
    }
  }
}

}  // namespace multihead::models
