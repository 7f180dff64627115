// The arrays that a module's forward() keeps for its backward().
#pragma once

#include <cstdint>
#include <new>
#include <utility>

#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "multihead/activations.h"
#include "multihead/status.h"
#include "nn/call_memory.h"

namespace multihead {
namespace nn {

// Arrays in one block of memory, and the call that filled them. `Call` is what must be equal in
// forward() and backward(), for example the shape of the input.
template <class Call>
class KeptArrays {
 public:
  // Reserves the arrays that lay_out(arena) takes, for a call with parameters of this version.
  // Errors: kMemory.
  template <class LayOut>
  Status begin(uint64_t version, const Call& call, LayOut&& lay_out) {
    discard();
    MULTIHEAD_TRY(reserve(memory_, std::forward<LayOut>(lay_out)));
    version_ = version;
    call_ = call;
    return {};
  }
  // Until the next end(), the arrays belong to no call.
  void discard() { filled_ = false; }
  // Marks all arrays as filled.
  void end() { filled_ = true; }
  // True if an equal call, with parameters of this version, filled the arrays.
  bool belong_to(uint64_t version, const Call& call) const {
    return filled_ && version == version_ && call == call_;
  }
  void* data() const { return memory_.data(); }
  int64_t bytes() const { return static_cast<int64_t>(memory_.bytes()); }

 private:
  engine::Buffer memory_;
  uint64_t version_ = 0;
  Call call_ = {};
  bool filled_ = false;
};

struct ActivationsAccess {
  // Null if no call has filled the activations.
  template <class Kept>
  static const Kept* find(const Activations<Kept>& activations) {
    return activations.kept_.get();
  }
  // Allocates what the activations hold, unless they have it already, from these arguments. Errors:
  // kMemory.
  template <class Kept, class... Arguments>
  static Status make(Activations<Kept>& activations, Kept*& kept, Arguments... arguments) {
    if (activations.kept_ == nullptr)
      activations.kept_.reset(new (std::nothrow) Kept(arguments...));
    kept = activations.kept_.get();
    return kept == nullptr ? Status::out_of_memory(sizeof(Kept)) : Status();
  }
  static bool recomputes(const TransformerActivations& activations) {
    return activations.recompute_;
  }
};

}  // namespace nn

// Each module instantiates these for its own arrays.
template <class Kept>
Activations<Kept>::Activations() = default;
template <class Kept>
Activations<Kept>::~Activations() = default;
template <class Kept>
Activations<Kept>::Activations(Activations&&) noexcept = default;
template <class Kept>
Activations<Kept>& Activations<Kept>::operator=(Activations&&) noexcept = default;
template <class Kept>
int64_t Activations<Kept>::bytes() const {
  return kept_ == nullptr ? 0 : kept_->bytes();
}

}  // namespace multihead
