#include "engine/attention/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "cpu/kernels.h"
#include "cpu/target.h"
#include "engine/attention/closed_form.h"
#include "engine/attention/tile_scheduler.h"
#include "engine/runtime/kernel_choice.h"
#include "engine/runtime/team.h"
#include "engine/runtime/threads.h"
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
  if (!dropout.given()) return {};
  return {.seed = dropout.seed,
          .threshold = rules::dropout_threshold(dropout.probability),
          .scale = 1.0F / (1.0F - dropout.probability)};
}

float scale_of(int64_t head_dim, const AttentionOptions& options) {
  return options.scale.value_or(static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))));
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
  params.scale = scale_factors(params, scale_of(shape.head_dim, options));
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

Unsupported why_not_decode(const AttentionParams& p, bool varlen) {
  if (varlen) return Unsupported::kVarlen;
  if (p.out.data == nullptr) return Unsupported::kNoWork;
  if (p.rows() > cpu::kMostDecodeRows) return Unsupported::kManyRows;
  if (p.dropout.given() || p.dropout_mask.data != nullptr) return Unsupported::kDropout;
  return Unsupported::kNone;
}

Unsupported why_not_amx(const AttentionParams& p, Precision precision, const TargetTraits& target) {
  if (precision == Precision::kF32) return Unsupported::kNotAsked;
  if (!target.bf16_tiles) return Unsupported::kNoInstruction;
  for (const StoredRows& rows : {p.q, p.k, p.v}) {
    if (rows.type != DType::kF32 && rows.type != DType::kBF16) return Unsupported::kNotFloats;
  }
  if (p.captures_anything()) return Unsupported::kCapture;
  return why_not_amx_here();
}

Unsupported why_not_bf16(const AttentionParams& p, float scale, Precision precision,
                         const TargetTraits& target) {
  if (precision == Precision::kF32) return Unsupported::kNotAsked;
  if (!target.bf16_pairs) return Unsupported::kNoInstruction;
  if (!cpu::bf16_pairs_are_fast()) return Unsupported::kSlower;
  const auto fits = [](const StoredRows& rows) {
    return rows.type == DType::kBF16 && rows.in_order();
  };
  if (!fits(p.q) || !fits(p.k) || !fits(p.v) || p.head_dim % 2 != 0) return Unsupported::kNotBf16;
  if (p.captures_anything()) return Unsupported::kCapture;
  // Pairs of keys start at even keys, and queries that are pairs cannot be scaled.
  if (p.changes_scores() || p.visibility.left >= 0 || p.visibility.firsts != nullptr ||
      p.visibility.first_key % 2 != 0 || scale < 1.0F / 1024.0F || scale > 1024.0F) {
    return Unsupported::kOption;
  }
  return Unsupported::kNone;
}

// Largest size in bytes of inputs and outputs that caches hold. Beyond it blocks are faster,
// because they copy V and, natively, prefetch: with heads of 64 x 64, short heads gain 10 % for 24
// heads (1.6 MB) and 3 to 6 % for 96, but would lose 3 to 5 % for 192 and 16 to 27 % for 384; in
// WebAssembly they gain 8 % for 24 and would lose 6 % for 384.
constexpr double kMaxCacheResidentBytes = 4 << 20;

Unsupported why_not_short_heads(const AttentionParams& p, const TargetTraits& target,
                                bool stores_normalized) {
  if (p.keys > target.short_keys) return Unsupported::kManyKeys;
  if (!p.q.dense_floats() || !p.k.dense_floats() || !p.v.dense_floats()) {
    return Unsupported::kNotDenseFloats;
  }
  const double bytes = sizeof(float) * static_cast<double>(p.batch) * static_cast<double>(p.heads) *
                       static_cast<double>(p.queries + p.keys) *
                       static_cast<double>(p.head_dim + p.value_dim);
  if (bytes > kMaxCacheResidentBytes) return Unsupported::kBeyondCache;
  if (p.captures_anything() || p.dropout_mask.data != nullptr) return Unsupported::kCapture;
  if (p.changes_scores() || p.visibility.left >= 0 || p.visibility.firsts != nullptr ||
      p.mask.given() || p.sinks != nullptr || p.dropout.given() || p.group() != 1) {
    return Unsupported::kOption;
  }
  return stores_normalized ? Unsupported::kNone : Unsupported::kNotDenseFloats;
}

