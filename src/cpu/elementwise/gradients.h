// Interface of the kernels in gradients.cc and cross_entropy.cc. Dense rows of floats; arguments
// are already checked.
#pragma once

#include <cstdint>

#include "multihead/elementwise.h"
#include "rules/shared.h"

namespace multihead::cpu {

// Backward of layer_norm() (if `centered`) and rms_norm(). Rows are dense.
struct NormBackward {
  const float* x;       // (rows, width)
  const float* weight;  // (width); null for 1
  const float* d_y;     // (rows, width)
  float* d_x;           // (rows, width); may be d_y unless added to
  bool adds_to_d_x;
  float* d_weight;  // (width), optional, +=
  float* d_bias;    // (width), optional, +=
  int64_t rows, width;
  float eps;
  bool centered;
};

// Backward of y = activation(gate) or y = activation(gate) * x. All arrays have `count` floats.
struct ActivationBackward {
  const float* gate;
  const float* x;  // null for none
  const float* d_y;
  float* d_gate;  // may be d_y
  float* d_x;     // with x only; may be d_y unless d_gate is
  int64_t count;
  Activation activation;
};

// Backward of embed_rows().
struct EmbedBackward {
  const int32_t* tokens;
  const float* d_y;  // (rows, width)
  int64_t rows, width;
  int64_t first_position, sequence;
  float* d_tokens;     // (vocabulary, width), optional, +=
  float* d_positions;  // (positions, width), optional, +=
};

// Dropout of rows of numbers, by the rule of rules/dropout_mask.h. `site` distinguishes the
// dropouts of a model.
struct RowDropout {
  float probability;
  uint64_t seed;
  uint32_t site;
};

// y = x * mask / (1 - probability), plus `a` if given. y may be a or x.
struct DropRows {
  const float* a;  // null for none
  const float* x;
  float* y;
  int64_t width;
  RowDropout dropout;
};

struct CrossEntropyResult {
  double loss_sum;
  int64_t counted;  // rows with a target
  int64_t correct;  // rows whose first largest logit is at the target
};

struct CrossEntropy {
  const float* logits;
  const int32_t* targets;  // -1 for rows that are not counted
  float* d_logits;         // null for none; may be logits
  int64_t stride, d_stride;
  int64_t classes;
  float d_scale;
};

// Rows first .. end - 1.
void norm_backward_rows(const NormBackward& call, int64_t first, int64_t end);
void drop_rows(const DropRows& call, int64_t first, int64_t end);
CrossEntropyResult cross_entropy_rows(const CrossEntropy& call, int64_t first, int64_t end);

// Numbers first .. end - 1.
MULTIHEAD_SHARED void activation_backward_range(const ActivationBackward& call, int64_t first,
                                                int64_t end);

// Columns first .. end - 1 of all rows, in the rows' order.
void embed_backward_columns(const EmbedBackward& call, int64_t first, int64_t end);

}  // namespace multihead::cpu
