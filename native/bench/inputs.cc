#include "inputs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rules/element.h"

namespace multihead::bench {
namespace {

constexpr int64_t kWindowLeft = 128;
constexpr int64_t kBlockKeys = 192;

int64_t block_stride(Mask mask) {
  return mask == Mask::kBlocks2 ? 2 : mask == Mask::kBlocks3 ? 3 : mask == Mask::kBlocks6 ? 6 : 0;
}

}  // namespace

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  uint32_t state = seed;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<double>(state) / 2147483648.0 - 1.0);
  }
  return values;
}

DType dtype_of(const char* name) {
  const std::string_view text = name;
  if (text == "bf16" || text == kBf16Precision) return DType::kBF16;
  return text == "f16" ? DType::kF16 : DType::kF32;
}

Precision precision_of(const char* name) {
  return std::string_view(name) == kBf16Precision ? Precision::kBf16 : Precision::kF32;
}

Numbers::Numbers(int64_t count, uint32_t seed, DType dtype_)
    : floats(random_floats(count, seed)), dtype(dtype_) {
  rules::visit_element(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
      halves.reserve(floats.size());
      for (float& value : floats) {
        const T rounded = rules::from_float<T>(value);
        halves.push_back(rounded.bits);
        value = rules::to_float(rounded);
      }
    }
  });
}

ConstAnyTensor Numbers::view(const Dims& shape, const Dims& strides) const {
  if (dtype == DType::kF32) return {floats.data(), DType::kF32, shape, strides};
  return {halves.data(), dtype, shape, strides};
}

MaskInputs::MaskInputs(const Shape& shape, Mask mask)
    : shape_(shape),
      mask_(mask),
      visible_pairs_(static_cast<double>(shape.queries) * static_cast<double>(shape.keys)) {
  const int64_t kept = shape.keys * 3 / 4;
  if (is_causal(mask)) {
    options_.causal = Causal::bottom_right();
    visible_pairs_ /= 2;
  }
  if (mask == Mask::kBoolean || block_stride(mask) > 0) {
    const std::vector<float> random = random_floats(shape.queries * shape.keys, kMaskSeed);
    const int64_t stride = block_stride(mask);
    int64_t visible = 0;
    for (size_t at = 0; at < random.size(); ++at) {
      const int64_t block = static_cast<int64_t>(at) % shape.keys / kBlockKeys;
      const bool see = stride > 0 ? block % stride == 0 : random[at] >= 0;
      booleans_.push_back(see ? 1 : 0);
      visible += see ? 1 : 0;
    }
    if (stride > 0) visible_pairs_ = static_cast<double>(visible);
    options_.mask = {booleans_.data(), {shape.queries, shape.keys}};
  }
  if (mask == Mask::kPadding) {
    booleans_.assign(static_cast<size_t>(shape.batch * shape.keys), 0);
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t j = 0; j < kept; ++j) booleans_[static_cast<size_t>(b * shape.keys + j)] = 1;
    }
    options_.mask = {booleans_.data(), {shape.batch, 1, 1, shape.keys}};
  }
  if (mask == Mask::kLengths) {
    lengths_.assign(static_cast<size_t>(shape.batch), static_cast<int32_t>(kept));
    options_.kv_lengths = lengths_;
  }
  if (mask == Mask::kPadding || mask == Mask::kLengths) {
    visible_pairs_ = static_cast<double>(shape.queries * kept);
  }
  if (mask == Mask::kWindow) {
    options_.window = {.left = kWindowLeft};
    visible_pairs_ = 0;
    for (int64_t i = 0; i < shape.queries; ++i) {
      visible_pairs_ += static_cast<double>(std::min(i, kWindowLeft) + 1);
    }
  }
  if (mask == Mask::kBias) {
    floats_ = random_floats(shape.queries * shape.keys, kMaskSeed);
    options_.bias = {floats_.data(), {shape.queries, shape.keys}};
  }
  if (mask == Mask::kAlibi) {
    floats_.resize(static_cast<size_t>(shape.heads));
    alibi_slopes(floats_);
    options_.alibi_slopes = floats_;
  }
}

std::vector<float> MaskInputs::additive() const {
  if (mask_ == Mask::kFull || mask_ == Mask::kCausal || mask_ == Mask::kWeights) return {};
  const float hidden = -std::numeric_limits<float>::infinity();
  const int64_t heads = mask_ == Mask::kAlibi ? shape_.heads : 1;
  std::vector<float> values;
  values.reserve(static_cast<size_t>(heads * shape_.queries * shape_.keys));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < shape_.queries; ++i) {
      const int64_t position = i + shape_.keys - shape_.queries;
      for (int64_t j = 0; j < shape_.keys; ++j) {
        const auto at = static_cast<size_t>(i * shape_.keys + j);
        float value = 0;
        if (mask_ == Mask::kBias) value = floats_[at];
        if (mask_ == Mask::kAlibi) {
          value = -floats_[static_cast<size_t>(h)] * static_cast<float>(std::abs(position - j));
        }
        if (mask_ == Mask::kWindow && j < position - kWindowLeft) value = hidden;
        if (mask_ == Mask::kLengths && j >= lengths_[0]) value = hidden;
        if (mask_ == Mask::kPadding && booleans_[static_cast<size_t>(j)] == 0) value = hidden;
        if ((mask_ == Mask::kBoolean || block_stride(mask_) > 0) && booleans_[at] == 0) {
          value = hidden;
        }
        values.push_back(value);
      }
    }
  }
  return values;
}

}  // namespace multihead::bench
