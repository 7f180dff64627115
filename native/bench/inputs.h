// Inputs that the native and the JavaScript benchmarks generate identically, so that outputs can be
// compared.
#pragma once

#include <cstdint>
#include <vector>

#include "cases.h"
#include "multihead/attention.h"

namespace multihead::bench {

// Numbers in [-1, 1) from a linear congruential generator (constants of Numerical Recipes), which
// is one line in any language. Its low bits are not random, which does not matter here.
std::vector<float> random_floats(int64_t count, uint32_t seed);
inline constexpr uint32_t kQuerySeed = 1, kKeySeed = 2, kValueSeed = 3, kMaskSeed = 4,
                          kGradientSeed = 5;

// Numbers rounded to a dtype, and the same numbers as floats.
struct Numbers {
  std::vector<float> floats;  // after rounding to the dtype
  std::vector<uint16_t> halves;
  DType dtype = DType::kF32;

  Numbers(int64_t count, uint32_t seed, DType dtype);
  ConstAnyTensor view(const Dims& shape, const Dims& strides) const;
};
DType dtype_of(const char* name);
// Returns kBf16 for the name kBf16Precision.
Precision precision_of(const char* name);

// The options of a mask, and the memory that they point to.
class MaskInputs {
 public:
  MaskInputs(const Shape& shape, Mask mask);
  MaskInputs(const MaskInputs&) = delete;
  MaskInputs& operator=(const MaskInputs&) = delete;

  const AttentionOptions& options() const { return options_; }
  // Visible pairs of query and key per head and batch entry. A causal mask counts half of all
  // pairs.
  double visible_pairs() const { return visible_pairs_; }
  // Returns the non-causal part of the mask as a bias (H or 1, N_q, N_k); empty if there is none.
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
