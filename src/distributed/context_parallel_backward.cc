// The public gradients: checks, agreement of the ranks, one of the methods, and results.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "distributed/agreement.h"
#include "distributed/call.h"
#include "distributed/checks.h"
#include "distributed/communicator.h"
#include "distributed/methods.h"
#include "engine/attention/validate.h"
#include "engine/varlen/varlen.h"
#include "multihead/attention_backward.h"
#include "multihead/distributed.h"
#include "rules/element.h"

namespace multihead::distributed {
namespace {

Status validate_method(const Call& call) {
  if (call.sharding.method != Method::kDecode) return {};
  return option("sharding.method", "kRing, kAllGather or kHeads for gradients", "kDecode");
}

// d_sink = -(sum over the rank's rows of the sink's weight * sum of out * d_out).
void differentiate_sinks(const Call& call, const BackwardInputs& inputs, std::span<float> d_sinks) {
  const auto width = static_cast<size_t>(call.shape.value_dim);
  std::vector<float> out(width), d_out(width);
  for (int64_t head = 0; head < std::ssize(d_sinks); ++head) {
    const auto sink = static_cast<double>(call.options.sinks[static_cast<size_t>(head)]);
    double sum = 0;
    for (int64_t batch = 0; batch < call.shape.batch; ++batch) {
      for (int64_t row = 0; row < call.shape.queries; ++row) {
        const auto read = [&](const ConstAnyTensor& x, std::vector<float>& to) {
          const int64_t at = batch * x.strides[0] + head * x.strides[1] + row * x.strides[2];
          rules::read_floats(x.data, x.dtype, at, call.shape.value_dim, to.data());
        };
        read(inputs.out, out);
        read(inputs.d_out, d_out);
        double delta = 0;
        for (size_t c = 0; c < width; ++c) {
          delta += static_cast<double>(out[c]) * static_cast<double>(d_out[c]);
        }
        const ConstTensor& lse = inputs.lse;
        const float row_lse =
            lse.data[batch * lse.strides[0] + head * lse.strides[1] + row * lse.strides[2]];
        sum += std::exp(sink - static_cast<double>(row_lse)) * delta;
      }
    }
    d_sinks[static_cast<size_t>(head)] = static_cast<float>(-sum);
  }
}

// `alone` computes the call if the communicator has a single rank.
template <class Alone>
Status run(const Call& call, const Status& own, const BackwardInputs& inputs,
           const AttentionGradients& gradients, const Alone& alone, Communicator::Internals& ranks,
           Context& context) {
  Shards shards;
  MULTIHEAD_TRY(agree(call, own, ranks, shards));
  if (ranks.transport->size() == 1) return alone();
  GradientSums total;
  const auto method = call.sharding.method == Method::kRing        ? ring_backward
                      : call.sharding.method == Method::kAllGather ? gathered_backward
                                                                   : heads_backward;
  const Task task{call, shards, ranks, context};
  Status status = method(task, inputs, total);
  std::vector<float> d_q_gain(gradients.d_q_gain.size()), d_k_gain(gradients.d_k_gain.size());
  if (status.ok() && call.transforms()) {
    const int rank = ranks.transport->rank();
    status = transform_back(call, Operand::kQueries,
                            segments_of(shards.query_chunks(call, rank), call.cu_q), total.d_q,
                            d_q_gain, context);
    if (status.ok()) {
      status = transform_back(call, Operand::kKeys,
                              segments_of(shards.key_chunks(call, rank), call.cu_k), total.d_k,
                              d_k_gain, context);
    }
  }
  std::vector<float> d_sinks(gradients.d_sinks.size());
  if (status.ok()) differentiate_sinks(call, inputs, d_sinks);
  MULTIHEAD_TRY(agree_to_write(status, call, ranks));
  for (const auto& [from, to] :
       {std::pair{total.d_q, gradients.d_q}, std::pair{total.d_k, gradients.d_k},
        std::pair{total.d_v, gradients.d_v}}) {
    if (to.given()) convert(from, to, context);
  }
  if (gradients.d_bias.given()) {
    convert(as_scores(total.d_bias), as_scores(gradients.d_bias), context);
  }
  std::copy(d_q_gain.begin(), d_q_gain.end(), gradients.d_q_gain.begin());
  std::copy(d_k_gain.begin(), d_k_gain.end(), gradients.d_k_gain.begin());
  std::copy(d_sinks.begin(), d_sinks.end(), gradients.d_sinks.begin());
  return {};
}

}  // namespace

Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                          const AttentionOptions& options, const AttentionResults& results,
                          const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                          const Sharding& sharding, Communicator& communicator, Context& context) {
  return run_call(communicator, [&]() -> Status {
    MULTIHEAD_TRY(validate_communicator(communicator));
    const int32_t cu_q[] = {0, static_cast<int32_t>(sharding.queries)};
    const int32_t cu_k[] = {0, static_cast<int32_t>(sharding.keys)};
    Call call = call_of(CallKind::kBackward, options, sharding, cu_q, cu_k);
    call.q = q;
    call.k = k;
    call.v = v;
    Status own = validate_sharding(sharding);
    if (own.ok()) own = validate_method(call);
    if (own.ok()) own = validate_inputs(call);
    if (own.ok()) {
      own = engine::validate_backward(options, results, d_out, gradients, call.shape);
    }
    const auto alone = [&] {
      return multihead::attention_backward(q, k, v, options, results, d_out, gradients, context);
    };
    return run(call, own, {results.out, d_out, results.lse}, gradients, alone,
               *communicator.internals(), context);
  });
}

Status attention_varlen_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                 std::span<const int32_t> cu_k, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, const Sharding& sharding,
                                 Communicator& communicator, Context& context) {
  return run_call(communicator, [&]() -> Status {
    MULTIHEAD_TRY(validate_communicator(communicator));
    Call call = call_of(CallKind::kBackwardPacked, options, sharding, cu_q, cu_k);
    AttentionGradients row_gradients = gradients;
    BackwardInputs inputs;
    const auto check = [&]() -> Status {
      MULTIHEAD_TRY(validate_packed_inputs(q, k, v, call));
      MULTIHEAD_TRY(validate_method(call));
      MULTIHEAD_TRY(engine::validate_varlen_tensors(q, k, v, results, d_out, gradients));
      row_gradients.d_q = engine::rows_of(gradients.d_q, 0, q.shape[0]);
      row_gradients.d_k = engine::rows_of(gradients.d_k, 0, k.shape[0]);
      row_gradients.d_v = engine::rows_of(gradients.d_v, 0, v.shape[0]);
      inputs = {.out = engine::sequence_of(results.out, 0, q.shape[0]),
                .d_out = engine::sequence_of(d_out, 0, q.shape[0]),
                .lse = engine::lse_of(results.lse, 0, q.shape[0])};
      return engine::validate_backward(options, {.out = inputs.out, .lse = inputs.lse},
                                       inputs.d_out, row_gradients, call.shape);
    };
    const Status own = check();
    const auto alone = [&] {
      return multihead::attention_varlen_backward(q, k, v, cu_q, cu_k, options, results, d_out,
                                                  gradients, context);
    };
    return run(call, own, inputs, row_gradients, alone, *communicator.internals(), context);
  });
}

}  // namespace multihead::distributed
