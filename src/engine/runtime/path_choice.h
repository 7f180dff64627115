// The path that serves a call of attention(), its division into jobs, and why no other path was
// selected.
#pragma once

#include <cstdint>
#include <string>

#include "rules/geometry.h"

namespace multihead::engine {

enum class Path : uint8_t {
  kBlocks,      // query blocks times key blocks; supports all options
  kAmxBlocks,   // kBlocks with bf16 products on AMX; f32 again if a result is NaN
  kBf16Blocks,  // kBlocks with products of bf16 pairs; f32 again if a result is NaN
  kShortHeads,  // few keys and few options: less set-up per head
  kDecode,      // few query rows: splits the keys and merges the results
  kClosedForm,  // queries and keys have width 0: nothing is multiplied, see closed_form.h
};

// Reasons why a path does not serve a call.
enum class Objection : uint8_t {
  kNone,
  kNoWork,    // no rows or no output
  kFewRows,   // too few rows for AMX to be faster
  kManyRows,  // too many query rows per key/value head for decoding to be faster
  kPacked,    // one sequence of a varlen call
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
  kOption,          // an option that the path does not support
};

struct PathChoice {
  Path path = Path::kBlocks;
  // Reasons against the paths that are tried before the selected one. After kDecode no further path
  // is examined.
  Objection not_decode = Objection::kNone, not_amx = Objection::kNone, not_bf16 = Objection::kNone,
            not_short = Objection::kNone;
  rules::BlockGeometry blocks;  // with kDecode: used for captures only
  rules::SplitGeometry splits;  // only with kDecode

  int64_t jobs() const { return path == Path::kDecode ? splits.jobs : blocks.jobs; }
};

// Returns for example "blocks: 64 query rows of 1 heads, 256 keys at a time; not decode, since
// ...".
std::string explain(const PathChoice& choice);

// The kernel of a product with a matrix of parameters: bf16 on AMX, or f32.
struct LinearChoice {
  Objection not_amx = Objection::kNone;

  bool tiles() const { return not_amx == Objection::kNone; }
};

// Returns for example "products of f32; not AMX, since ...".
std::string explain(const LinearChoice& choice);

}  // namespace multihead::engine
