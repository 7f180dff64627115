// Explains a plan in words: the path or kernel of a call, and why no other path was selected.
#include <cstdint>
#include <string>

#include "engine/runtime/path_choice.h"

namespace multihead::engine {
namespace {

const char* words_of(Objection objection) {
  switch (objection) {
    case Objection::kNone:
      break;
    case Objection::kNoWork:
      return "there are no rows, or no output";
    case Objection::kFewRows:
      return "it has too few rows";
    case Objection::kManyRows:
      return "it has more query rows for each key/value head than decoding is faster for";
    case Objection::kPacked:
      return "its sequences are packed";
    case Objection::kDropout:
      return "it has dropout";
    case Objection::kCapture:
      return "scores, weights or the dropout mask are asked for";
    case Objection::kNotAsked:
      return "precision is f32";
    case Objection::kNoInstruction:
      return "this processor has no instruction for it";
    case Objection::kSlower:
      return "this processor's instruction for it is slower than f32's";
    case Objection::kNotCompiled:
      return "this build has no instruction for it";
    case Objection::kNotEnabled:
      return "the operating system does not save its registers";
    case Objection::kDenied:
      return "the operating system refused it";
    case Objection::kNotFloats:
      return "q, k and v are not all f32 or bf16";
    case Objection::kWeightType:
      return "the weight is neither f32 nor bf16";
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

std::string unless(const char* path, Objection objection) {
  return std::string("; not ") + path + ", since " + words_of(objection);
}

}  // namespace

std::string explain(const LinearChoice& choice) {
  if (choice.tiles()) return "products of bf16 on AMX";
  return "products of f32" + unless("AMX", choice.not_amx);
}

std::string explain(const PathChoice& choice) {
  const rules::BlockGeometry& blocks = choice.blocks;
  if (choice.jobs() == 0) return "nothing to compute";
  if (choice.path == Path::kClosedForm) return "closed form: queries and keys have width 0";
  if (choice.path == Path::kDecode) {
    return "decode: " + count_of(choice.splits.rows, " query rows for each key/value head, ") +
           count_of(choice.splits.splits, " splits of ") +
           count_of(choice.splits.split_keys, " keys");
  }
  std::string text = choice.path == Path::kShortHeads   ? "short heads: "
                     : choice.path == Path::kAmxBlocks  ? "blocks of bf16 products on AMX: "
                     : choice.path == Path::kBf16Blocks ? "blocks of bf16 products: "
                                                        : "blocks: ";
  text += count_of(blocks.rows, " query rows of ") + count_of(blocks.heads, " heads, ") +
          count_of(blocks.key_block, " keys at a time") + unless("decode", choice.not_decode);
  if (choice.path == Path::kAmxBlocks) return text;
  text += unless("AMX", choice.not_amx);
  if (choice.path == Path::kBf16Blocks) return text;
  text += unless("bf16 products", choice.not_bf16);
  return choice.path == Path::kShortHeads ? text : text + unless("short heads", choice.not_short);
}

}  // namespace multihead::engine
