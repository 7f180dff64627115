#include "engine/attention/plan.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cpu/kernels.h"
#include "cpu/processor.h"
#include "engine/attention/closed_form.h"
#include "engine/attention/cut.h"
#include "engine/runtime/linear_choice.h"
#include "rules/dropout_mask.h"

namespace multihead::engine {
namespace {

using cpu::TargetTraits;
using rules::AttentionParams;
using rules::ScaleFactors;
using rules::StoredRows;

// A tensor without elements may have a null address, to which nothing may be added.
template <class TensorLike>
rules::RowStrides row_strides(const TensorLike& tensor) {
  if (tensor.shape.elements() == 0) return {};
  return {tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

ScaleFactors scale_factors(const AttentionParams& p, float scale) {
  const float size = std::abs(scale);
  const float sign = std::copysign(1.0F, scale);
  if (p.changes_scores()) {
    // Scores are scaled before something is added. A scale below 1 makes queries smaller before
    // the products, one above 1 makes scores larger after them.
    return size > 1.0F ? ScaleFactors{sign, size, 1.0F} : ScaleFactors{scale, 1.0F, 1.0F};
  }
  // The exponentials multiply their factor by log2(e), which has to stay finite.
  constexpr float kMost = 0x1p126F;
  if (size > kMost) return {sign * (size / kMost), 1.0F, kMost};
  if (size >= 1.0F) return {sign, 1.0F, size};
  if (size == 0.0F) return {0.0F, 1.0F, 1.0F};
  // Only a power of two is multiplied into the queries. Any other factor would round them, and all
  // products of a query share that error (1e-5 in the output for inputs of +-1 and a scale of 1).
  int exponent = 0;
  const float fraction = std::frexp(size, &exponent);
  return {std::ldexp(sign, exponent - 1), 1.0F, 2.0F * fraction};
}

rules::DropoutParams dropout_params(const Dropout& dropout) {
  if (dropout.probability == 0.0F) return {};
  return {.seed = dropout.seed,
          .threshold = rules::dropout_threshold(dropout.probability),
          .scale = 1.0F / (1.0F - dropout.probability)};
}

float scale_of(const AttentionShape& shape, const AttentionOptions& options) {
  return options.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))));
}

AttentionParams params_of(const AttentionInputs& inputs, const AttentionShape& shape,
                          const AttentionOptions& options, const Shard* shard) {
  AttentionParams params{};
  params.q = inputs.q;
  params.k = inputs.k;
  params.v = inputs.v;
  params.batch = shape.batch;
  params.heads = shape.heads;
  params.kv_heads = shape.kv_heads;
  params.queries = shape.queries;
  params.keys = shape.keys;
  params.head_dim = shape.head_dim;
  params.value_dim = shape.value_dim;
  params.first_query = 0;
  params.end_query = shape.queries;
  params.visibility = rules::make_visibility(options, shape.queries, shape.keys);
  params.visibility.firsts = inputs.firsts;
  if (inputs.lengths != nullptr) params.visibility.lengths = inputs.lengths;
  if (shard != nullptr) {
    params.first = shard->first;
    params.visibility.queries = shard->queries;
    params.visibility.keys = shard->keys;
    params.visibility.first_query = shard->first.query;
    params.visibility.first_key = shard->first.key;
  }
  params.softcap = options.softcap;
  params.mask = rules::broadcast_to_scores(options.mask);
  params.bias = rules::broadcast_to_scores(options.bias);
  params.alibi_slopes = options.alibi_slopes.empty() ? nullptr : options.alibi_slopes.data();
  params.sinks = options.sinks.empty() ? nullptr : options.sinks.data();
  params.dropout = dropout_params(options.dropout);
  params.scale = scale_factors(params, scale_of(shape, options));
  return params;
}

void set_outputs(AttentionParams& params, const AttentionOutputs& outputs) {
  // An output without elements counts as not given, even if it has an address.
  params.out = {.data = outputs.out.shape.elements() == 0 ? nullptr : outputs.out.data,
                .type = outputs.out.dtype,
                .stride = row_strides(outputs.out)};
  if (outputs.lse.given()) params.lse = {outputs.lse.data, row_strides(outputs.lse)};
  if (outputs.dropout_mask.given()) {
    params.dropout_mask = {outputs.dropout_mask.data, row_strides(outputs.dropout_mask)};
  }
  params.weights.out = outputs.weights;
  params.captures = outputs.captures;
}

Objection objection_to_decode(const AttentionParams& p, bool packed) {
  if (packed) return Objection::kPacked;
  if (p.out.data == nullptr) return Objection::kNoWork;
  if (p.rows() > cpu::kMostDecodeRows) return Objection::kManyRows;
  if (p.dropout.given() || p.dropout_mask.data != nullptr) return Objection::kDropout;
  return Objection::kNone;
}

