// The kinds of operations. g is the gradient of an operation's output.
#pragma once

#include <cstdint>

#include "nn/graph/call.h"
#include "nn/graph/graph.h"
#include "rules/shared.h"

namespace multihead::nn {

MULTIHEAD_SHARED Status norm_forward(const ForwardStep& step);
MULTIHEAD_SHARED Status norm_backward(const BackwardStep& step);
Status matrix_forward(const ForwardStep& step);
MULTIHEAD_SHARED Status matrix_backward(const BackwardStep& step);
Status project_forward(const ForwardStep& step);
Status project_backward(const BackwardStep& step);
Status norm_heads_forward(const ForwardStep& step);
Status norm_heads_backward(const BackwardStep& step);
Status rotate_forward(const ForwardStep& step);
Status rotate_backward(const BackwardStep& step);
Status attend_forward(const ForwardStep& step);
Status attend_backward(const BackwardStep& step);
Status scale_heads_forward(const ForwardStep& step);
Status scale_heads_backward(const BackwardStep& step);
MULTIHEAD_SHARED Status activate_forward(const ForwardStep& step);
Status activate_share_forward(const ForwardStep& step);
MULTIHEAD_SHARED Status activate_backward(const BackwardStep& step);
MULTIHEAD_SHARED Status add_forward(const ForwardStep& step);
MULTIHEAD_SHARED Status add_backward(const BackwardStep& step);

inline bool has_norm(const Operation& op, const LayerCall& call) {
  return (call.parameters->*op.norm).given();
}
inline bool has_rotation(const Operation&, const LayerCall& call) { return call.rotation.given(); }
inline bool has_head_scales(const Operation&, const LayerCall& call) {
  return !call.head_scales.empty();
}

// out = norm(in)
inline constexpr Kind kNorm{norm_forward, norm_backward, has_norm, true};
// out = in W^T + b, d_in = g W; of any matrix, or of f32 with the call's precision
inline constexpr Kind kProject{project_forward, project_backward, nullptr, true};
inline constexpr Kind kProjectF32{matrix_forward, matrix_backward, nullptr, true};
// out = RMS norm of each head of `in`
inline constexpr Kind kNormHeads{norm_heads_forward, norm_heads_backward, has_norm, true};
// out = rotary embedding of `in`, d_in = g, rotated back
inline constexpr Kind kRotate{rotate_forward, rotate_backward, has_rotation};
// out = attention of queries in, keys in2, values in3
inline constexpr Kind kAttend{
    .forward = attend_forward, .backward = attend_backward, .attends = true};
// out = head_scales * in, d_in = head_scales * g
inline constexpr Kind kScaleHeads{scale_heads_forward, scale_heads_backward, has_head_scales};
// out = f(in), or f(in) * in2 with d_in = f'(in) in2 * g, d_in2 = f(in) * g
inline constexpr Kind kActivate{activate_forward, activate_backward, nullptr, true};
// The same, of a share if this member of a team has one of the matrices before it
inline constexpr Kind kActivateShare{activate_share_forward, activate_backward, nullptr, true};
// out = in + in2, d_in = d_in2 = g
inline constexpr Kind kAdd{.forward = add_forward, .backward = add_backward, .is_sum = true};

// Columns begin to end - 1 of kActivate.
MULTIHEAD_SHARED Status activate_columns(const ForwardStep& step, int64_t begin, int64_t end);

// Rotates heads (batch, heads, tokens, width) by the tokens' angles; `to` may be `from`.
void rotate_heads(const Rotation& rotation, const Tensor& from, const Tensor& to,
                  const Context& context);

}  // namespace multihead::nn
