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

// Reasons why a kernel does not serve a call.
enum class Unsupported : uint8_t {
  kNone,
  kNoWork,    // no rows or no output
  kFewRows,   // too few rows for AMX to be faster
  kManyRows,  // too many query rows per key/value head for decoding to be faster
  kVarlen,    // one sequence of a varlen call
  kDropout,
  kCapture,         // scores, weights or the dropout mask are requested
  kNotAsked,        // precision is kF32
  kNoInstruction,   // this processor has no such instruction
  kSlower,          // this processor's bf16 instruction is slower than its f32 instruction
  kNotCompiled,     // the library is compiled without the instruction
  kNotEnabled,      // the operating system does not save AMX's registers
  kDenied,          // the operating system refused the use of AMX
  kNotFloats,       // q, k or v is of a type other than f32 and bf16
  kWeightType,      // the weight is of a type other than f32 and bf16
  kNotBf16,         // q, k or v is not dense bf16, or d_k is odd
  kNotDenseFloats,  // q, k, v or out is not dense f32 in whole vectors
  kManyKeys,        // more keys than one step of the online softmax
  kBeyondCache,     // operands too large for the caches
  kOption,          // an option that the kernel does not support
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

// Returns why this process cannot use AMX; kNone if it can. Requests permission from the operating
// system.
Unsupported why_not_amx_here();

}  // namespace multihead::engine
