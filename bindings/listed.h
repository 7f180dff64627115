// Named tensors that travel between C++ and JavaScript: the list and other results of the last
// call, and the state dict for the next load.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "multihead/multihead.h"
#include "results.h"

namespace multihead::bindings {

// Tensors that the last call has listed.
inline std::vector<ListedTensor> last_list;

// Result of the last evaluate() of an experiment. Released with the list.
inline Evaluation last_evaluation;
inline HeldOutSequences last_held_out;

// Tensors that were pushed for the next load.
inline StateDict pushed;

inline StateDict take_pushed() { return std::exchange(pushed, {}); }

// Lists a dict. A matrix that was loaded transposed is stored column by column.
inline void list(const StateDict& dict) {
  for (const auto& [name, tensor] : dict) {
    const bool by_columns = !(tensor.strides == contiguous_strides(tensor.shape));
    last_list.push_back({name, tensor.shape, tensor.data, by_columns});
  }
}

// Runs work that fills a dict, and lists the dict.
template <class Work>
int32_t run_listing(Work work) {
  return run([&] {
    StateDict dict;
    Status status = work(dict);
    if (status.ok()) list(dict);
    return status;
  });
}
template <class Work>
int32_t run_listing(const Arguments& from, Work work) {
  return from.complete() ? run_listing(std::move(work))
                         : static_cast<int32_t>(CallStatus::kOtherArguments);
}

}  // namespace multihead::bindings
