#include "engine/runtime/kernel_choice.h"

#include <cstdint>
#include <string>

#include "cpu/amx/amx.h"
#include "cpu/target.h"

namespace multihead::engine {
namespace {

constexpr const char* kWords[] = {
#define REASON(name, words) words,
    MULTIHEAD_REASONS(REASON)
#undef REASON
};

std::string count_of(int64_t count, const char* what) { return std::to_string(count) + what; }

std::string unless(const char* kernel, Unsupported reason) {
  return std::string("; not ") + kernel + ", since " + kWords[static_cast<int>(reason)];
}

}  // namespace

std::string explain(const LinearChoice& choice) {
  if (choice.tiles()) return "products of bf16 on AMX";
  return "products of f32" + unless("AMX", choice.not_amx);
}

std::string explain(const KernelChoice& choice) {
  const rules::BlockTiling& blocks = choice.blocks;
  if (!choice.has_work()) return "nothing to compute";
  if (choice.kernel == Kernel::kClosedForm) return "closed form: queries and keys have width 0";
  if (choice.kernel == Kernel::kDecode) {
    return "decode: " + count_of(choice.splits.rows, " query rows for each key/value head, ") +
           count_of(choice.splits.splits, " splits of ") +
           count_of(choice.splits.split_keys, " keys");
  }
  std::string text = choice.kernel == Kernel::kShortHeads   ? "short heads: "
                     : choice.kernel == Kernel::kAmxBlocks  ? "blocks of bf16 products on AMX: "
                     : choice.kernel == Kernel::kBf16Blocks ? "blocks of bf16 products: "
                                                            : "blocks: ";
  text += count_of(blocks.rows, " query rows of ") + count_of(blocks.heads, " heads, ") +
          count_of(blocks.key_block, " keys at a time") + unless("decode", choice.not_decode);
  if (choice.kernel == Kernel::kAmxBlocks) return text;
  text += unless("AMX", choice.not_amx);
  if (choice.kernel == Kernel::kBf16Blocks) return text;
  text += unless("bf16 products", choice.not_bf16);
  return choice.kernel == Kernel::kShortHeads ? text
                                              : text + unless("short heads", choice.not_short);
}

Unsupported why_not_amx_here() {
  switch (cpu::amx_state()) {
    case cpu::AmxState::kReady:
      return Unsupported::kNone;
    case cpu::AmxState::kNotCompiled:
      return Unsupported::kNotCompiled;
    case cpu::AmxState::kNoInstruction:
      return Unsupported::kNoInstruction;
    case cpu::AmxState::kNotEnabled:
      return Unsupported::kNotEnabled;
    case cpu::AmxState::kPermissionDenied:
      break;
  }
  return Unsupported::kDenied;
}

LinearChoice choose_linear(Precision precision, int64_t rows, DType weight) {
  // With fewer rows the product is bound by reading the weights once, with or without AMX.
  constexpr int64_t kLeastRows = 33;
  if (precision == Precision::kF32) return {Unsupported::kNotAsked};
  if (rows < kLeastRows) return {Unsupported::kFewRows};
  if (weight != DType::kF32 && weight != DType::kBF16) return {Unsupported::kWeightType};
  if (!cpu::target_traits().bf16_tiles) return {Unsupported::kNoInstruction};
  return {why_not_amx_here()};
}

}  // namespace multihead::engine