Objection objection_to_amx(const AttentionParams& p, Precision precision,
                           const TargetTraits& target) {
  if (precision == Precision::kF32) return Objection::kNotAsked;
  if (!target.bf16_tiles) return Objection::kNoInstruction;
  for (const StoredRows& rows : {p.q, p.k, p.v}) {
    if (rows.type != DType::kF32 && rows.type != DType::kBF16) return Objection::kNotFloats;
  }
  if (p.captures_anything()) return Objection::kCapture;
  return objection_to_amx_here();
}

Objection objection_to_bf16(const AttentionParams& p, float scale, Precision precision,
                            const TargetTraits& target) {
  if (precision == Precision::kF32) return Objection::kNotAsked;
  if (!target.bf16_pairs) return Objection::kNoInstruction;
  if (!cpu::bf16_pairs_are_fast()) return Objection::kSlower;
  const auto fits = [](const StoredRows& rows) {
    return rows.type == DType::kBF16 && rows.in_order();
  };
  if (!fits(p.q) || !fits(p.k) || !fits(p.v) || p.head_dim % 2 != 0) return Objection::kNotBf16;
  if (p.captures_anything()) return Objection::kCapture;
  // Pairs of keys start at even keys, and queries that are pairs cannot be scaled.
  if (p.changes_scores() || p.visibility.left >= 0 || p.visibility.firsts != nullptr ||
      p.visibility.first_key % 2 != 0 || scale < 1.0F / 1024.0F || scale > 1024.0F) {
    return Objection::kOption;
  }
  return Objection::kNone;
}

// Largest size in bytes of inputs and outputs that caches hold. Beyond it blocks are faster,
// because they copy V and, natively, prefetch: with heads of 64 x 64, short heads gain 10 % for 24
// heads (1.6 MB) and 3 to 6 % for 96, but would lose 3 to 5 % for 192 and 16 to 27 % for 384; in
// WebAssembly they gain 8 % for 24 and would lose 6 % for 384.
constexpr double kMaxCacheResidentBytes = 4 << 20;

Objection objection_to_short_heads(const AttentionParams& p, const TargetTraits& target,
                                   bool stores_normalized) {
  if (p.keys > target.short_keys) return Objection::kManyKeys;
  if (!p.q.dense_floats() || !p.k.dense_floats() || !p.v.dense_floats()) {
    return Objection::kNotDenseFloats;
  }
  const double bytes = sizeof(float) * static_cast<double>(p.batch) * static_cast<double>(p.heads) *
                       static_cast<double>(p.queries + p.keys) *
                       static_cast<double>(p.head_dim + p.value_dim);
  if (bytes > kMaxCacheResidentBytes) return Objection::kBeyondCache;
  if (p.captures_anything() || p.dropout_mask.data != nullptr) return Objection::kCapture;
  if (p.changes_scores() || p.visibility.left >= 0 || p.visibility.firsts != nullptr ||
      p.mask.given() || p.sinks != nullptr || p.dropout.given() || p.group() != 1) {
    return Objection::kOption;
  }
  return stores_normalized ? Objection::kNone : Objection::kNotDenseFloats;
}

// Cuts the call into blocks. Their scratch memory has room for a copy of V wherever V may lie.
void plan_blocks(AttentionPlan& plan, const AttentionParams& p, const TargetTraits& target,
                 bool tiles = false) {
  plan.blocks = cut_into_blocks(p, target);
  plan.blocks.tiles = tiles;
  plan.blocks.stores_normalized &= !tiles;
  plan.copies_split_lines = may_copy_split_lines(p, plan.blocks.rows, target);
  rules::BlockGeometry with_copy = plan.blocks;
  with_copy.copies_values |= plan.copies_split_lines;
  plan.scratch_bytes = std::max(plan.scratch_bytes, cpu::block_scratch_bytes(p, with_copy));
  plan.blocks.copies_values |= plan.copies_split_lines && splits_cache_lines(p.v);
}

// An LSE is divided into jobs of rows. Captures are divided by batch entry alone: a call may have
// any number of heads and rows of which they want only a few.
void cut_closed_form(AttentionPlan& plan, const TargetTraits& target) {
  const AttentionParams& p = plan.params;
  constexpr double kOfRow = 200, kOfScore = 30;  // about, of multiplications and additions
  if (p.lse.data != nullptr) {
    plan.blocks = cut_into_blocks(p, target);
    plan.operations = kOfRow * static_cast<double>(p.batch * p.kv_heads * p.rows());
    return;
  }
  plan.blocks = {.rows = p.rows(),
                 .row_parts = 1,
                 .heads = p.kv_heads,
                 .head_parts = 1,
                 .jobs = p.batch,
                 .key_block = p.keys,
                 .key_blocks = 1};
  for (const ScoreCapture& capture : p.captures) {
    plan.operations += kOfScore * static_cast<double>(capture.out.shape.elements());
  }
}

