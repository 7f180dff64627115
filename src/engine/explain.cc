// Explains a plan in words: which path serves a call, and why the others do not.
#include <cstdint>
#include <string>

#include "cpu/kernels.h"
#include "engine/plan.h"

namespace multihead::engine {
namespace {

const char* words_of(Objection objection) {
  switch (objection) {
    case Objection::kNone:
      break;
    case Objection::kNoWork:
      return "there are no rows, or no output";
    case Objection::kManyRows:
      return "it has more query rows for each key/value head than decoding is faster for";
    case Objection::kPacked:
      return "its sequences are packed";
    case Objection::kDropout:
      return "it has dropout";
    case Objection::kCapture:
      return "scores, weights or the dropout mask are asked for";
    case Objection::kNotAsked:
      return "bf16_products is off";
    case Objection::kNoInstruction:
      return "this processor has no instruction for it";
    case Objection::kNotBf16:
      return "q, k and v are not all dense bf16 of an even width";
    case Objection::kNotDenseFloats:
      return "q, k, v and out are not all dense f32 rows of whole vectors";
    case Objection::kManyKeys:
      return "it has too many keys";
    case Objection::kBeyondCache:
      return "its operands do not fit in cache";
    case Objection::kOption:
      return "it has an option that this path does not know";
  }
  return "";
}

std::string count_of(int64_t count, const char* what) { return std::to_string(count) + what; }

}  // namespace

std::string explain(const AttentionPlan& plan) {
  const rules::BlockGeometry& blocks = plan.blocks;
  const auto unless = [](const char* path, Objection objection) {
    return std::string("; not ") + path + ", since " + words_of(objection);
  };
  if (plan.jobs() == 0) return "nothing to compute";
  if (plan.path == Path::kDecode) {
    return "decode: " + count_of(plan.splits.rows, " query rows for each key/value head, ") +
           count_of(plan.splits.splits, " splits of ") + count_of(plan.splits.split_keys, " keys");
  }
  std::string text = plan.path == Path::kShortHeads   ? "short heads: "
                     : plan.path == Path::kBf16Blocks ? "blocks of bf16 products: "
                                                      : "blocks: ";
  text += count_of(blocks.rows, " query rows of ") + count_of(blocks.heads, " heads, ") +
          count_of(blocks.key_block, " keys at a time") + unless("decode", plan.not_decode);
  if (plan.path == Path::kBf16Blocks) return text;
  text += unless("bf16 products", plan.not_bf16);
  return plan.path == Path::kShortHeads ? text : text + unless("short heads", plan.not_short);
}

}  // namespace multihead::engine
