// Matrices of integers with scales of groups, as MLX, GPTQ and AWQ store them in several tensors.
// They are read as one tensor of floats.
//
// MLX (mlx.core.quantize, mode affine): q in X.weight (out, in * bits / 32), U32; a weight is
// q * scale + bias, with X.scales and X.biases (out, groups of inputs).
// GPTQ: q in X.qweight (in * bits / 32, out), I32; a weight is (q - zero - 1) * scale, with
// X.scales (groups, out), X.qzeros (groups, out * bits / 32) and, in any order of inputs, the group
// of each input in X.g_idx. The format gptq_v2 has no 1. AWQ (version gemm): q in X.qweight (in,
// out / 8), in the order 0, 2, 4, 6, 1, 3, 5, 7 of outputs; a weight is (q - zero) * scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "multihead/models.h"

namespace multihead::models {

struct GroupedWeights {
  enum class Kind : uint8_t { kMlx, kGptq, kAwq };
  // Places in the list of tensors, or kNone.
  static constexpr size_t kNone = ~size_t{0};
  size_t numbers = kNone, scales = kNone, zeros = kNone, order = kNone;
  Kind kind = Kind::kMlx;
  int64_t rows = 0, columns = 0, bits = 4;
  int64_t group = 0;  // inputs that share a scale
  int added_zero = 0;
  std::vector<std::byte> bytes[4];  // of those tensors, as far as they were given

  std::span<const size_t, 4> tensors() const { return std::span<const size_t, 4>(&numbers, 4); }
};

// Finds all such matrices among the tensors. For each, in the order of `groups`, a tensor
// "X.weight" is added at the end, whose type "groups" stands for floats. Errors: kFormat (tensors
// that do not fit together).
Status find_groups(const Config& config, std::vector<StoredTensor>& tensors,
                   std::vector<GroupedWeights>& groups);

// Bytes of a tensor of a group.
uint64_t group_bytes(const StoredTensor& tensor);

// Writes `count` rows from `first` on, (count, columns), when all bytes were given.
void read_groups(const GroupedWeights& weights, std::span<const StoredTensor> tensors,
                 int64_t first, int64_t count, float* to);

}  // namespace multihead::models
