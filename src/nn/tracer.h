// Writes the steps of a module's call into a Trace.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "multihead/attention.h"
#include "multihead/trace.h"
#include "nn/sequence.h"

namespace multihead::nn {

// Every name is one of trace_names(). A null trace is fine.
Status validate_trace(const Trace* trace);

// Collects the steps of one call: in one piece of memory, which the trace then keeps.
class Tracer {
 public:
  // A null trace wants nothing.
  explicit Tracer(Trace* trace) : trace_(trace) {}

  bool wants(std::string_view name) const { return trace_ != nullptr && trace_->wants(name); }

  // Makes room for steps of `floats` numbers in all. Errors: kMemory.
  Status begin(double floats);

  // Zeros of that shape, to be written.
  Tensor add(const char* name, const Dims& shape);
  void add_sequence(const char* name, const Sequence<const float>& x);
  // (B, H, N, d) with any strides but the last.
  void add_heads(const char* name, const ConstTensor& x);

  // Gives the steps to the trace, which has kept its own until now.
  void end();

 private:
  Trace* trace_;
  std::vector<TraceStep> steps_;
  std::shared_ptr<float> next_;  // within the memory of all steps
};

}  // namespace multihead::nn
