// Inputs that every runner makes the same way, here and in JavaScript, so that outputs can be
// compared between them.
#pragma once

#include <cstdint>
#include <vector>

#include "cases.h"
#include "multihead/attention.h"

namespace multihead::bench {

// In [-1, 1), by a linear congruential generator (Numerical Recipes' constants): one line in any
// language, and attention does not care about its low bits.
std::vector<float> random_floats(int64_t count, uint32_t seed);
inline constexpr uint32_t kQuerySeed = 1, kKeySeed = 2, kValueSeed = 3, kMaskSeed = 4;

// Floats, and the same numbers rounded to another type.
struct Numbers {
  std::vector<float> floats;  // as rounded
  std::vector<uint16_t> halves;
  DType dtype = DType::kF32;

  Numbers(int64_t count, uint32_t seed, DType dtype);
  ConstAnyTensor view(const Dims& shape, const Dims& strides) const;
};
DType dtype_of(const char* name);

// A mask's options and the memory that they point to.
class MaskInputs {
 public:
  MaskInputs(const Shape& shape, Mask mask);
  MaskInputs(const MaskInputs&) = delete;
  MaskInputs& operator=(const MaskInputs&) = delete;

  const AttentionOptions& options() const { return options_; }
  // Pairs of query and key that attention needs to look at, of one head of one batch entry;
  // half of all when causal.
  double visible_pairs() const { return visible_pairs_; }
  // (H or 1, N_q, N_k) to add to the scores for the same result without causal; empty for none.
  std::vector<float> additive() const;

 private:
  Shape shape_;
  Mask mask_;
  AttentionOptions options_;
  double visible_pairs_;
  std::vector<uint8_t> booleans_;
  std::vector<float> floats_;
  std::vector<int32_t> lengths_;
};

}  // namespace multihead::bench
