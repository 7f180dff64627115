/// \file
/// Element type of the factors in products.
#pragma once

#include <cstdint>

#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Type that the factors of a product are converted to. Sums are f32 in both cases.
enum class Precision : uint8_t {
  kF32,  ///< f32; bf16 and f16 operands are converted, which is exact
  /// bf16 if this CPU has instructions that make it faster, otherwise f32: see
  /// AttentionOptions::precision and linear(). The result then depends on the CPU. On Linux, the
  /// first such call on a CPU with AMX asks for its registers; sigaltstack() then refuses stacks
  /// that have no room for them (about 11 kB).
  kBf16,
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