// The one place where a path is chosen.
void choose_path(AttentionPlan& plan, float scale, Precision precision, bool packed) {
  AttentionParams& p = plan.params;
  // Decided before anything is multiplied: tensors without elements may have any extents.
  if (!p.writes_anything()) {
    plan.not_decode = plan.not_amx = plan.not_bf16 = plan.not_short = Objection::kNoWork;
    return;
  }
  const TargetTraits target = cpu::target_traits();
  if (has_closed_form(p)) {
    plan.path = Path::kClosedForm;
    plan.not_decode = Objection::kNoWork;
    cut_closed_form(plan, target);
    return;
  }
  plan.operations = 2.0 * static_cast<double>(p.batch * p.kv_heads * p.rows()) *
                    static_cast<double>(p.keys) * static_cast<double>(p.head_dim + p.value_dim);
  plan.not_decode = objection_to_decode(p, packed);
  if (plan.not_decode == Objection::kNone) {
    plan.path = Path::kDecode;
    plan.splits = cut_into_splits(p, target);
    plan.scratch_bytes = cpu::decode_scratch_bytes(p, plan.splits);
    plan.partial_bytes = cpu::decode_partial_bytes(p, plan.splits);
    if (!plan.captures_beside_decode()) return;
    plan_blocks(plan, p.without_results(), target);
    return;
  }
  plan.not_amx = objection_to_amx(p, precision, target);
  if (plan.not_amx == Objection::kNone) {
    plan.path = Path::kAmxBlocks;
    TargetTraits tiles = target;
    tiles.key_block = cpu::kTileKeyBlock;
    plan_blocks(plan, p, tiles, /*tiles=*/true);
    return;
  }
  plan_blocks(plan, p, target);
  plan.not_bf16 = objection_to_bf16(p, scale, precision, target);
  plan.not_short = objection_to_short_heads(p, target, plan.blocks.stores_normalized);
  if (plan.not_bf16 == Objection::kNone) {
    plan.path = Path::kBf16Blocks;
  } else if (plan.not_short == Objection::kNone) {
    plan.path = Path::kShortHeads;
    plan.scratch_bytes =
        std::max(plan.scratch_bytes, cpu::short_heads_scratch_bytes(p, plan.blocks));
  }
}

std::optional<InputTransforms> transforms_of(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                             const AttentionShape& shape,
                                             const AttentionOptions& options) {
  if (!options.qk_norm.enabled && options.rope.style == Rope::Style::kNone) return {};
  return InputTransforms{.q = q,
                         .k = k,
                         .norm = options.qk_norm,
                         .rope = options.rope,
                         .positions = rules::make_visibility(options, shape.queries, shape.keys),
                         .lengths = options.kv_lengths};
}

// q and k as the kernels will read them. If they are transformed before, their address is not yet
// known.
AttentionInputs inputs_of(const ConstAnyTensor& q, const ConstAnyTensor& k, bool transformed) {
  return {.q = stored_rows(transformed ? ConstTensor(nullptr, q.shape) : q),
          .k = stored_rows(transformed ? ConstTensor(nullptr, k.shape) : k),
          .v = {}};
}

}  // namespace

StoredRows stored_rows(const ConstAnyTensor& tensor) {
  StoredRows rows;
  rows.data = tensor.data;
  rows.type = tensor.dtype;
  rows.stride = row_strides(tensor);
  return rows;
}

AttentionParams attention_params(const AttentionInputs& inputs, const AttentionShape& shape,
                                 const AttentionOptions& options, const AttentionOutputs& outputs,
                                 const Shard* shard) {
  AttentionParams params = params_of(inputs, shape, options, shard);
  set_outputs(params, outputs);
  return params;
}

AttentionPlan plan_attention(const AttentionInputs& inputs, const AttentionShape& shape,
                             const AttentionOptions& options, const AttentionOutputs& outputs,
                             const Shard* shard) {
  AttentionPlan plan{};
  plan.params = attention_params(inputs, shape, options, outputs, shard);
  choose_path(plan, scale_of(shape, options), options.precision, inputs.packed);
  return plan;
}

void follow_lengths(AttentionPlan& plan) {
  if (plan.path != Path::kDecode || plan.params.visibility.lengths == nullptr) return;
  plan.splits = cut_into_splits(plan.params, cpu::target_traits());
}

void PlannedCall::set_values(const void* data) {
  plan.params.v.data = data;
  if (plan.copies_split_lines) plan.blocks.copies_values = splits_cache_lines(plan.params.v);
}

rules::BlockGeometry blocks_for_threads(const AttentionPlan& plan, int threads) {
  const AttentionParams& p = plan.params;
  const bool may_divide = plan.path == Path::kBlocks && p.visibility.left < 0 &&
                          p.visibility.firsts == nullptr && !p.captures_anything();
  if (threads == 1 || !may_divide) return plan.blocks;
  return cut_for_threads(p, plan.blocks, cpu::target_traits(), threads);
}

