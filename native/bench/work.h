// The operations of the benchmarks: how to run each, its ideal cost, and the check of its output.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cases.h"
#include "multihead/context.h"
#include "multihead/status.h"

namespace multihead::bench {

// Runs the operation with another library, into an output of the size of multihead's.
struct Peer {
  const char* name;
  std::function<void(float* out)> run;
};

class Work {
 public:
  virtual ~Work() = default;

  virtual Status run(Context& context) = 0;
  virtual std::span<const float> output() const = 0;

  // Ideal floating-point operations of one run.
  virtual double operations() const = 0;
  // Bytes of keys and values, of weights, or of both (a step) that one run must read, if reading
  // limits its speed; else 0.
  virtual double bytes() const { return 0; }
  // Returns the kernels of attention() and of products that serve the case, and why; may be empty.
  virtual std::string explanation() { return {}; }
  // Largest difference of the output from the float64 oracle, on a sample.
  virtual double error() const = 0;

  // Other libraries that run the same operation; they refer to this object.
  virtual std::vector<Peer> peers() { return {}; }
};

std::unique_ptr<Work> make_attention(const Case& which);  // attention() and decode
std::unique_ptr<Work> make_backward(const Case& which);
std::unique_ptr<Work> make_cache(const Case& which);
std::unique_ptr<Work> make_append(const Case& which);
std::unique_ptr<Work> make_merge(const Case& which);
std::unique_ptr<Work> make_module(const Case& which);
std::unique_ptr<Work> make_step(const Case& which);
std::unique_ptr<Work> make_gemm(const Case& which);
std::unique_ptr<Work> make_linear(const Case& which);
std::unique_ptr<Work> make_train(const Case& which);
std::unique_ptr<Work> make_varlen(const Case& which);

// Makes any of the works above.
std::unique_ptr<Work> make_work(const Case& which);

}  // namespace multihead::bench
