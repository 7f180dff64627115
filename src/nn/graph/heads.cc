// Operations on heads: kNormHeads, kRotate, kAttend, kScaleHeads.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/attention/transform.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "multihead/attention.h"
#include "nn/graph/attend_backward.h"
#include "nn/graph/kinds.h"
#include "nn/graph/probe.h"
#include "rules/rope.h"

namespace multihead::nn {

namespace {

// The gradient of an input that is the output's. Copies it, unless both have the same place.
void pass_gradient(const BackwardStep& step) {
  const Operation& op = *step.op;
  if (step.gradients.same_place(op.out, op.in)) return;
  engine::copy_rows(step.gradients.heads(op.out), step.gradients.heads(op.in), step.context);
}

}  // namespace

Status norm_heads_forward(const ForwardStep& step) {
  const NormParameters& norm = step.call.parameters->*step.op->norm;
  const NormKind kind{.rms = true, .eps = step.graph.norm.eps};
  if (step.graph.norms_all_heads) {
    return normalize(kind, step.in(), norm, step.out(), step.context);
  }
  const Tensor from = step.frame.heads(step.op->in), to = step.frame.heads(step.op->out);
  const auto rows_of = [&](const Tensor& heads, int64_t head) {
    return Tensor(heads.data + head * heads.strides[1], {step.call.rows(), heads.shape[3]},
                  {heads.strides[2], 1});
  };
  for (int64_t head = 0; head < from.shape[1]; ++head) {
    MULTIHEAD_TRY(normalize(kind, rows_of(from, head), norm, rows_of(to, head), step.context));
  }
  return {};
}

Status norm_heads_backward(const BackwardStep& step) {
  const Operation& op = *step.op;
  const Vector& gain = (step.call.parameters->*op.norm).weight;
  pass_gradient(step);
  const engine::Transform transform{.normalize = true,
                                    .gain = {gain.data, static_cast<size_t>(gain.size)},
                                    .eps = step.graph.norm.eps};
  Tensor x = step.values.heads(op.in), d = step.gradients.heads(op.in);
  if (step.graph.norms_all_heads) {
    for (Tensor* const heads : {&x, &d}) {
      heads->shape[3] *= heads->shape[1];
      heads->shape[1] = 1;
    }
  }
  const Vector d_gain =
      step.call.gradients == nullptr ? Vector() : (step.call.gradients->*op.norm).weight;
  std::vector<float> sum(static_cast<size_t>(d_gain.size));
  MULTIHEAD_TRY(engine::transform_back(x, transform, d, sum, step.context));
  for (size_t i = 0; i < sum.size(); ++i) d_gain.data[i] += sum[i];
  return {};
}

void rotate_heads(const Rotation& rotation, const Tensor& from, const Tensor& to,
                  const Context& context) {
  const int64_t batch = from.shape[0], heads = from.shape[1], tokens = from.shape[2];
  const int64_t width = from.shape[3];
  engine::over_rows(batch * tokens, heads * width, context, [&](int64_t first, int64_t end) {
    std::vector<float> negative(static_cast<size_t>(rotation.reversed ? rotation.pairs : 0));
    for (int64_t row = first; row < end; ++row) {
      const int64_t b = row / tokens, token = row % tokens;
      const float* const cos = rotation.cos + token * rotation.step;
      const float* sin = rotation.sin + token * rotation.step;
      if (rotation.reversed) {
        std::transform(sin, sin + rotation.pairs, negative.begin(),
                       [](float number) { return -number; });
        sin = negative.data();
      }
      const float* in = from.data + b * from.strides[0] + token * from.strides[2];
      float* out = to.data + b * to.strides[0] + token * to.strides[2];
      for (int64_t h = 0; h < heads; ++h, in += from.strides[1], out += to.strides[1]) {
        // In place the compiler vectorizes, because it knows which addresses are equal.
        if (in != out) std::copy_n(in, width, out);
        rules::rotate_vector(out, out, width, 2 * rotation.pairs, Rope::Style::kHalf, cos, sin);
      }
    }
  });
}

Status rotate_forward(const ForwardStep& step) {
  rotate_heads(step.call.rotation, step.frame.heads(step.op->in), step.frame.heads(step.op->out),
               step.context);
  return {};
}

Status rotate_backward(const BackwardStep& step) {
  Rotation back = step.call.rotation;
  back.reversed = true;
  rotate_heads(back, step.gradients.heads(step.op->out), step.gradients.heads(step.op->in),
               step.context);
  return {};
}

Status scale_heads_forward(const ForwardStep& step) {
  const Operation& op = *step.op;
  if (!step.frame.same_place(op.in, op.out)) {
    engine::copy_rows(step.frame.heads(op.in), step.frame.heads(op.out), step.context);
  }
  engine::scale_heads(step.frame.heads(op.out), step.call.head_scales, step.context);
  return {};
}

Status scale_heads_backward(const BackwardStep& step) {
  pass_gradient(step);
  engine::scale_heads(step.gradients.heads(step.op->in), step.call.head_scales, step.context);
  return {};
}

namespace {

using models::Site;

Status attend_cached(const ForwardStep& step, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& z) {
  const LayerCall& call = step.call;
  KVCache& cache = *call.cache;
  // A ring takes the tokens in pieces that leave it the keys of the window.
  const KVCacheConfig& config = cache.config();
  const int64_t most = config.layout == KVCacheConfig::Layout::kRing
                           ? config.capacity - call.attention->window.left
                           : call.tokens;
  for (int64_t first = 0; first < call.tokens; first += most) {
    const auto piece = [&](const Tensor& all) {
      Dims shape = all.shape;
      shape[2] = std::min(most, call.tokens - first);
      return Tensor(all.data + first * all.strides[2], shape, all.strides);
    };
    MULTIHEAD_TRY(cache.append(piece(k), piece(v), {}, &step.context));
    MULTIHEAD_TRY(cache.attend(piece(q), *call.attention, {.out = piece(z)}, step.context));
  }
  return {};
}

// The gradient of the attention's weights or scores, (batch, heads, tokens, tokens): of each
// alone, without a change of the others. 0 for keys that a query does not see.
Status weights_back(const BackwardStep& step, bool of_scores, const Tensor& out) {
  const Operation& op = *step.op;
  const LayerCall& call = step.call;
  const Tensor q = step.values.heads(op.in), k = step.values.heads(op.in2),
               v = step.values.heads(op.in3);
  const Tensor d_z = step.gradients.heads(op.out);
  const int64_t heads = q.shape[1], tokens = q.shape[2], group = heads / v.shape[1];
  MULTIHEAD_TRY(attention_scores(q, k, *call.attention, {.stage = ScoreStage::kMasked, .out = out},
                                 step.context));
  const auto width = static_cast<size_t>(v.shape[3]);
  std::vector<double> d_weights(static_cast<size_t>(tokens));
  for (int64_t row = 0; row < call.batch * heads * tokens; ++row) {
    const int64_t b = row / (heads * tokens), h = row / tokens % heads, token = row % tokens;
    float* const scores = out.data + row * tokens;
    const float* const d =
        d_z.data + b * d_z.strides[0] + h * d_z.strides[1] + token * d_z.strides[2];
    const float most = *std::max_element(scores, scores + tokens);
    double sum = 0, mean = 0;
    for (int64_t key = 0; key < tokens; ++key) {
      const float* const value =
          v.data + b * v.strides[0] + h / group * v.strides[1] + key * v.strides[2];
      double product = 0;
      for (size_t i = 0; i < width; ++i) product += static_cast<double>(d[i]) * value[i];
      const bool seen = std::isfinite(scores[key]);
      const double weight = seen ? std::exp(static_cast<double>(scores[key]) - most) : 0.0;
      d_weights[static_cast<size_t>(key)] = seen ? product : 0.0;
      sum += weight;
      mean += seen ? weight * product : 0.0;
    }
    for (int64_t key = 0; key < tokens; ++key) {
      double gradient = d_weights[static_cast<size_t>(key)];
      if (of_scores && sum > 0) {
        const bool seen = std::isfinite(scores[key]);
        const double weight = seen ? std::exp(static_cast<double>(scores[key]) - most) / sum : 0.0;
        gradient = weight * (gradient - mean / sum);
      }
      scores[key] = static_cast<float>(gradient);
    }
  }
  return {};
}

}  // namespace

Status attend_forward(const ForwardStep& step) {
  const Operation& op = *step.op;
  const LayerCall& call = step.call;
  const Tensor q = step.frame.heads(op.in), k = step.frame.heads(op.in2),
               v = step.frame.heads(op.in3), z = step.frame.heads(op.out);
  if (call.cache != nullptr) return attend_cached(step, q, k, v, z);
  if (call.probe != nullptr && changes_weights(*call.probe)) {
    return attend_changed(*call.probe, q, k, v, *call.attention, z, step.context);
  }
  std::vector<ScoreCapture> captures;
  std::vector<int32_t> heads;
  if (call.probe != nullptr) list_captures(*call.probe, captures, heads);
  return attention(q, k, v, *call.attention,
                   {.out = z, .lse = step.frame.lse(), .captures = captures}, step.context);
}

Status attend_backward(const BackwardStep& step) {
  const Operation& op = *step.op;
  if (step.probe != nullptr) {
    for (const models::GradientOutput& wanted : step.probe->outputs) {
      const bool scores = wanted.site == Site::kScores;
      if (wanted.layer != step.probe->layer || (!scores && wanted.site != Site::kPattern)) continue;
      MULTIHEAD_TRY(weights_back(step, scores, wanted.out));
    }
  }
  return attend_backward({.q = step.values.heads(op.in),
                          .k = step.values.heads(op.in2),
                          .v = step.values.heads(op.in3),
                          .options = *step.call.attention,
                          .z = step.values.heads(op.out),
                          .lse = step.values.lse(),
                          .d_z = step.gradients.heads(op.out),
                          .d_q = step.gradients.heads(op.in),
                          .d_k = step.gradients.heads(op.in2),
                          .d_v = step.gradients.heads(op.in3)},
                         step.context);
}

}  // namespace multihead::nn
