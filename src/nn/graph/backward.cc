// Plays the operations of a layer in reverse: from the gradient of the output to those of all
// values. With g for the gradient of an operation's output, in the order of Operation::Kind:
//
//   norm         gradient of layer_norm() or rms_norm(), see engine/layers/gradients.h
//   project      d_in = g W
//   norm heads   of each head, likewise
//   rotate       d_in = g, rotated back
//   attend       attend_backward()
//   scale heads  d_in = head_scales * g
//   scale        d_in = number * g
//   clamp        d_in = g where it changes nothing, else 0
//   activate     d_in = f'(in) in2 * g, d_in2 = f(in) * g
//   add          d_in = d_in2 = g
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "cpu/elementwise/gradients.h"
#include "engine/attention/transform.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "engine/runtime/scratch.h"
#include "multihead/attention.h"
#include "nn/call_memory.h"
#include "nn/graph/attend_backward.h"
#include "nn/graph/call.h"
#include "nn/graph/probe.h"

namespace multihead::nn {
namespace {

using models::Site;

// Rows of a matrix of another type than f32 that are converted at a time.
constexpr int64_t kPanel = 256;

class Backward {
 public:
  Backward(const Graph& graph, const Frame& values, const Frame& gradients, const LayerCall& call,
           Context& context)
      : graph_(graph), values_(values), d_(gradients), call_(call), context_(context) {
    mark(graph.output);
  }

  Status run(const Operation& op) {
    switch (op.kind) {
      case Operation::Kind::kNorm:
        return norm_back(op);
      case Operation::Kind::kProject:
        return project_back(op);
      case Operation::Kind::kNormHeads:
        return norm_heads_back(op);
      case Operation::Kind::kRotate:
        rotate_back(op);
        break;
      case Operation::Kind::kAttend:
        MULTIHEAD_TRY(attend_back(op));
        break;
      case Operation::Kind::kScaleHeads:
        copy(op.out, op.in);
        engine::scale_heads(d_.heads(op.in), call_.scales_of(op), context_);
        break;
      case Operation::Kind::kScale:
        copy(op.out, op.in);
        engine::scale_heads(d_.heads(op.in), {&op.number, 1}, context_);
        break;
      case Operation::Kind::kScaleColumns: {
        copy(op.out, op.in);
        const Tensor d = d_.rows(op.in);
        const Vector& factors = call_.parameters->*op.vector;
        for (int64_t i = 0; i < d.shape.elements(); ++i) {
          const int64_t row = i / factors.size, column = i % factors.size;
          d.data[row * d.strides[0] + column] *= factors.data[column];
        }
        break;
      }
      case Operation::Kind::kClamp:
        copy(op.out, op.in);
        over_heads(values_.heads(op.in), d_.heads(op.in), [&](float in, float& d) {
          if (std::abs(in) > op.number) d = 0.0F;
        });
        break;
      case Operation::Kind::kActivate:
        activate_back(op);
        break;
      case Operation::Kind::kAdd:
        copy(op.out, op.in);
        copy(op.out, op.in2);
        break;
    }
    for (const ValueId id : {op.in, op.in2, op.in3}) {
      if (id != kNoValue) mark(id);
    }
    return {};
  }

  // The gradient of the attention's weights or scores, (batch, heads, tokens, tokens): of each
  // alone, without a change of the others. 0 for keys that a query does not see.
  Status weights_back(const Operation& op, bool of_scores, const Tensor& out) const {
    const Tensor q = values_.heads(op.in), k = values_.heads(op.in2), v = values_.heads(op.in3);
    const Tensor d_z = d_.heads(op.out);
    const int64_t heads = q.shape[1], tokens = q.shape[2], group = heads / v.shape[1];
    MULTIHEAD_TRY(attention_scores(q, k, call_.attention,
                                   {.stage = ScoreStage::kMasked, .out = out}, context_));
    const auto width = static_cast<size_t>(v.shape[3]);
    std::vector<double> d_weights(static_cast<size_t>(tokens));
    for (int64_t row = 0; row < call_.batch * heads * tokens; ++row) {
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
          const double weight =
              seen ? std::exp(static_cast<double>(scores[key]) - most) / sum : 0.0;
          gradient = weight * (gradient - mean / sum);
        }
        scores[key] = static_cast<float>(gradient);
      }
    }
    return {};
  }

