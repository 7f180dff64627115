// Random MultiHeadAttention modules, and their results by definition.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "multihead/multi_head_attention.h"
#include "support/random_case.h"

namespace multihead::testing {

// Returns multiples of 1/16 in [-1, 1]. Their products, and sums of some hundred products, are
// exact in float, so the oracle's projections are exact.
std::vector<float> sixteenths(Random& random, int64_t count);

// Parameters with the names and shapes of the module's state dict.
struct ModuleParameters {
  std::map<std::string, std::vector<float>> values;
  StateDict dict;
  const std::vector<float>& at(const std::string& name) const { return values.at(name); }
};
ModuleParameters random_parameters(const MultiHeadAttentionConfig& config, Random& random,
                                   bool separate = false);

// Creates a module with these parameters; the test fails if the module is refused.
MultiHeadAttention module_of(const MultiHeadAttentionConfig& config, const StateDict& dict);

// Batch-first inputs (B, N, width); key and value are empty in self-attention.
struct ModuleTokens {
  int64_t batch = 0, queries = 0, keys = 0;
  std::vector<float> query = {}, key = {}, value = {};
};

struct ModuleExpectation {
  std::vector<double> out;      // (B, N_q, out_dim)
  std::vector<double> weights;  // (B, H, N_q, N)
  std::vector<double> merged;   // (B, N_q, H * value_dim)
};

// Returns the result by definition, in double. `visible` (B, H, N_q, N_k) and `bias` (same shape,
// or empty) are for the given keys. Uses scale, softcap, sinks, rope and alibi_slopes of `options`.
ModuleExpectation expected_of(const MultiHeadAttentionConfig& config,
                              const ModuleParameters& parameters, const ModuleTokens& tokens,
                              const std::vector<uint8_t>& visible, const std::vector<float>& bias,
                              const AttentionOptions& options);

// Returns the values of one step of a trace.
inline std::vector<float> vector_of(const TraceValues& values) {
  return {values.begin(), values.end()};
}

}  // namespace multihead::testing
