// Handles: numbers that JavaScript uses to refer to objects of the core.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "multihead/multihead.h"

namespace multihead::bindings {

// Maps handles, which start at 1, to objects. One list holds objects of all types, so that its code
// exists once.
class Handles {
 public:
  void* at(int32_t handle) const { return objects_[static_cast<size_t>(handle - 1)]; }
  int32_t add(void* object) {
    auto place = std::find(objects_.begin(), objects_.end(), nullptr);
    if (place == objects_.end()) place = objects_.insert(place, nullptr);
    *place = object;
    return static_cast<int32_t>(place - objects_.begin()) + 1;
  }
  void clear(int32_t handle) { objects_[static_cast<size_t>(handle - 1)] = nullptr; }

 private:
  std::vector<void*> objects_;  // null marks a free place
};

inline Handles handles;

template <class T>
T& at(int32_t handle) {
  return *static_cast<T*>(handles.at(handle));
}

template <class T>
void release_object(int32_t handle) {
  delete &at<T>(handle);
  handles.clear(handle);
}

enum class ModuleKind : uint8_t { kAttention, kBlock, kTransformer };

// The object of a module's handle, in the order of ModuleKind. module_release() deletes the module;
// an experiment owns the transformer of its handle itself.
using AnyModule = std::variant<MultiHeadAttention*, TransformerBlock*, Transformer*>;

inline Transformer& transformer_at(int32_t handle) {
  return *std::get<Transformer*>(at<AnyModule>(handle));
}

}  // namespace multihead::bindings
