// Gradients of the layers between attention: linear projections, norms, activations, embeddings,
// dropout of rows, cross-entropy. Shapes are checked already.
//
// Gradients of parameters are added to, so that micro-batches accumulate; gradients of inputs are
// overwritten, unless a call says otherwise. The number of threads does not change a bit: sums over
// rows are cut into chunks that only the shape decides, and the chunks are added in order.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/context.h"
#include "multihead/elementwise.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace multihead::engine {

// Of y = x W^T + bias. Row strides are free. Results may not overlap the operands or each other.
struct LinearBackward {
  ConstTensor x;       // (rows, in); read for d_weight only
  ConstTensor weight;  // (out, in); read for d_x only
  ConstTensor d_y;     // (rows, out)
  Tensor d_x = {};     // (rows, in), optional: d_y W
  bool adds_to_d_x = false;
  Tensor d_weight = {};     // (out, in), optional: += d_y^T x
  float* d_bias = nullptr;  // (out), optional: += sums of the columns of d_y
};
// Errors: kMemory.
[[nodiscard]] Status linear_backward(const LinearBackward& call, Context& context);

// Of layer_norm() (centred) and rms_norm(). Rows are dense.
struct NormBackward {
  const float* x;       // (rows, width)
  const float* weight;  // (width); null for 1
  const float* d_y;     // (rows, width)
  float* d_x;           // (rows, width); may be d_y if it is not added to
  bool adds_to_d_x;
  float* d_weight;  // (width), optional
  float* d_bias;    // (width), optional
  int64_t rows, width;
  float epsilon;
  bool centred;
};
// Errors: kMemory.
[[nodiscard]] Status norm_backward(const NormBackward& call, Context& context);

// Of y = activation(gate), or activation(gate) * x. All are `count` floats.
struct ActivationBackward {
  const float* gate;
  const float* x;  // null for none
  const float* d_y;
  float* d_gate;  // may be d_y
  float* d_x;     // with x only; may be d_y if d_gate is not
  int64_t count;
  Activation activation;
};
void activation_backward(const ActivationBackward& call, const Context& context);

// Of embed(). d_tokens (vocabulary, width) and d_positions (positions, width), each optional, are
// added to in the order of the tokens.
void embed_backward(std::span<const int32_t> tokens, const float* d_y, int64_t width,
                    int64_t first_position, int64_t sequence, float* d_tokens, float* d_positions,
                    const Context& context);

// Dropout of rows of numbers, by the rule of rules/dropout_mask.h. `site` tells the dropouts of a
// model from each other.
struct RowDropout {
  float probability;
  uint64_t seed;
  uint32_t site;
};
// y = x * mask / (1 - probability), dense (rows, width); y may be x. The same call is its backward.
void drop_rows(const float* x, const RowDropout& dropout, int64_t rows, int64_t width, float* y,
               const Context& context);
// y = a + x * mask / (1 - probability); y may be a or x.
void add_dropped(const float* a, const float* x, const RowDropout& dropout, int64_t rows,
                 int64_t width, float* y, const Context& context);

struct CrossEntropyResult {
  double loss_sum;
  int64_t counted;  // rows with a target
  int64_t correct;  // rows whose first largest logit is the target's
};
// Cross-entropy of softmax(logits) (rows, classes), row stride free. Rows with target -1 are not
// counted. d_logits, optional, of the same shape, becomes (softmax - onehot) * d_scale, and 0 in
// rows that are not counted; it may be logits. A row with NaN or +infinity has a loss of NaN.
CrossEntropyResult cross_entropy(const ConstTensor& logits, std::span<const int32_t> targets,
                                 const Tensor& d_logits, float d_scale, Context& context);

}  // namespace multihead::engine
