// Normally distributed numbers that are a pure function of (seed, stream, index): the same bits in
// every build, native or WebAssembly, with or without fused multiply-add.
#pragma once

#include <cstdint>

namespace multihead::rules {

// A stream of numbers. Number i is the same however many numbers are taken at a time.
class NormalStream {
 public:
  NormalStream(uint64_t seed, uint64_t stream);

  // The next `count` numbers, times `standard_deviation`, rounded to float.
  void fill(double standard_deviation, float* to, int64_t count);
  // Leaves out the next `count` numbers, in about half the time.
  void skip(int64_t count);

 private:
  // The next point in the unit circle; gives its distance from the centre, squared.
  double next_point();

  uint64_t key_, stream_, index_ = 0;
  double u_ = 0.0, v_ = 0.0;
  double square_ = 0.0;  // of the point of which v is still to come; 0 for none
};

}  // namespace multihead::rules
