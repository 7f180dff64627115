// Normally distributed numbers that are a pure function of (seed, stream, index): the same bits in
// every build, native or WebAssembly, with or without fused multiply-add.
#pragma once

#include <cstdint>

namespace multihead::rules {

// A stream of numbers. Number i does not depend on how many numbers each call takes.
class NormalStream {
 public:
  NormalStream(uint64_t seed, uint64_t stream);

  // Writes the next `count` numbers, times `standard_deviation`, rounded to float.
  void fill(double standard_deviation, float* to, int64_t count);
  // Skips the next `count` numbers, in about half the time.
  void skip(int64_t count);

 private:
  // Finds the next point (u_, v_) in the unit circle; returns u_^2 + v_^2.
  double next_point();

  uint64_t key_, stream_, index_ = 0;
  double u_ = 0.0, v_ = 0.0;
  double square_ = 0.0;  // u_^2 + v_^2 while v_ is not used yet; otherwise 0
};

}  // namespace multihead::rules
