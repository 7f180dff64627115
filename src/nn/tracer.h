// Writes the steps of a module's call into a Trace.
#pragma once

#include <cstdint>
#include <string_view>

#include "multihead/attention.h"
#include "multihead/trace.h"
#include "nn/sequence.h"

namespace multihead::nn {

// Every name is one of trace_names(). A null trace is fine.
Status validate_trace(const Trace* trace);

class Tracer {
 public:
  // A null trace wants nothing.
  explicit Tracer(Trace* trace) : trace_(trace) {}

  bool wants(std::string_view name) const { return trace_ != nullptr && trace_->wants(name); }

  // Steps are std::vectors: asking once for their sum turns exhaustion into a Status. Steps that
  // are already there go.
  Status begin(int64_t floats);

  // Zeros of that shape, to be written.
  Tensor add(const char* name, const Dims& shape);
  void add_sequence(const char* name, const Sequence<const float>& x);
  // (B, H, N, d) with any strides but the last.
  void add_heads(const char* name, const ConstTensor& x);

 private:
  Trace* trace_;
};

}  // namespace multihead::nn
