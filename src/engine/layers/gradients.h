// Gradients of the layers around attention: linear projections, norms, embeddings, cross-entropy.
// Shapes are checked already.
//
// Parameter gradients are added to, so that micro-batches accumulate; input gradients are
// overwritten unless a comment below says otherwise. Sums over rows are cut into chunks that depend
// only on the shape and are added in order, so the number of threads does not change a bit.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/elementwise/gradients.h"
#include "multihead/context.h"
#include "multihead/precision.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "rules/shared.h"

namespace multihead::engine {

// Backward of y = x W^T + bias. Row strides are free. Results may not overlap the operands or each
// other.
//
// `precision` is linear()'s option: with AMX, the elements of d_y, W and x are rounded to bf16
// before the products, which changes each product by a relative error of up to 2^-7. d_bias is
// summed in f32.
struct LinearBackward {
  ConstTensor x;       // (rows, in); read for d_weight only
  ConstTensor weight;  // (out, in); read for d_x only
  ConstTensor d_y;     // (rows, out)
  Tensor d_x = {};     // (rows, in), optional: d_y W
  bool adds_to_d_x = false;
  Tensor d_weight = {};     // (out, in), optional: += d_y^T x
  float* d_bias = nullptr;  // (out), optional: += sums of the columns of d_y
  Precision precision = Precision::kF32;
};
// Errors: kMemory.
[[nodiscard]] MULTIHEAD_SHARED Status linear_backward(const LinearBackward& call, Context& context);

// cpu/elementwise/gradients.h documents the members of the following calls.

// Errors: kMemory.
[[nodiscard]] MULTIHEAD_SHARED Status norm_backward(const cpu::NormBackward& call,
                                                    Context& context);

// Adds to d_tokens and d_positions in the order of the tokens.
void embed_backward(const cpu::EmbedBackward& call, const Context& context);

// Cross-entropy of softmax(logits) (rows, classes); the row stride is free. Rows with target -1 are
// not counted. d_logits (optional, same shape, may be logits) becomes (softmax - onehot) * d_scale,
// and 0 in rows that are not counted. A row with a NaN or an infinity has a loss of NaN.
MULTIHEAD_SHARED cpu::CrossEntropyResult cross_entropy(const ConstTensor& logits,
                                                       std::span<const int32_t> targets,
                                                       const Tensor& d_logits, float d_scale,
                                                       Context& context);

}  // namespace multihead::engine
