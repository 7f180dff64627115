#include "engine/validate.h"
#include "multihead/attention.h"

namespace multihead {
namespace {

using engine::option_error;

// Rows first .. last - 1 of a packed (T, H, d), as (1, H, rows, d).
template <class View>
View sequence_of(const View& packed, int64_t first, int64_t last) {
  View view = packed;
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                  const char, char>;
  const int64_t step = first * packed.strides[0] * bytes_of(packed.dtype);
  view.data = packed.data == nullptr ? nullptr : static_cast<Byte*>(packed.data) + step;
  view.shape = {1, packed.shape[1], last - first, packed.shape[2]};
  view.strides = {0, packed.strides[1], packed.strides[0], 1};
  return view;
}

Status validate(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                const AttentionOptions& options, const AttentionOutputs& outputs) {
  for (const Status& status : {engine::validate_rank("q", "(T_q, H_q, d_k)", q, 3),
                               engine::validate_rank("k", "(T_k, H_kv, d_k)", k, 3),
                               engine::validate_rank("v", "(T_k, H_kv, d_v)", v, 3)}) {
    if (!status.ok()) return status;
  }
  if (v.shape[0] != k.shape[0]) {
    return {StatusCode::kShape, "v", "as many rows as k, " + std::to_string(k.shape[0]),
            v.shape.to_string()};
  }
  for (const Status& status : {engine::validate_cumulative("cu_q", cu_q, q.shape[0]),
                               engine::validate_cumulative("cu_k", cu_k, k.shape[0])}) {
    if (!status.ok()) return status;
  }
  if (cu_q.size() != cu_k.size()) {
    return option_error("cu_k", "as many sequences as cu_q, " + std::to_string(cu_q.size() - 1),
                        std::to_string(cu_k.size() - 1));
  }
  const struct {
    const char* name;
    bool given;
  } per_batch[] = {{"mask", options.mask.given()},
                   {"bias", options.bias.given()},
                   {"kv_lengths", !options.kv_lengths.empty()},
                   {"rope.q_positions", !options.rope.q_positions.empty()},
                   {"rope.k_positions", !options.rope.k_positions.empty()},
                   {"captures", !outputs.captures.empty()},
                   {"weights", outputs.weights.given()},
                   {"dropout_mask", outputs.dropout_mask.given()}};
  for (const auto& [name, given] : per_batch) {
    if (given) return option_error(name, "nothing with packed sequences", "one");
  }
  const Dims out_shape{q.shape[0], q.shape[1], v.shape[2]};
  if (Status status = engine::validate_exact("out", "(T_q, H_q, d_v)", outputs.out, out_shape);
      !status.ok()) {
    return status;
  }
  if (!outputs.lse.given()) return {};
  return engine::validate_exact("lse", "(H_q, T_q)", outputs.lse, {q.shape[1], q.shape[0]});
}

}  // namespace

Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        Context& context) {
  if (Status status = validate(q, k, v, cu_q, cu_k, options, outputs); !status.ok()) return status;
  // Every check that attention() makes, on an empty sequence, before anything is written.
  const AttentionOutputs nothing{.out = sequence_of(outputs.out, 0, 0)};
  if (Status status = attention(sequence_of(q, 0, 0), sequence_of(k, 0, 0), sequence_of(v, 0, 0),
                                options, nothing, context);
      !status.ok()) {
    return status;
  }
  AttentionOptions of_sequence = options;
  for (size_t s = 0; s + 1 < cu_q.size(); ++s) {
    AttentionOutputs part{.out = sequence_of(outputs.out, cu_q[s], cu_q[s + 1])};
    if (outputs.lse.given()) {
      part.lse = {outputs.lse.data + cu_q[s],
                  {1, q.shape[1], cu_q[s + 1] - cu_q[s]},
                  {0, outputs.lse.strides[0], 1}};
    }
    // Dropout would be the same in all of them: the sequence's number goes into the seed.
    of_sequence.dropout.seed = options.dropout.seed + (static_cast<uint64_t>(s) << 32U);
    if (Status status =
            attention(sequence_of(q, cu_q[s], cu_q[s + 1]), sequence_of(k, cu_k[s], cu_k[s + 1]),
                      sequence_of(v, cu_k[s], cu_k[s + 1]), of_sequence, part, context);
        !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace multihead
