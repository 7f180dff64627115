/// \file
/// Parameters by name, as in torch.nn.Module.state_dict().
#pragma once

#include <functional>
#include <map>
#include <string>

#include "multihead/export.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Views of f32, f16 or bf16 memory, with any strides. The owner must keep it alive.
using StateDict = std::map<std::string, ConstAnyTensor, std::less<>>;

}  // namespace multihead
MULTIHEAD_PUBLIC_END