// Tiles the call by blocks. Their scratch memory has room for a copy of V wherever V may lie.
void plan_blocks(ForwardPlan& plan, const AttentionParams& p, const TargetTraits& target,
                 bool tiles = false) {
  rules::BlockTiling& blocks = plan.choice.blocks;
  blocks = tile_blocks(p, target);
  blocks.tiles = tiles;
  blocks.stores_normalized &= !tiles;
  plan.copies_split_lines = may_copy_split_lines(p, blocks.rows, target);
  rules::BlockTiling with_copy = blocks;
  with_copy.copies_values |= plan.copies_split_lines;
  plan.scratch_bytes = std::max(plan.scratch_bytes, cpu::block_scratch_bytes(p, with_copy));
}

// An LSE is divided into jobs of rows. Captures are divided by batch entry alone: a call may have
// any number of heads and rows of which they want only a few.
void tile_closed_form(ForwardPlan& plan, const TargetTraits& target) {
  const AttentionParams& p = plan.params;
  rules::BlockTiling& blocks = plan.choice.blocks;
  constexpr double kOfRow = 200, kOfScore = 30;  // about, of multiplications and additions
  if (p.lse.data != nullptr) {
    blocks = tile_blocks(p, target);
    plan.operations = kOfRow * static_cast<double>(p.batch * p.kv_heads * p.rows());
    return;
  }
  blocks = {.rows = p.rows(),
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

// True if a division into smaller blocks changes no bit: see divide_for_threads().
bool may_divide_blocks(const ForwardPlan& plan) {
  const AttentionParams& p = plan.params;
  return plan.choice.kernel == Kernel::kBlocks && p.visibility.left < 0 &&
         p.visibility.firsts == nullptr && !p.captures_anything();
}

// True if the members of a team divide the heads. Calls with captures, weights or a dropout mask,
// and calls of some rows alone, are not divided.
bool divides_heads(const ForwardPlan& plan, const Team& team) {
  const AttentionParams& p = plan.params;
  return team.is_worth(plan.operations) && p.kv_heads > 1 && !p.captures_anything() &&
         p.dropout_mask.data == nullptr && p.out.data != nullptr && p.first_query == 0 &&
         p.end_query == p.queries;
}

// One head per job, which changes no bit: the heads of a job are computed one after the other.
template <class Tiling>
void make_heads_single(Tiling& tiling, int64_t kv_heads) {
  tiling.heads = 1;
  tiling.head_parts = kv_heads;
}

std::optional<InputTransforms> transforms_of(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                             const AttentionShape& shape,
                                             const AttentionOptions& options) {
  if (!options.qk_norm.given() && !options.rope.given()) return {};
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

// The one place where a kernel is selected.
void plan_jobs(ForwardPlan& plan, const AttentionOptions& options, bool varlen) {
  const AttentionParams& p = plan.params;
  KernelChoice& choice = plan.choice;
  // Decided before anything is multiplied: tensors without elements may have any extents.
  if (!p.writes_anything()) {
    choice.not_decode = choice.not_amx = choice.not_bf16 = choice.not_short = Unsupported::kNoWork;
    return;
  }
  const TargetTraits target = cpu::target_traits();
  if (has_closed_form(p)) {
    choice.kernel = Kernel::kClosedForm;
    choice.not_decode = Unsupported::kNoWork;
    tile_closed_form(plan, target);
    return;
  }
  plan.operations = 2.0 * static_cast<double>(p.batch * p.kv_heads * p.rows()) *
                    static_cast<double>(p.keys) * static_cast<double>(p.head_dim + p.value_dim);
  choice.not_decode = why_not_decode(p, varlen);
  if (choice.not_decode == Unsupported::kNone) {
    choice.kernel = Kernel::kDecode;
    choice.splits = tile_splits(p, target);
    plan.scratch_bytes = cpu::decode_scratch_bytes(p, choice.splits);
    plan.partial_bytes = cpu::decode_partial_bytes(p, choice.splits);
    if (plan.captures_beside_decode()) plan_blocks(plan, p.without_results(), target);
    return;
  }
  choice.not_amx = why_not_amx(p, options.precision, target);
  if (choice.not_amx == Unsupported::kNone) {
    choice.kernel = Kernel::kAmxBlocks;
    TargetTraits tiles = target;
    tiles.key_block = cpu::kTileKeyBlock;
    plan_blocks(plan, p, tiles, /*tiles=*/true);
    return;
  }
  plan_blocks(plan, p, target);
  choice.not_bf16 = why_not_bf16(p, scale_of(p.head_dim, options), options.precision, target);
  choice.not_short = why_not_short_heads(p, target, choice.blocks.stores_normalized);
  if (choice.not_bf16 == Unsupported::kNone) {
    choice.kernel = Kernel::kBf16Blocks;
  } else if (choice.not_short == Unsupported::kNone) {
    choice.kernel = Kernel::kShortHeads;
    plan.scratch_bytes =
        std::max(plan.scratch_bytes, cpu::short_heads_scratch_bytes(p, choice.blocks));
  }
}

AttentionParams attention_params(const AttentionInputs& inputs, const AttentionShape& shape,
                                 const AttentionOptions& options, const AttentionOutputs& outputs,
                                 const Shard* shard) {
  AttentionParams params = params_of(inputs, shape, options, shard);
  set_outputs(params, outputs);
  return params;
}

ForwardPlan plan_forward(const AttentionInputs& inputs, const AttentionShape& shape,
                         const AttentionOptions& options, const AttentionOutputs& outputs,
                         const Shard* shard) {
  ForwardPlan plan{};
  plan.params = attention_params(inputs, shape, options, outputs, shard);
  plan_jobs(plan, options, inputs.varlen);
  return plan;
}

ForwardPlan plan_forward(const ForwardCall& call, const AttentionShape& shape, bool varlen) {
  const auto& [q, k, v, options, outputs] = call;
  ForwardPlan plan{};
  plan.transforms = transforms_of(q, k, shape, options);
  AttentionInputs inputs = inputs_of(q, k, plan.transforms.has_value());
  inputs.v = stored_rows(v);
  plan.params = attention_params(inputs, shape, options, outputs);
  plan_jobs(plan, options, varlen);
  return plan;
}

ForwardPlan plan_scores(const ConstAnyTensor& q, const ConstAnyTensor& k,
                        const AttentionShape& shape, const AttentionOptions& options,
                        const ScoreCapture& capture) {
  ForwardPlan plan{};
  plan.transforms = transforms_of(q, k, shape, options);
  plan.scores_alone = true;
  AttentionParams& params = plan.params;
  params = params_of(inputs_of(q, k, plan.transforms.has_value()), shape, options, nullptr);
  params.captures = {&capture, 1};
  params.first_query = capture.first_row;
  params.end_query = capture.first_row + capture.out.shape[2];
  plan_jobs(plan, options, /*varlen=*/false);
  return plan;
}

void finish_plan(ForwardPlan& plan, int threads, const Team* team, const WorkRange* part) {
  const AttentionParams& p = plan.params;
  plan.blocks = plan.choice.blocks;
  plan.threads = plan.merge_threads = 1;
  plan.divides_heads = plan.stored_heads || (team != nullptr && divides_heads(plan, *team));
  if (!plan.choice.has_work()) return;
  plan.threads = threads_for(plan.operations, threads);
  plan.blocks.copies_values |= plan.copies_split_lines && splits_cache_lines(p.v);
  if (plan.choice.kernel == Kernel::kDecode) {
    split_keys(p, plan.choice.splits);
    plan.splits = plan.choice.splits;
  }
  if (part == nullptr) {
    if (plan.threads > 1 && may_divide_blocks(plan)) {
      plan.blocks = divide_for_threads(p, plan.blocks, plan.threads);
    }
    plan.work = {0, p.batch * p.kv_heads, 0, plan.blocks.row_parts};
  } else {
    plan.work = *part;
    if (plan.choice.kernel == Kernel::kDecode) {
      plan.work.first_block = 0;
      plan.work.end_block = plan.blocks.row_parts;
    }
    const int64_t heads = part->end_head - part->first_head;
    make_heads_single(plan.blocks, p.kv_heads);
    plan.blocks.jobs = heads * (plan.work.end_block - plan.work.first_block);
    make_heads_single(plan.splits, p.kv_heads);
    plan.splits.jobs = heads * plan.splits.splits;
  }
  if (plan.choice.kernel == Kernel::kDecode) {
    const int64_t results = (plan.work.end_head - plan.work.first_head) * plan.splits.splits;
    const double bytes = static_cast<double>(results) * static_cast<double>(plan.partial_bytes);
    plan.merge_threads = threads_for(bytes, threads);
  }
}

rules::BackwardParams backward_params(const AttentionInputs& inputs, const AttentionShape& shape,
                                      const BackwardCall& call, const Shard* shard) {
  const AttentionGradients& gradients = call.gradients;
  const ConstTensor& lse = call.results.lse;
  rules::BackwardParams params{};
  params.forward = params_of(inputs, shape, call.options, shard);
  params.scale = scale_of(shape.head_dim, call.options);
  params.out = stored_rows(call.results.out);
  params.d_out = stored_rows(call.d_out);
  params.lse = {lse.data, row_strides(lse)};
  params.d_q = {gradients.d_q.data, row_strides(gradients.d_q)};
  params.d_k = {gradients.d_k.data, row_strides(gradients.d_k)};
  params.d_v = {gradients.d_v.data, row_strides(gradients.d_v)};
  params.d_bias = {gradients.d_bias.data, rules::strides_over_scores(gradients.d_bias)};
  return params;
}

namespace {

// Whether some gradient depends on the products of a row and a key. Without columns of q, k and v
// the gradients of all scores are zero, so a bias that all keys share keeps its zeros.
bool needs_products(const rules::BackwardParams& params) {
  const AttentionParams& p = params.forward;
  const auto has = [&](const rules::Rows<float>& gradient, int64_t heads, int64_t rows,
                       int64_t width) {
    return gradient.data != nullptr && Dims{p.batch, heads, rows, width}.elements() != 0;
  };
  if (has(params.d_q, p.heads, p.queries, p.head_dim) ||
      has(params.d_k, p.kv_heads, p.keys, p.head_dim) ||
      has(params.d_v, p.kv_heads, p.keys, p.value_dim)) {
    return true;
  }
  if (params.d_bias.data == nullptr || p.batch == 0 || p.rows() == 0) return false;
  return p.head_dim != 0 || p.value_dim != 0 || !keys_share_mask_and_bias(p);
}

}  // namespace

void plan_jobs(BackwardPlan& plan, bool has_sinks, int64_t jobs_of_whole) {
  const rules::BackwardParams& params = plan.params;
  const AttentionParams& p = params.forward;
  // Decided before anything is multiplied: tensors without elements may have any extents.
  const bool multiplies = needs_products(params);
  const bool has_rows = p.batch != 0 && p.rows() != 0;
  if (!multiplies && !(has_sinks && has_rows)) return;
  plan.operations = 2.0 * static_cast<double>(p.batch * p.kv_heads * p.rows()) *
                    static_cast<double>(p.keys) *
                    static_cast<double>(3 * p.head_dim + 2 * p.value_dim);
  plan.tiling = tile_backward(params, cpu::target_traits(), jobs_of_whole);
  plan.scratch_bytes = cpu::backward_scratch_bytes(params, plan.tiling);
  if (!multiplies) plan.tiling.jobs = 0;  // the sinks need delta alone
}

BackwardPlan plan_backward(const BackwardCall& call, const AttentionShape& shape,
                           const BackwardPart& part, const Shard* shard) {
  BackwardPlan plan{};
  plan.transforms = transforms_of(call.q, call.k, shape, call.options);
  AttentionInputs inputs = inputs_of(call.q, call.k, plan.transforms.has_value());
  inputs.v = stored_rows(call.v);
  plan.params = backward_params(inputs, shape, call, shard);
  if (shard == nullptr) {
    plan.params.forward.first.batch = part.first_batch;
    plan.params.forward.first.head = part.first_head;
  }
  plan_jobs(plan, !call.gradients.d_sinks.empty(), part.jobs);
  return plan;
}

void finish_plan(BackwardPlan& plan, int threads) {
  plan.threads = threads_for(plan.operations, threads);
}

}  // namespace multihead::engine
