// Records the steps of a module's call for a Trace.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "multihead/attention.h"
#include "multihead/context.h"
#include "multihead/trace.h"
#include "nn/attention/sequence.h"

namespace multihead::nn {

// Checks that trace_names() has every wanted name. `trace` may be null.
Status validate_trace(const Trace* trace);

// The steps of one call, in one block of memory that the trace then owns.
class Tracer {
 public:
  // A null trace records nothing.
  Tracer(Trace* trace, const Context& context) : trace_(trace), context_(context) {}

  bool wants(std::string_view name) const { return trace_ != nullptr && trace_->wants(name); }

  // Reserves memory for steps of `floats` floats in all. Errors: kMemory.
  Status begin(double floats);

  // Adds a step of zeros, to be written by the caller.
  Tensor add(const char* name, const Dims& shape);
  void add_sequence(const char* name, const Sequence<const float>& x);
  // x (B, H, N, d), with any strides except that of the last axis, which is 1.
  void add_heads(const char* name, const ConstTensor& x);

  // Replaces the steps of the trace.
  void end();

 private:
  Trace* trace_;
  const Context& context_;
  std::vector<TraceStep> steps_;
  std::shared_ptr<float> next_;  // within the memory of all steps
};

}  // namespace multihead::nn
