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

// Checks that every wanted name is in trace_names(). `trace` may be null.
Status validate_trace(const Trace* trace);

// Records the steps of one call in one block of memory, which the trace then owns.
class Tracer {
 public:
  // Records nothing if `trace` is null.
  Tracer(Trace* trace, const Context& context) : trace_(trace), context_(context) {}

  bool wants(std::string_view name) const { return trace_ != nullptr && trace_->wants(name); }

  // Reserves memory for steps of `floats` floats in total. Errors: kMemory.
  Status begin(double floats);

  // Adds a step of zeros, which the caller then writes.
  Tensor add(const char* name, const Dims& shape);
  void add_sequence(const char* name, const Sequence<const float>& x);
  // Adds x (B, H, N, d). The stride of the last axis must be 1.
  void add_heads(const char* name, const ConstTensor& x);

  // Moves the recorded steps into the trace.
  void end();

 private:
  Trace* trace_;
  const Context& context_;
  std::vector<TraceStep> steps_;
  std::shared_ptr<float> next_;  // first free float in the memory of the steps
};

}  // namespace multihead::nn
