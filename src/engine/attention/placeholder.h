// Placeholders for data that a prepared operation gets only when it runs.
#pragma once

#include "engine/error/error.h"

namespace multihead::engine {

// Placeholder for every address, because the checks refuse a null address of a tensor with
// elements. A plan decides nothing by addresses, except what PlannedCall::set_values() decides
// again.
inline char data_to_come;

template <class TensorLike>
TensorLike with_address(TensorLike tensor) {
  if (tensor.given()) tensor.data = reinterpret_cast<decltype(tensor.data)>(&data_to_come);
  return tensor;
}

template <class TensorLike>
bool has_elements(const TensorLike& tensor) {
  return tensor.given() && tensor.shape.elements() != 0;
}

inline Status no_address(Name argument) { return shape_error(argument, Message::kAddress); }

}  // namespace multihead::engine
