// Which path serves a call of attention(), how it is cut, and why the other paths do not serve it.
#pragma once

#include <cstdint>
#include <string>

#include "rules/geometry.h"

namespace multihead::engine {

enum class Path : uint8_t {
  kBlocks,      // blocks of query rows times blocks of keys; supports everything
  kAmxBlocks,   // the same with products of bf16 tiles; kBlocks again if a result is NaN
  kBf16Blocks,  // the same with products of bf16 pairs; kBlocks again if a result is NaN
  kShortHeads,  // few keys, few options: less set-up for each head
  kDecode,      // few query rows: the keys are split, and the results merged
  kClosedForm,  // queries and keys have width 0: nothing is multiplied, see closed_form.h
};

// Why a path does not serve a call.
enum class Objection : uint8_t {
  kNone,
  kNoWork,    // no rows or no output
  kFewRows,   // too few rows for AMX to be faster
  kManyRows,  // too many query rows per key/value head for decoding to be faster
  kPacked,    // sequences of different lengths, whose jobs run side by side
  kDropout,
  kCapture,         // scores, weights or the dropout mask are requested
  kNotAsked,        // precision is kF32
  kNoInstruction,   // this processor has no such instruction
  kSlower,          // this processor's bf16 instruction is slower than that of f32
  kNotCompiled,     // the library is compiled without the instruction
  kNotEnabled,      // the operating system does not save AMX's registers
  kDenied,          // the operating system refused the use of AMX
  kNotFloats,       // q, k or v is neither f32 nor bf16
  kWeightType,      // the weight is neither f32 nor bf16
  kNotBf16,         // q, k or v is not dense bf16, or d_k is odd
  kNotDenseFloats,  // q, k, v or out is not dense f32 in whole vectors
  kManyKeys,        // more keys than one step of the online softmax
  kBeyondCache,     // operands too large for the caches
  kOption,          // an option that the path does not support
};

struct PathChoice {
  Path path = Path::kBlocks;
  // Why the earlier paths do not serve the call; with kDecode the later ones are not examined.
  Objection not_decode = Objection::kNone, not_amx = Objection::kNone, not_bf16 = Objection::kNone,
            not_short = Objection::kNone;
  rules::BlockGeometry blocks;  // with kDecode: for captures
  rules::SplitGeometry splits;  // only with kDecode

  int64_t jobs() const { return path == Path::kDecode ? splits.jobs : blocks.jobs; }
};

// "blocks of 64 query rows and 256 keys; not decode: ...", to explain a call's time.
std::string explain(const PathChoice& choice);

// Which kernel multiplies by a matrix of parameters: products of bf16 tiles on AMX, or f32.
struct LinearChoice {
  Objection not_amx = Objection::kNone;

  bool tiles() const { return not_amx == Objection::kNone; }
};

// "products of f32; not AMX, since ...".
std::string explain(const LinearChoice& choice);

}  // namespace multihead::engine