PlannedCall plan_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                      const AttentionShape& shape, const AttentionOptions& options,
                      const AttentionOutputs& outputs, bool packed) {
  PlannedCall call{.plan = {}, .transforms = transforms_of(q, k, shape, options)};
  AttentionInputs inputs = inputs_of(q, k, call.transforms.has_value());
  inputs.v = stored_rows(v);
  inputs.packed = packed;
  call.plan = plan_attention(inputs, shape, options, outputs);
  return call;
}

PlannedCall plan_scores_call(const ConstAnyTensor& q, const ConstAnyTensor& k,
                             const AttentionShape& shape, const AttentionOptions& options,
                             const ScoreCapture& capture) {
  PlannedCall call{.plan = {}, .transforms = transforms_of(q, k, shape, options)};
  call.plan.scores_alone = true;
  AttentionParams& params = call.plan.params;
  params = params_of(inputs_of(q, k, call.transforms.has_value()), shape, options, nullptr);
  params.captures = {&capture, 1};
  params.first_query = capture.first_row;
  params.end_query = capture.first_row + capture.out.shape[2];
  choose_path(call.plan, scale_of(shape, options), options.precision, /*packed=*/false);
  return call;
}

rules::BackwardParams backward_params(const AttentionInputs& inputs, const AttentionShape& shape,
                                      const AttentionOptions& options,
                                      const AttentionResults& results, const ConstAnyTensor& d_out,
                                      const AttentionGradients& gradients, const Shard* shard) {
  rules::BackwardParams params{};
  params.forward = params_of(inputs, shape, options, shard);
  params.scale = scale_of(shape, options);
  params.out = stored_rows(results.out);
  params.d_out = stored_rows(d_out);
  params.lse = {results.lse.data, row_strides(results.lse)};
  params.d_q = {gradients.d_q.data, row_strides(gradients.d_q)};
  params.d_k = {gradients.d_k.data, row_strides(gradients.d_k)};
  params.d_v = {gradients.d_v.data, row_strides(gradients.d_v)};
  params.d_bias = {gradients.d_bias.data, rules::strides_over_scores(gradients.d_bias)};
  return params;
}

namespace {

// Whether some gradient depends on the products of a row and a key. Without columns of q, k and v
// the gradients of all scores are zero, so a bias that all keys share keeps its zeros.
bool needs_products(const rules::BackwardParams& params, const AttentionGradients& gradients) {
  const auto has_elements = [](const Tensor& tensor) {
    return tensor.given() && tensor.shape.elements() != 0;
  };
  const AttentionParams& p = params.forward;
  if (has_elements(gradients.d_q) || has_elements(gradients.d_k) || has_elements(gradients.d_v)) {
    return true;
  }
  if (!has_elements(gradients.d_bias) || p.batch == 0 || p.rows() == 0) return false;
  return p.head_dim != 0 || p.value_dim != 0 || !keys_share_mask_and_bias(p);
}

}  // namespace

BackwardPlan plan_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                           const ConstAnyTensor& v, const AttentionShape& shape,
                           const AttentionOptions& options, const AttentionResults& results,
                           const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                           const BackwardPart& part, const Shard* shard) {
  BackwardPlan plan{.params = {},
                    .geometry = {},
                    .transforms = transforms_of(q, k, shape, options),
                    .scratch_bytes = 0,
                    .operations = 0};
  AttentionInputs inputs = inputs_of(q, k, plan.transforms.has_value());
  inputs.v = stored_rows(v);
  rules::BackwardParams& params = plan.params;
  params = backward_params(inputs, shape, options, results, d_out, gradients, shard);
  if (shard == nullptr) {
    params.forward.first.batch = part.first_batch;
    params.forward.first.head = part.first_head;
  }
  // Decided before anything is multiplied: tensors without elements may have any extents.
  const AttentionParams& p = params.forward;
  const bool multiplies = needs_products(params, gradients);
  const bool has_rows = p.batch != 0 && p.rows() != 0;
  if (!multiplies && (gradients.d_sinks.empty() || !has_rows)) return plan;
  plan.operations = 2.0 * static_cast<double>(p.batch * p.kv_heads * p.rows()) *
                    static_cast<double>(p.keys) *
                    static_cast<double>(3 * p.head_dim + 2 * p.value_dim);
  plan.geometry = cut_into_backward(params, cpu::target_traits(), part.jobs);
  plan.scratch_bytes = cpu::backward_scratch_bytes(params, plan.geometry);
  if (!multiplies) plan.geometry.jobs = 0;  // the sinks need delta alone
  return plan;
}

}  // namespace multihead::engine
