// One GPU case: its inputs in device memory, its calls, their ideal cost, and the check of the
// output.
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

// Several copies of an input array at different addresses. Calls use them in turns, so that a call
// does not find in a cache the data that the previous call read.
class RotatedArray {
 public:
  RotatedArray(const void* host, int64_t bytes, int copies);
  std::byte* copy(int which) const { return memory_.data() + stride_ * static_cast<size_t>(which); }

 private:
  size_t stride_;
  DeviceMemory memory_;
};

// Number of copies of inputs of `bytes` bytes: from 2 to 256, and together at least four times the
// L2 cache unless that takes more than 256.
int rotated_copies(int64_t bytes, int64_t l2_bytes);

// Runs attention() on tensors (forward and decode), attention_backward() alone, or decode() over a
// contiguous cache.
class DeviceWork {
 public:
  explicit DeviceWork(const Case& which);

  // Enqueues the next call, with the next copy of the inputs. Null: on the default stream.
  Status run(cuda::Stream stream = nullptr);

  // Ideal floating-point operations of one call: 4 d per visible pair of query and key, or 10 d for
  // the backward. A causal mask counts half of all pairs.
  double operations() const;
  // Bytes of keys and values that a call with one query must read, because reading limits its
  // speed; 0 for all other calls.
  double bytes() const;
  uint64_t workspace_bytes() const { return workspace_.bytes(); }
  // Returns the kernel that serves the case, and why.
  std::string explanation() const;

  // Returns the output (B, H, N, d) of the last call; for the backward, d_q.
  std::vector<float> output() const;
  // Largest difference of `output` from the library's f32 result on the CPU, from the same rounded
  // inputs. Covers the query heads of the last key/value head of the last batch entry.
  double error(const std::vector<float>& output) const;

  // Writes STEM.q, STEM.k and STEM.v as they are stored, `output` to STEM.f32, and the shape, the
  // dtypes and a causal flag to STEM.json. Returns false on failure.
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
  std::vector<DeviceMemory> of_options_;  // device copies of the arrays of options_
  AttentionOptions options_;
  DeviceMemory lengths_, firsts_;  // cache lengths and first tokens
  DeviceMemory out_, workspace_;
  struct Backward {
    Numbers d_out;
    DeviceMemory d_out_rows, lse, d_q, d_k, d_v;
  };
  std::optional<Backward> backward_;
};

}  // namespace multihead::bench
