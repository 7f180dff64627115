/// \file
/// Parameters by name, as in torch.nn.Module.state_dict().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "multihead/export.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Views of f32, f16 or bf16 memory, with any strides. The owner must keep it alive.
using StateDict = std::map<std::string, ConstAnyTensor, std::less<>>;

/// The parameters of a module, which it has loaded or initialized: one contiguous block of floats,
/// in the order of the model. Copies of the module share it.
class ModuleBase {
 public:
  /// Views of the parameters, under the names they were loaded with. They are valid as long as this
  /// module or a copy that shares the parameters lives. Errors: kOption if there are none.
  [[nodiscard]] Status state_dict(StateDict& dict) const;
  /// Number of elements of all parameters; 0 if there are none. A layer of a Transformer has the
  /// parameters of the whole model.
  int64_t num_parameters() const;
  /// Given num_parameters() floats in the order of the parameters, for example gradients, returns a
  /// view for each parameter, keyed by name. Errors: kOption if there are no parameters, kShape.
  [[nodiscard]] Status named(std::span<const float> block, StateDict& dict) const;

  struct Memory;  ///< for the library's own use

 protected:
  ModuleBase() = default;  ///< a module without parameters

  std::shared_ptr<Memory> memory_;  ///< the parameters, which copies of the module share
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
