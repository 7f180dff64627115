// Kernel selection: the kernel that serves a call of attention() or linear(), the call's tiling,
// and why no other kernel was selected.
#pragma once

#include <cstdint>
#include <string>

#include "multihead/precision.h"
#include "multihead/tensor.h"
#include "rules/tiling.h"

namespace multihead::engine {

enum class Kernel : uint8_t {
  kBlocks,      // query blocks times key blocks; supports all options
  kAmxBlocks,   // kBlocks with bf16 products on AMX; f32 again if a result is NaN
  kBf16Blocks,  // kBlocks with products of bf16 pairs; f32 again if a result is NaN
  kShortHeads,  // few keys and few options: less set-up per head
  kDecode,      // few query rows: splits the keys and merges the results
  kClosedForm,  // queries and keys have width 0: nothing is multiplied, see closed_form.h
};

// Reasons why a kernel does not serve a call, and their words in an explanation.
#define MULTIHEAD_REASONS(REASON)                                                                 \
  REASON(kNone, "")                                                                               \
  REASON(kNoWork, "there are no rows, or no output")                                              \
  REASON(kFewRows, "it has too few rows")                                                         \
  REASON(kManyRows, "it has more query rows for each key/value head than decoding is faster for") \
  REASON(kVarlen, "its sequences are packed")                                                     \
  REASON(kDropout, "it has dropout")                                                              \
  REASON(kCapture, "scores, weights or the dropout mask are asked for")                           \
  REASON(kNotAsked, "precision is f32")                                                           \
  REASON(kNoInstruction, "this processor has no instruction for it")                              \
  REASON(kSlower, "this processor's instruction for it is slower than f32's")                     \
  REASON(kNotCompiled, "this build has no instruction for it")                                    \
  REASON(kNotEnabled, "the operating system does not save its registers")                         \
  REASON(kDenied, "the operating system refused it")                                              \
  REASON(kNotFloats, "q, k and v are not all f32 or bf16")                                        \
  REASON(kWeightType, "the weight is neither f32 nor bf16")                                       \
  REASON(kNotBf16, "q, k and v are not all dense bf16 of an even width")                          \
  REASON(kNotDenseFloats, "q, k, v and out are not all dense f32 rows of whole vectors")          \
  REASON(kManyKeys, "it has too many keys")                                                       \
  REASON(kBeyondCache, "its operands do not fit in cache")                                        \
  REASON(kOption, "it has an option that this path does not know")

enum class Unsupported : uint8_t {
#define REASON(name, words) name,
  MULTIHEAD_REASONS(REASON)
#undef REASON
};

struct KernelChoice {
  Kernel kernel = Kernel::kBlocks;
  // Reasons against the kernels that are tried before the selected one. After kDecode no further
  // kernel is examined.
  Unsupported not_decode = Unsupported::kNone, not_amx = Unsupported::kNone,
              not_bf16 = Unsupported::kNone, not_short = Unsupported::kNone;
  rules::BlockTiling blocks;  // with kDecode: used for captures only
  rules::SplitTiling splits;  // only with kDecode

  bool has_work() const { return (kernel == Kernel::kDecode ? splits.tiles : blocks.jobs) != 0; }
};

// Returns for example "blocks: 64 query rows of 1 heads, 256 keys at a time; not decode, since
// ...".
std::string explain(const KernelChoice& choice);

// The kernel of a product with a matrix of parameters: bf16 on AMX, or f32.
struct LinearChoice {
  Unsupported not_amx = Unsupported::kNone;

  bool tiles() const { return not_amx == Unsupported::kNone; }
};

// Returns for example "products of f32; not AMX, since ...".
std::string explain(const LinearChoice& choice);

// Selects the kernel for a product of `rows` rows with a weight of type `weight`, and for its
// backward: AMX if bf16 was requested and this processor supports it.
LinearChoice choose_linear(Precision precision, int64_t rows, DType weight);

// Returns why this process cannot use AMX; kNone if it can. Asks the system for permission.
Unsupported why_not_amx_here();

}  // namespace multihead::engine
