// One case on a GPU: inputs in memory of the device, the calls, their ideal cost, and how the
// output is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cases.h"
#include "device.h"
#include "inputs.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace multihead::bench {

// Copies of an array of inputs at different addresses: used in turns, so that a call does not find
// in a cache what the call before has read.
class RotatedArray {
 public:
  RotatedArray(const void* host, int64_t bytes, int copies);
  std::byte* copy(int which) const { return memory_.data() + stride_ * static_cast<size_t>(which); }

 private:
  size_t stride_;
  DeviceMemory memory_;
};

// How many copies of inputs of so many bytes are used in turns: 2 to 256, together at least four
// times as large as the L2 cache where 256 are enough for that.
int rotated_copies(int64_t bytes, int64_t l2_bytes);

// attention() of tensors (forward and decode), attention_backward() alone, or decode() over a
// contiguous cache.
class DeviceWork {
 public:
  explicit DeviceWork(const Case& which);

  // Enqueues the next call, on the next copy of the inputs.
  Status run();

  // Ideal floating-point operations of one call: 4 d for each pair of query and key that the mask
  // leaves visible, half of all pairs when causal; 10 d of backward.
  double operations() const;
  // Bytes of keys and values that one call must read, if reading them limits its speed (one query);
  // else 0.
  double bytes() const;
  uint64_t workspace_bytes() const { return workspace_.bytes(); }
  // Which kernel serves it and why.
  std::string explanation() const;

  // The output (B, H, N, d) of the last call; of backward d_q.
  std::vector<float> output() const;
  // Largest difference of `output` from the result of the library on the CPU, in f32 from the same
  // rounded inputs, over the query heads of the last key/value head of the last batch entry.
  double error(const std::vector<float>& output) const;

  // Writes STEM.q, STEM.k and STEM.v as they are stored, `output` to STEM.f32, and the shape, the
  // dtypes and whether the case is causal to STEM.json. False if that fails.
  bool save(const std::string& stem, const std::vector<float>& output) const;

 private:
  ConstAnyTensor q() const;
  ConstAnyTensor keys(const Numbers& numbers, const RotatedArray& arrays) const;
  AttentionOutputs outputs() const;
  void prepare_backward();
  AttentionResults results() const;
  ConstAnyTensor d_out() const;
  AttentionGradients gradients() const;
  cuda::CacheView cache() const;

  Case which_;
  Shape shape_;
  Dims q_shape_, k_shape_;
  Numbers q_, k_, v_;
  MaskInputs mask_;
  int copies_, copy_ = 0;
  RotatedArray q_rows_, k_rows_, v_rows_;
  std::vector<DeviceMemory> of_options_;  // arrays that options_ names
  AttentionOptions options_;
  DeviceMemory lengths_, firsts_;  // of a cache
  DeviceMemory out_, workspace_;
  struct Backward {
    Numbers d_out;
    DeviceMemory d_out_rows, lse, d_q, d_k, d_v;
  };
  std::optional<Backward> backward_;
};

}  // namespace multihead::bench
