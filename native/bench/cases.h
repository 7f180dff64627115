// The benchmark cases and their names: op/shape/mask/dtype/threads:N, and op/shape/mask/dtype/cuda
// on a GPU. bindings/bench/cases.json lists them, for this program and for the package.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace multihead::bench {

// Shapes, named after models that use them.
struct Shape {
  const char* name;
  int64_t batch, heads, kv_heads, queries, keys, width;
  bool tokens_first = false;  // (B, N, H, d) in memory
  // Number of packed sequences with batch 1, and the length of the shortest; the longest has
  // `queries` tokens. 0 sequences: one call of attention() for `batch` sequences.
  int64_t sequences = 0, shortest = 0;
};

enum class Mask : uint8_t {
  kFull,
  kCausal,
  kBoolean,  // each pair visible with probability 1/2: nothing can be skipped
  kPadding,  // boolean (B, 1, 1, N_k), hides the last quarter of the keys
  kLengths,  // hides the last quarter of the keys by kv_lengths
  kWindow,   // causal, and at most 128 tokens back
  kBias,     // (N_q, N_k), dense
  kAlibi,    // causal
  kWeights,  // no mask; returns the weights too
  kBlocks2,  // boolean, every 2nd, 3rd or 6th block of 192 keys visible
  kBlocks3,
  kBlocks6,
};
const char* name_of(Mask mask);
constexpr bool is_causal(Mask mask) {
  return mask == Mask::kCausal || mask == Mask::kWindow || mask == Mask::kAlibi;
}

enum class Op : uint8_t {
  kForward,   // attention(), or attention_varlen() for packed sequences
  kBackward,  // kForward, then attention_backward() or attention_varlen_backward()
  kDecode,    // attention() with one query
  kCache,     // KVCache::attend() with one query
  kAppend,    // KVCache::append() of all keys to an empty cache; the dtype is the cache's
  kMerge,     // merge_attention() of the rows of two results
  kModule,    // MultiHeadAttention
  kStep,      // Transformer::step() with one token
  kTrain,     // Trainer::step(); `width` is the width of a head
  kGemm,      // linear() for `queries` rows of `width`, with `keys` outputs
  kLinear,    // the same with a WeightMatrix, whose type the dtype is
};
const char* name_of(Op op);

// dtype name for bf16 inputs with AttentionOptions::precision kBf16.
inline constexpr const char* kBf16Precision = "bf16-precision";

inline constexpr int kOnDevice = 0;

struct Case {
  Op op;
  Shape shape;
  Mask mask;
  const char* dtype;  // type of k and v; with a cache, q and the output are f32
  int threads;        // or kOnDevice: on a GPU
  std::string name() const;
};

// Returns every CPU case, once for each number of threads.
std::vector<Case> all_cases(const std::vector<int>& threads);

// Returns every GPU case.
std::vector<Case> all_device_cases();
// Names of the cases of a report, without threads.
std::vector<std::string> report_names();

}  // namespace multihead::bench
