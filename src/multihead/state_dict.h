// Parameters by name, as torch.nn.Module.state_dict() has them.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "multihead/export.h"
#include "multihead/tensor.h"

namespace MULTIHEAD_PUBLIC multihead {

// Views of f32, f16 or bf16 memory that somebody else keeps; any strides.
using StateDict = std::map<std::string, ConstAnyTensor, std::less<>>;

}  // namespace multihead