 private:
  // A place whose gradient has a part already gets the next one added.
  bool has_part(ValueId id) const {
    for (const ValueId written : written_) {
      if (d_.same_place(written, id)) return true;
    }
    return false;
  }
  void mark(ValueId id) {
    if (!has_part(id)) written_.push_back(id);
  }

  void copy(ValueId from, ValueId to) const {
    if (d_.same_place(from, to)) return;
    engine::copy_rows(d_.heads(from), d_.heads(to), context_);
  }

  Status norm_back(const Operation& op) {
    const NormParameters& norm = call_.parameters->*op.norm;
    const NormParameters* const d_norm =
        call_.gradients == nullptr ? nullptr : &(call_.gradients->*op.norm);
    const Tensor x = values_.rows(op.in), d_x = d_.rows(op.in);
    MULTIHEAD_TRY(
        engine::norm_backward({.x = x.data,
                               .weight = norm.weight.data,
                               .d_y = d_.rows(op.out).data,
                               .d_x = d_x.data,
                               .adds_to_d_x = !d_.same_place(op.in, op.out) && has_part(op.in),
                               .d_weight = d_norm == nullptr ? nullptr : d_norm->weight.data,
                               .d_bias = d_norm == nullptr ? nullptr : d_norm->bias.data,
                               .rows = x.shape[0],
                               .width = x.shape[1],
                               .eps = graph_.norm.eps,
                               .centered = !graph_.norm.rms},
                              context_));
    mark(op.in);
    return {};
  }

  Status project_back(const Operation& op) {
    const bool adds = has_part(op.in);
    mark(op.in);
    if (call_.gradients != nullptr) {
      MULTIHEAD_TRY(add_gradients(values_.rows(op.in), d_.rows(op.out),
                                  call_.gradients->*op.projection, context_));
    }
    return project_backward((call_.parameters->*op.projection).weight, d_.rows(op.out),
                            d_.rows(op.in), adds, context_);
  }

  Status norm_heads_back(const Operation& op) {
    const Vector& gain = (call_.parameters->*op.norm).weight;
    copy(op.out, op.in);
    mark(op.in);
    const engine::Transform transform{.normalize = true,
                                      .gain = {gain.data, static_cast<size_t>(gain.size)},
                                      .eps = graph_.norm.eps};
    Tensor x = values_.heads(op.in), d = d_.heads(op.in);
    if (graph_.norms_all_heads) {
      for (Tensor* const heads : {&x, &d}) {
        heads->shape[3] *= heads->shape[1];
        heads->shape[1] = 1;
      }
    }
    const Vector d_gain =
        call_.gradients == nullptr ? Vector() : (call_.gradients->*op.norm).weight;
    std::vector<float> sum(static_cast<size_t>(d_gain.size));
    MULTIHEAD_TRY(engine::transform_back(x, transform, d, sum, context_));
    for (size_t i = 0; i < sum.size(); ++i) d_gain.data[i] += sum[i];
    return {};
  }

  void rotate_back(const Operation& op) const {
    Rotation back = call_.rotation;
    back.reversed = true;
    rotate_heads(back, d_.heads(op.out), d_.heads(op.in), context_);
  }

  Status attend_back(const Operation& op) const {
    return attend_backward({.q = values_.heads(op.in),
                            .k = values_.heads(op.in2),
                            .v = values_.heads(op.in3),
                            .options = call_.attention,
                            .z = values_.heads(op.out),
                            .lse = values_.lse(),
                            .d_z = d_.heads(op.out),
                            .d_q = d_.heads(op.in),
                            .d_k = d_.heads(op.in2),
                            .d_v = d_.heads(op.in3)},
                           context_);
  }

