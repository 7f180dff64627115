#include "distributed/agreement.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include "distributed/communicator.h"
#include "engine/attention/validate.h"
#include "engine/varlen/varlen.h"

namespace multihead::distributed {

Status option(const char* name, const char* expected, std::string_view got) {
  return {StatusCode::kOption, name, expected, got};
}

std::string text_of(double number) {
  char text[32];
  const auto [end, error] = std::to_chars(std::begin(text), std::end(text), number);
  return {text, error == std::errc() ? end : text};
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
                  text_of(sharding.time_limit));
  }
  return {};
}

// Checks a shard's rows of q, k and v, and options that refer to whole sequences.
Status validate_inputs(Call& call) {
  engine::AttentionShape& shape = call.shape;
  MULTIHEAD_TRY(engine::validate_inputs(call.q, call.k, call.v, shape));
  // Masks, biases and lengths cover all keys; positions of keys cover only the shard.
  AttentionOptions over_all_keys = call.options;
  over_all_keys.rope.k_positions = {};
  engine::AttentionShape with_all_keys = shape;
  with_all_keys.keys = call.sharding.keys;
  MULTIHEAD_TRY(engine::validate_options(over_all_keys, with_all_keys));
  MULTIHEAD_TRY(engine::validate_positions(engine::Name::kRopeKPositions,
                                           call.options.rope.k_positions, shape.batch, shape.keys));
  if (!call.options.rope.given() && !call.options.rope.k_positions.empty()) {
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

Status validate_varlen_inputs(const ConstAnyTensor& q, const ConstAnyTensor& k,
                              const ConstAnyTensor& v, Call& call) {
  const Sharding& sharding = call.sharding;
  MULTIHEAD_TRY(validate_sharding(sharding));
  // The cumulative lengths describe the whole problem, but the tensors hold only the shard's rows.
  ConstAnyTensor all_q = q, all_k = k, all_v = v;
  if (all_q.shape.rank() == 3) all_q.shape[0] = sharding.queries;
  if (all_k.shape.rank() == 3) all_k.shape[0] = sharding.keys;
  if (all_v.shape.rank() == 3 && v.shape[0] == k.shape[0]) all_v.shape[0] = sharding.keys;
  MULTIHEAD_TRY(engine::validate_varlen(engine::with_address(all_q), engine::with_address(all_k),
                                        engine::with_address(all_v), call.cu_q, call.cu_k,
                                        call.options));
  call.q = engine::sequence_of(q, 0, q.shape[0]);
  call.k = engine::sequence_of(k, 0, k.shape[0]);
  call.v = engine::sequence_of(v, 0, v.shape[0]);
  return validate_inputs(call);
}

Status validate_communicator(const Communicator& communicator) {
  if (communicator.size() == 0) {
    return option("communicator", "one that was created", "an empty one");
  }
  if (communicator.internals()->broken) {
    return {StatusCode::kExchange, "communicator", "one without an earlier failure",
            "one in which an exchange has failed"};
  }
  return {};
}

}  // namespace multihead::distributed
