// The parameters of a module: named, f32, in one block of memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/scratch.h"
#include "multihead/state_dict.h"
#include "multihead/status.h"

namespace multihead::nn {

class Parameters {
 public:
  enum class Stored : uint8_t {
    kAsIs,
    kTransposed,  // (in, out) in the state dict, (out, in) here: Conv1D of the GPT-2 code
  };

  // `shape` is that of the state dict. Parameters lie side by side in the order of these calls.
  void add(std::string name, const Dims& shape, Stored stored = Stored::kAsIs);

  // Copies every parameter. Missing, unexpected and misshaped tensors are all named in one kShape
  // error; those that `ignored` accepts are none. Nothing is changed by an error.
  Status load(const StateDict& dict, const std::function<bool(std::string_view)>& ignored = {});

  // Of no rank where there is no such parameter. Valid while this object lives.
  ConstTensor find(std::string_view name) const;

  // Views under the names and in the shapes of load().
  StateDict state_dict() const;

 private:
  struct Item {
    std::string name;
    Dims shape;
    Stored stored;
    int64_t offset;
  };
  std::vector<Item> items_;
  int64_t floats_ = 0;
  engine::Buffer memory_;
};

// "a, b and 3 more"-like lists stay readable.
std::string joined(const std::vector<std::string>& words);

}  // namespace multihead::nn
