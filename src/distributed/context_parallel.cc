// The public calls: checks, agreement of the ranks, one of the methods, and the results.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "distributed/agreement.h"
#include "distributed/call.h"
#include "distributed/communicator.h"
#include "distributed/forward.h"
#include "distributed/rectangles.h"
#include "engine/guard.h"
#include "engine/placeholder.h"
#include "engine/validate.h"
#include "engine/varlen.h"
#include "multihead/distributed.h"

namespace multihead::distributed {
namespace {

using engine::AttentionShape;

Status option(const char* name, const char* expected, std::string got) {
  return {StatusCode::kOption, name, expected, std::move(got)};
}

Status validate_sharding(const Sharding& sharding) {
  constexpr int64_t kMostRows = INT32_MAX;
  if (sharding.method > Method::kDecode) {
    return option("sharding.method", "a Method", std::to_string(static_cast<int>(sharding.method)));
  }
  if (sharding.layout > Layout::kZigzag) {
    return option("sharding.layout", "a Layout", std::to_string(static_cast<int>(sharding.layout)));
  }
  if (sharding.method == Method::kDecode && sharding.layout != Layout::kContiguous) {
    return option("sharding.layout", "kContiguous with kDecode", "kZigzag");
  }
  if (sharding.queries < 0 || sharding.queries > kMostRows) {
    return option("sharding.queries", "the rows of the whole problem, up to 2147483647",
                  std::to_string(sharding.queries));
  }
  if (sharding.keys < 0 || sharding.keys > kMostRows) {
    return option("sharding.keys", "the rows of the whole problem, up to 2147483647",
                  std::to_string(sharding.keys));
  }
  if (!(sharding.time_limit > 0.0) || std::isinf(sharding.time_limit)) {
    return option("sharding.time_limit", "seconds, finite and more than 0",
                  std::to_string(sharding.time_limit));
  }
  return {};
}

// A shard's rows of q, k and v, and options that count in whole sequences.
Status validate_inputs(Call& call) {
  AttentionShape& shape = call.shape;
  if (Status status = engine::validate_inputs(call.q, call.k, call.v, shape); !status.ok()) {
    return status;
  }
  // Masks, biases and lengths cover all keys; positions of keys are those of the shard.
  AttentionOptions over_all_keys = call.options;
  over_all_keys.rope.k_positions = {};
  AttentionShape with_all_keys = shape;
  with_all_keys.keys = call.sharding.keys;
  if (Status status = engine::validate_options(over_all_keys, with_all_keys); !status.ok()) {
    return status;
  }
  if (Status status = engine::validate_positions(
          engine::Name::kRopeKPositions, call.options.rope.k_positions, shape.batch, shape.keys);
      !status.ok()) {
    return status;
  }
  if (call.options.rope.style == Rope::Style::kNone && !call.options.rope.k_positions.empty()) {
    return option("rope.k_positions", "none without a rope.style", "some");
  }
  if (call.sharding.method != Method::kHeads) return {};
  const auto differs_by_query = [](const auto& view) {
    return view.given() && view.shape[view.shape.rank() - 2] != 1;
  };
  if (differs_by_query(call.options.mask) || differs_by_query(call.options.bias)) {
    return option(differs_by_query(call.options.mask) ? "mask" : "bias",
                  "an extent of 1 along the queries with kHeads", "another");
  }
  return {};
}

Status validate_results(const AttentionOutputs& outputs) {
  const struct {
    const char* name;
    bool given;
  } refused[] = {{"captures", !outputs.captures.empty()},
                 {"weights", outputs.weights.given()},
                 {"dropout_mask", outputs.dropout_mask.given()}};
  for (const auto& [name, given] : refused) {
    if (given) return option(name, "none in a distributed call", "one");
  }
  return {};
}

Status validate_packed_results(const ConstAnyTensor& q, const ConstAnyTensor& v,
                               const AttentionOutputs& outputs) {
  using engine::Axes;
  using engine::Name;
  if (Status status = validate_results(outputs); !status.ok()) return status;
  if (Status status = engine::validate_exact(Name::kOut, Axes::kPackedOut, outputs.out,
                                             {q.shape[0], q.shape[1], v.shape[2]});
      !status.ok() || !outputs.lse.given()) {
    return status;
  }
  return engine::validate_exact(Name::kLse, Axes::kPackedLse, outputs.lse,
                                {q.shape[1], q.shape[0]});
}

// One more score of each row, without a value.
void add_sinks(const Call& call, const PartialResult& total, Context& context) {
  if (call.options.sinks.empty()) return;
  const std::vector<float> no_value(static_cast<size_t>(call.shape.value_width));
  merge(total, ConstTensor(no_value.data(), total.out.shape, {0, 0, 0, 1}),
        ConstTensor(call.options.sinks.data(), total.lse.shape, {0, 1, 0}), context);
}

// What is left if a step fails on this rank alone: the others wait in vain, until their time limit.
Status broken_by(const Status& status, Communicator::Internals& ranks) {
  if (!status.ok() && status.code() == StatusCode::kMemory) ranks.broken = true;
  return status;
}

Status run(const Call& call, const Status& own, const AnyTensor& out, const Tensor& lse,
           Communicator::Internals& ranks, Context& context) {
  Shards shards;
  if (Status status = agree(call, own, ranks, shards); !status.ok()) return status;
  PartialResult total;
  Status status;
  switch (call.sharding.method) {
    case Method::kRing:
      status = ring_attention(call, shards, ranks, context, total);
      break;
    case Method::kAllGather:
      status = gathered_attention(call, shards, ranks, context, total);
      break;
    case Method::kHeads:
      status = heads_attention(call, shards, ranks, context, total);
      break;
    case Method::kDecode:
      status = decode_attention(call, shards, ranks, context, total);
      break;
  }
  if (!status.ok()) return broken_by(status, ranks);
  // This rank may have all that it needs while another waits for one that has left.
  status = agree(Status(), call.sharding.time_limit, ranks);
  if (!status.ok()) return status;
  add_sinks(call, total, context);
  convert(total.out, out, context);
  if (lse.given()) copy(ConstAnyTensor(as_columns(total.lse)), as_columns(lse), context);
  return {};
}

Status validate_communicator(const Communicator& communicator) {
  if (communicator.size() == 0) {
    return option("communicator", "one that was created", "an empty one");
  }
  if (communicator.internals()->broken) {
    return {kExchange, "communicator", "one without an earlier failure",
            "one in which an exchange has failed"};
  }
  return {};
}

}  // namespace

Status attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                 const AttentionOptions& options, const AttentionOutputs& outputs,
                 const Sharding& sharding, Communicator& communicator, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (Status status = validate_communicator(communicator); !status.ok()) return status;
    const int32_t cu_q[] = {0, static_cast<int32_t>(sharding.queries)};
    const int32_t cu_k[] = {0, static_cast<int32_t>(sharding.keys)};
    Call call{.kind = CallKind::kForward,
              .q = q,
              .k = k,
              .v = v,
              .options = options,
              .cu_q = cu_q,
              .cu_k = cu_k,
              .sharding = sharding,
              .shape = {}};
    Status own = validate_sharding(sharding);
    if (own.ok()) own = validate_inputs(call);
    if (own.ok()) own = validate_results(outputs);
    if (own.ok()) own = engine::validate_outputs(outputs, call.shape);
    if (communicator.size() == 1) {
      Shards shards;
      own = agree(call, own, *communicator.internals(), shards);
      return own.ok() ? multihead::attention(q, k, v, options, outputs, context) : own;
    }
    return run(call, own, outputs.out, outputs.lse, *communicator.internals(), context);
  });
}

Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        const Sharding& sharding, Communicator& communicator, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (Status status = validate_communicator(communicator); !status.ok()) return status;
    Call call{.kind = CallKind::kForwardPacked,
              .q = {},
              .k = {},
              .v = {},
              .options = options,
              .cu_q = cu_q,
              .cu_k = cu_k,
              .sharding = sharding,
              .shape = {}};
    AnyTensor out;
    Tensor lse;
    const auto check = [&]() -> Status {
      if (Status status = validate_sharding(sharding); !status.ok()) return status;
      // The cumulative lengths are those of the whole problem, the rows those of the shard.
      ConstAnyTensor all_q = q, all_k = k, all_v = v;
      if (all_q.shape.rank() == 3) all_q.shape[0] = sharding.queries;
      if (all_k.shape.rank() == 3) all_k.shape[0] = sharding.keys;
      if (all_v.shape.rank() == 3 && v.shape[0] == k.shape[0]) all_v.shape[0] = sharding.keys;
      if (Status status =
              engine::validate_packed(engine::with_address(all_q), engine::with_address(all_k),
                                      engine::with_address(all_v), cu_q, cu_k, options);
          !status.ok()) {
        return status;
      }
      if (Status status = validate_packed_results(q, v, outputs); !status.ok()) return status;
      call.q = engine::sequence_of(q, 0, q.shape[0]);
      call.k = engine::sequence_of(k, 0, k.shape[0]);
      call.v = engine::sequence_of(v, 0, v.shape[0]);
      out = engine::sequence_of(outputs.out, 0, q.shape[0]);
      if (outputs.lse.given()) lse = engine::lse_of(outputs.lse, 0, q.shape[0]);
      return validate_inputs(call);
    };
    const Status own = check();
    if (communicator.size() == 1) {
      Shards shards;
      const Status agreed = agree(call, own, *communicator.internals(), shards);
      if (!agreed.ok()) return agreed;
      return multihead::attention_varlen(q, k, v, cu_q, cu_k, options, outputs, context);
    }
    return run(call, own, out, lse, *communicator.internals(), context);
  });
}

}  // namespace multihead::distributed
