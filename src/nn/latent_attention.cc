#include "multihead/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/enumerators.h"
#include "engine/guard.h"
#include "engine/scratch.h"
#include "engine/validate.h"
#include "multihead/linear.h"

namespace multihead {
namespace {

struct Sizes {
  int64_t batch, heads, queries, keys, nope, rope, rank, value;
};

Status validate(const LatentAttentionInputs& in, const AttentionOptions& options,
                const AttentionOutputs& outputs, Sizes& s) {
  using engine::Axes;
  using engine::Message;
  using engine::Name;
  using engine::option_error;
  using engine::shape_error;
  using engine::validate_exact;
  using engine::validate_rank;
  for (const Status& status : {validate_rank(Name::kQNope, Axes::kQNope, in.q_nope, 4),
                               validate_rank(Name::kQRope, Axes::kQRope, in.q_rope, 4),
                               validate_rank(Name::kLatent, Axes::kLatent, in.latent, 3),
                               validate_rank(Name::kWUv, Axes::kWUv, in.w_uv, 3)}) {
    if (!status.ok()) return status;
  }
  s = {.batch = in.q_nope.shape[0],
       .heads = in.q_nope.shape[1],
       .queries = in.q_nope.shape[2],
       .keys = in.latent.shape[1],
       .nope = in.q_nope.shape[3],
       .rope = in.q_rope.shape[3],
       .rank = in.latent.shape[2],
       .value = in.w_uv.shape[1]};
  for (const Status& status :
       {validate_exact(Name::kQNope, Axes::kQNope, in.q_nope, in.q_nope.shape),
        validate_exact(Name::kQRope, Axes::kQRope, in.q_rope,
                       {s.batch, s.heads, s.queries, s.rope}),
        validate_exact(Name::kLatent, Axes::kLatent, in.latent, {s.batch, s.keys, s.rank}),
        validate_exact(Name::kKRope, Axes::kKRope, in.k_rope, {s.batch, s.keys, s.rope}),
        validate_exact(Name::kWUk, Axes::kWUk, in.w_uk, {s.heads, s.nope, s.rank}),
        validate_exact(Name::kWUv, Axes::kWUv, in.w_uv, {s.heads, s.value, s.rank})}) {
    if (!status.ok()) return status;
  }
  if (options.rope.style != Rope::Style::kNone) {
    return option_error(Name::kRope, Message::kRotatedAlready);
  }
  if (options.qk_norm.enabled) return option_error(Name::kQkNorm, Message::kNone);
  if (!outputs.captures.empty()) return option_error(Name::kCaptures, Message::kNone);
  if (outputs.dropout_mask.given()) return option_error(Name::kDropoutMask, Message::kNone);
  const engine::AttentionShape shape{.batch = s.batch,
                                     .heads = s.heads,
                                     .kv_heads = s.heads,
                                     .queries = s.queries,
                                     .keys = s.keys,
                                     .key_width = s.nope + s.rope,
                                     .value_width = s.value};
  for (const Status& status :
       {engine::validate_options(options, shape), engine::validate_outputs(outputs, shape)}) {
    if (!status.ok()) return status;
  }
  if (outputs.out.dtype != DType::kF32) {
    return shape_error(Name::kOut, Message::kF32, static_cast<int>(outputs.out.dtype));
  }
  return {};
}

// One head or batch entry of a tensor, as a matrix.
template <class T>
TensorView<T> matrix(const TensorView<T>& tensor, int64_t first, int64_t second = 0) {
  const int rank = tensor.shape.rank();
  T* data = tensor.data;
  if (data != nullptr) {  // as it may be without elements
    data += first * tensor.strides[0] + (rank == 4 ? second * tensor.strides[1] : 0);
  }
  return {data,
          {tensor.shape[rank - 2], tensor.shape[rank - 1]},
          {tensor.strides[rank - 2], tensor.strides[rank - 1]}};
}

// The first or last columns of a matrix.
Tensor columns(const Tensor& whole, int64_t first, int64_t count) {
  return {whole.data + first, {whole.shape[0], count}, whole.strides};
}

void copy(const ConstTensor& from, const Tensor& to) {
  if (from.shape[1] == 0) return;  // and perhaps no data
  for (int64_t row = 0; row < from.shape[0]; ++row) {
    std::copy_n(from.data + row * from.strides[0], from.shape[1], to.data + row * to.strides[0]);
  }
}

class Workspace {
 public:
  explicit Workspace(void* memory) : next_(static_cast<float*>(memory)) {}
  Tensor take(const Dims& shape) {
    const Tensor tensor(next_, shape);
    next_ += shape.elements();
    return tensor;
  }