  void activate_back(const Operation& op) const {
    const bool gated = op.in2 != kNoValue;
    const Tensor gate = values_.rows(op.in), d_y = d_.rows(op.out), d_gate = d_.rows(op.in);
    const Tensor x = gated ? values_.rows(op.in2) : Tensor(),
                 d_x = gated ? d_.rows(op.in2) : Tensor();
    const int64_t width = gate.shape[1];
    engine::over_rows(gate.shape[0], width, context_, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        cpu::activation_backward_range({.gate = gate.data + row * gate.strides[0],
                                        .x = gated ? x.data + row * x.strides[0] : nullptr,
                                        .d_y = d_y.data + row * d_y.strides[0],
                                        .d_gate = d_gate.data + row * d_gate.strides[0],
                                        .d_x = gated ? d_x.data + row * d_x.strides[0] : nullptr,
                                        .count = width,
                                        .activation = graph_.activation},
                                       0, width);
        // The square of relu(x) as relu(x) * x: both factors have the same half of the gradient.
        for (int64_t i = 0; op.in2 == op.in && i < width; ++i) {
          d_gate.data[row * d_gate.strides[0] + i] *= 2.0F;
        }
      }
    });
  }

  const Graph& graph_;
  const Frame& values_;
  const Frame& d_;
  const LayerCall& call_;
  Context& context_;
  std::vector<ValueId> written_;  // places whose gradient has a part
};

}  // namespace

Status add_gradients(const ConstTensor& x, const ConstTensor& d_y, const Projection& gradient,
                     Context& context) {
  const WeightMatrix& matrix = gradient.weight;
  if (matrix.data == nullptr && !gradient.bias.given()) return {};
  engine::LinearBackward back{.x = x, .weight = {}, .d_y = d_y, .d_bias = gradient.bias.data};
  if (matrix.data != nullptr) {
    // Memory of gradients, which is written.
    back.d_weight = {static_cast<float*>(const_cast<void*>(matrix.data)),
                     {matrix.rows, matrix.columns}};
  }
  return engine::linear_backward(back, context);
}

Status project_backward(const WeightMatrix& weight, const Tensor& d_y, const Tensor& d_x,
                        bool adds_to_d_x, Context& context) {
  engine::LinearBackward back{
      .x = {}, .weight = {}, .d_y = d_y, .d_x = d_x, .adds_to_d_x = adds_to_d_x};
  if (weight.type == WeightType::kF32) {
    back.weight = {static_cast<const float*>(weight.data), {weight.rows, weight.columns}};
    return engine::linear_backward(back, context);
  }
  engine::Buffer memory;
  float* panel = nullptr;
  MULTIHEAD_TRY(reserve_floats(memory, kPanel * weight.columns, panel));
  for (int64_t first = 0; first < weight.rows; first += kPanel) {
    const int64_t count = std::min(kPanel, weight.rows - first);
    std::vector<int32_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
    const Tensor part(panel, {count, weight.columns});
    MULTIHEAD_TRY(dequantize(weight, rows, part));
    back.weight = part;
    back.d_y = {d_y.data + first, {d_y.shape[0], count}, d_y.strides};
    MULTIHEAD_TRY(engine::linear_backward(back, context));
    back.adds_to_d_x = true;
  }
  return {};
}

Status backward(const Graph& graph, const Frame& values, const Frame& gradients,
                const LayerCall& call, int64_t layer,
                std::span<const models::GradientOutput> wanted, Context& context) {
  Backward player(graph, values, gradients, call, context);
  const auto copy_wanted = [&](ValueId id) {
    const Value& value = graph.value(id);
    for (const models::GradientOutput& capture : wanted) {
      if (capture.layer != layer || value.site != capture.site) continue;
      const Tensor from = gradients.heads(id);
      const Dims &shape = from.shape, &to = capture.out.strides;
      const bool heads = capture.out.shape.rank() == 4;
      engine::copy_rows(from, {capture.out.data, shape, {to[0], heads ? to[2] : 0, to[1], 1}},
                        context);
    }
  };
  for (size_t at = graph.operations.size(); at-- > 0;) {
    const Operation& op = graph.operations[at];
    // All operations that read this operation's output have been played.
    for (size_t id = 0; id < graph.values.size(); ++id) {
      if (graph.values[id].writer == static_cast<int>(at)) copy_wanted(static_cast<ValueId>(id));
    }
    if (op.kind == Operation::Kind::kAttend) {
      for (const models::GradientOutput& capture : wanted) {
        const bool scores = capture.site == Site::kScores;
        if (capture.layer != layer || (!scores && capture.site != Site::kPattern)) continue;
        MULTIHEAD_TRY(player.weights_back(op, scores, capture.out));
      }
    }
    if (acts(op, call)) MULTIHEAD_TRY(player.run(op));
  }
  copy_wanted(graph.input);
  return {};
}

}  // namespace multihead::nn
