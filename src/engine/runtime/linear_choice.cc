#include "engine/runtime/linear_choice.h"

#include <cstdint>

#include "cpu/amx/amx.h"
#include "cpu/kernels.h"

namespace multihead::engine {

Objection objection_to_amx_here() {
  switch (cpu::amx_state()) {
    case cpu::AmxState::kReady:
      return Objection::kNone;
    case cpu::AmxState::kNotCompiled:
      return Objection::kNotCompiled;
    case cpu::AmxState::kNoInstruction:
      return Objection::kNoInstruction;
    case cpu::AmxState::kNotEnabled:
      return Objection::kNotEnabled;
    case cpu::AmxState::kPermissionDenied:
      break;
  }
  return Objection::kDenied;
}

LinearChoice choose_linear(Precision precision, int64_t rows, DType weight) {
  // With fewer rows the product is bound by reading the weights once, with or without AMX.
  constexpr int64_t kLeastRows = 33;
  if (precision == Precision::kF32) return {Objection::kNotAsked};
  if (rows < kLeastRows) return {Objection::kFewRows};
  if (weight != DType::kF32 && weight != DType::kBF16) return {Objection::kWeightType};
  if (!cpu::target_traits().bf16_tiles) return {Objection::kNoInstruction};
  return {objection_to_amx_here()};
}

}  // namespace multihead::engine