 private:
  float* next_;
};

Status expanded(const LatentAttentionInputs& in, const Sizes& s, const AttentionOptions& options,
                const AttentionOutputs& outputs, Workspace memory, Context& context) {
  const int64_t width = s.nope + s.rope;
  const Tensor q = memory.take({s.batch, s.heads, s.queries, width});
  const Tensor k = memory.take({s.batch, s.heads, s.keys, width});
  const Tensor v = memory.take({s.batch, s.heads, s.keys, s.value});
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      copy(matrix(in.q_nope, b, h), columns(matrix(q, b, h), 0, s.nope));
      copy(matrix(in.q_rope, b, h), columns(matrix(q, b, h), s.nope, s.rope));
      copy(matrix(in.k_rope, b), columns(matrix(k, b, h), s.nope, s.rope));
      const ConstTensor latent = matrix(in.latent, b);
      Status status =
          linear(latent, matrix(in.w_uk, h), {}, columns(matrix(k, b, h), 0, s.nope), context);
      if (status.ok()) status = linear(latent, matrix(in.w_uv, h), {}, matrix(v, b, h), context);
      if (!status.ok()) return status;
    }
  }
  return attention(q, k, v, options, outputs, context);
}

Status absorbed(const LatentAttentionInputs& in, const Sizes& s, const AttentionOptions& options,
                const AttentionOutputs& outputs, Workspace memory, Context& context) {
  const int64_t width = s.rank + s.rope;
  const Tensor q = memory.take({s.batch, s.heads, s.queries, width});
  const Tensor k = memory.take({s.batch, 1, s.keys, width});
  const Tensor out = memory.take({s.batch, s.heads, s.queries, s.rank});
  const Tensor w_uk = memory.take({s.rank, s.nope});
  for (int64_t h = 0; h < s.heads; ++h) {
    const ConstTensor weight = matrix(in.w_uk, h);
    for (int64_t r = 0; r < s.rank; ++r) {
      for (int64_t c = 0; c < s.nope; ++c) {
        w_uk.data[r * s.nope + c] = weight.data[c * weight.strides[0] + r];
      }
    }
    for (int64_t b = 0; b < s.batch; ++b) {
      copy(matrix(in.q_rope, b, h), columns(matrix(q, b, h), s.rank, s.rope));
      Status status =
          linear(matrix(in.q_nope, b, h), w_uk, {}, columns(matrix(q, b, h), 0, s.rank), context);
      if (!status.ok()) return status;
    }
  }
  for (int64_t b = 0; b < s.batch; ++b) {
    copy(matrix(in.latent, b), columns(matrix(k, b, 0), 0, s.rank));
    copy(matrix(in.k_rope, b), columns(matrix(k, b, 0), s.rank, s.rope));
  }
  // The latent is key and value at once.
  const Tensor v(k.data, {s.batch, 1, s.keys, s.rank}, k.strides);
  AttentionOutputs of_latent = outputs;
  of_latent.out = out;
  if (Status status = attention(q, k, v, options, of_latent, context); !status.ok()) return status;

  const Tensor result(static_cast<float*>(outputs.out.data), outputs.out.shape,
                      outputs.out.strides);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      Status status =
          linear(matrix(out, b, h), matrix(in.w_uv, h), {}, matrix(result, b, h), context);
      if (!status.ok()) return status;
    }
  }
  return {};
}

Status latent_attention_or_throw(const LatentAttentionInputs& inputs, LatentForm form,
                                 const AttentionOptions& options, const AttentionOutputs& outputs,
                                 Context& context) {
  if (Status status = engine::validate_enumerator(engine::Name::kForm, form, LatentForm::kAbsorbed);
      !status.ok()) {
    return status;
  }
  Sizes s{};
  if (Status status = validate(inputs, options, outputs, s); !status.ok()) return status;
  AttentionOptions scaled = options;
  if (!scaled.scale) {
    scaled.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.nope + s.rope)));
  }
  const bool expands = form == LatentForm::kExpanded;
  const int64_t width = (expands ? s.nope : s.rank) + s.rope;
  const int64_t floats =
      s.batch * s.heads * s.queries * (width + (expands ? 0 : s.rank)) +
      s.batch * (expands ? s.heads : 1) * s.keys * (width + (expands ? s.value : 0)) +
      s.rank * s.nope;
  engine::Buffer& workspace = engine::scratch_of(context).workspace();
  const auto bytes = static_cast<uint64_t>(floats) * sizeof(float) + sizeof(float);
  if (!workspace.reserve(bytes)) return Status::out_of_memory(bytes);
  const Workspace memory(workspace.data());
  return expands ? expanded(inputs, s, scaled, outputs, memory, context)
                 : absorbed(inputs, s, scaled, outputs, memory, context);
}

}  // namespace

Status latent_attention(const LatentAttentionInputs& inputs, LatentForm form,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        Context& context) {
  return engine::memory_guard(
      [&] { return latent_attention_or_throw(inputs, form, options, outputs, context); });
}

}  // namespace multihead
