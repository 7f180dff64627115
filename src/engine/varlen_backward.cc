#include "engine/varlen.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/backward.h"
#include "engine/guard.h"
#include "engine/plan.h"
#include "engine/validate.h"
#include "multihead/attention_backward.h"

namespace multihead {
namespace {

using engine::Axes;
using engine::lse_of;
using engine::Name;
using engine::sequence_of;
using engine::validate_exact;

Status validate_packed_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                const ConstAnyTensor& v, const AttentionResults& results,
                                const ConstAnyTensor& d_out, const AttentionGradients& gradients) {
  const Dims out_shape{q.shape[0], q.shape[1], v.shape[2]};
  for (const Status& status :
       {validate_exact(Name::kOut, Axes::kPackedOut, results.out, out_shape),
        validate_exact(Name::kLse, Axes::kPackedLse, results.lse, {q.shape[1], q.shape[0]}),
        validate_exact(Name::kDOut, Axes::kPackedOut, d_out, out_shape)}) {
    if (!status.ok()) return status;
  }
  const struct {
    Name name;
    Axes axes;
    const Tensor& tensor;
    const Dims& shape;
  } of[] = {{Name::kDQ, Axes::kPackedQ, gradients.d_q, q.shape},
            {Name::kDK, Axes::kPackedK, gradients.d_k, k.shape},
            {Name::kDV, Axes::kPackedV, gradients.d_v, v.shape}};
  for (const auto& [name, axes, tensor, shape] : of) {
    if (!tensor.given()) continue;
    if (Status status = validate_exact(name, axes, tensor, shape); !status.ok()) return status;
  }
  return {};
}

// Rows of a packed tensor, if it is given.
Tensor rows_of(const Tensor& packed, int64_t first, int64_t last) {
  if (!packed.given()) return {};
  const AnyTensor rows = sequence_of(AnyTensor(packed), first, last);
  return {static_cast<float*>(rows.data), rows.shape, rows.strides};
}

// A row that is a sum over the sequences: each writes its part.
struct Sum {
  std::span<float> total;
  std::vector<float> part;

  explicit Sum(std::span<float> row) : total(row), part(row.size()) {
    std::fill(total.begin(), total.end(), 0.0F);
  }
  void add() {
    for (size_t i = 0; i < part.size(); ++i) total[i] += part[i];
  }
};

}  // namespace

Status attention_varlen_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                 std::span<const int32_t> cu_k, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context) {
  return engine::memory_guard([&]() -> Status {
    Status status = engine::validate_packed(q, k, v, cu_q, cu_k, options);
    if (status.ok()) status = validate_packed_backward(q, k, v, results, d_out, gradients);
    if (!status.ok()) return status;
    const auto call = [&](size_t s, int64_t queries, int64_t end_query, int64_t keys,
                          int64_t end_key, const AttentionGradients& to) {
      return attention_backward(sequence_of(q, queries, end_query), sequence_of(k, keys, end_key),
                                sequence_of(v, keys, end_key),
                                engine::options_of_sequence(options, s),
                                {.out = sequence_of(results.out, queries, end_query),
                                 .lse = lse_of(results.lse, queries, end_query)},
                                sequence_of(d_out, queries, end_query), to, context);
    };
    const auto rows = [&](int64_t first_query, int64_t end_query, int64_t first_key,
                          int64_t end_key) {
      AttentionGradients to = gradients;
      to.d_q = rows_of(gradients.d_q, first_query, end_query);
      to.d_k = rows_of(gradients.d_k, first_key, end_key);
      to.d_v = rows_of(gradients.d_v, first_key, end_key);
      return to;
    };
    // An empty sequence goes through all checks before anything but the sums is written.
    status = call(0, 0, 0, 0, 0, rows(0, 0, 0, 0));
    if (!status.ok()) return status;
    Sum sinks(gradients.d_sinks), q_gain(gradients.d_q_gain), k_gain(gradients.d_k_gain);
    for (size_t s = 0; s + 1 < cu_q.size(); ++s) {
      AttentionGradients to = rows(cu_q[s], cu_q[s + 1], cu_k[s], cu_k[s + 1]);
      to.d_sinks = sinks.part;
      to.d_q_gain = q_gain.part;
      to.d_k_gain = k_gain.part;
      status = call(s, cu_q[s], cu_q[s + 1], cu_k[s], cu_k[s + 1], to);
      if (!status.ok()) return status;
      for (Sum* sum : {&sinks, &q_gain, &k_gain}) sum->add();
    }
    return {};
  });
}

}  // namespace multihead
