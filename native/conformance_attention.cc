// The operations of the conformance pack on attention itself.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "conformance_case.h"
#include "multihead/multihead.h"
#include "multihead/safetensors.h"

namespace multihead::conformance {
namespace {

// A case's options, and the memory that they point to.
struct CaseOptions {
  AttentionOptions options;
  Values bias, slopes, sinks;
  std::vector<int32_t> lengths, q_positions, k_positions;
  std::string failure;
};

Rope rope_of(const json& attribute) {
  return Rope{
      .style = attribute.at("style") == "half" ? Rope::Style::kHalf : Rope::Style::kInterleaved,
      .base = attribute.value("base", 10000.0),
      .rotary_dim = attribute.value("rotary_dim", int64_t{0})};
}

// Reads the options of `attention` and `attention_varlen`, for `heads` query heads.
void read_options(const Case& c, int64_t heads, CaseOptions& result) {
  AttentionOptions& options = result.options;
  const std::optional<Causal> alignment = alignment_of(c);
  if (!alignment) {
    result.failure = "not supported yet: align " + c.text("align", "");
    return;
  }
  c.implied({"enable_gqa", "mask_kind"});
  options.window = {.left = c.integer("window_left", -1), .right = c.integer("window_right", -1)};
  if (c.flag("causal")) {
    options.causal = *alignment;
  } else if (options.window.given()) {
    options.window.alignment = alignment->alignment;
    options.window.offset = alignment->offset;
  }
  if (c.is_set("scale")) options.scale = static_cast<float>(c.number("scale", 1));
  options.softcap = static_cast<float>(c.number("softcap", 0));
  const bool alibi = c.flag("alibi");
  result.slopes = c.floats("alibi_slopes");
  if (alibi && result.slopes.data.empty()) {
    result.slopes = Values({heads});
    alibi_slopes(result.slopes.data);
  }
  if (c.number("alibi_max_bias", 8) != 8) {
    result.failure = "not supported yet: alibi_max_bias other than 8";
    return;
  }
  result.sinks = c.floats("sinks");
  result.lengths = c.integers("kv_len");
  options.alibi_slopes = result.slopes.data;
  options.sinks = result.sinks.data;
  options.kv_lengths = result.lengths;
  result.bias = c.floats("mask");
  if (const SafetensorsEntry* mask = c.input("mask"); mask != nullptr) {
    const Dims shape = of_rank_four(mask->shape);
    if (mask->type == SafetensorsEntry::Type::kBool) {
      options.mask = {reinterpret_cast<const uint8_t*>(mask->data.data()), shape};
    } else {
      options.bias = {result.bias.data.data(), shape};
    }
  }
  if (const json* const rope = c.given("rope"); rope != nullptr) {
    options.rope = rope_of(*rope);
    result.q_positions = c.integers("q_positions");
    result.k_positions = c.integers("k_positions");
    options.rope.q_positions = result.q_positions;
    options.rope.k_positions = result.k_positions;
  }
}

// If the case has the output `name`, adds x, rotated like in the call.
Status add_rotated(const Case& c, const char* name, const Values& x, const Rope& rope,
                   std::span<const int32_t> positions, Context& context, Outcome& outcome) {
  if (!c.has_output(name)) return {};
  Values rotated(x.shape);
  Status status = rotate(x.view(), positions, rope, rotated.tensor(), context);
  outcome.outputs[name] = std::move(rotated);
  return status;
}

}  // namespace

Outcome run_attention(const Case& c, Context& context) {
  const Values q = c.floats("q");
  const Values k = c.floats("k");
  const Values v = c.floats("v");
  CaseOptions given;
  read_options(c, q.shape[1], given);
  if (!given.failure.empty()) return {{}, given.failure};
  Values out({q.shape[0], q.shape[1], q.shape[2], v.shape[3]});
  Values lse({q.shape[0], q.shape[1], q.shape[2]});
  Values weights({q.shape[0], q.shape[1], q.shape[2], k.shape[2]});
  Status status =
      attention(q.view(), k.view(), v.view(), given.options,
                {.out = out.tensor(), .lse = lse.tensor(), .weights = weights.tensor()}, context);
  if (!status.ok()) return failed(status);

  Outcome outcome;
  if (c.has_output("lse_no_sink")) {
    AttentionOptions without = given.options;
    without.sinks = {};
    Values other_out(out.shape);
    Values other_lse(lse.shape);
    status = attention(q.view(), k.view(), v.view(), without,
                       {.out = other_out.tensor(), .lse = other_lse.tensor()}, context);
    if (!status.ok()) return failed(status);
    outcome.outputs["lse_no_sink"] = std::move(other_lse);
  }
  const Rope& rope = given.options.rope;
  status = add_rotated(c, "q_rotated", q, rope, rope.q_positions, context, outcome);
  if (!status.ok()) return failed(status);
  status = add_rotated(c, "k_rotated", k, rope, rope.k_positions, context, outcome);
  if (!status.ok()) return failed(status);
  outcome.outputs["out"] = std::move(out);
  outcome.outputs["lse"] = std::move(lse);
  outcome.outputs["weights"] = std::move(weights);
  return outcome;
}

// Computes the gradients of sum(d_out * out).
Outcome run_attention_grad(const Case& c, Context& context) {
  const Values q = c.floats("q");
  const Values k = c.floats("k");
  const Values v = c.floats("v");
  const Values d_out = c.floats("d_out");
  const Dims out_shape{q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  CaseOptions given;
  read_options(c, q.shape[1], given);
  if (!given.failure.empty()) return {{}, given.failure};
  const AttentionOptions& options = given.options;
  Values out(out_shape);
  Values lse({q.shape[0], q.shape[1], q.shape[2]});
  Status status = attention(q.view(), k.view(), v.view(), options,
                            {.out = out.tensor(), .lse = lse.tensor()}, context);
  if (!status.ok()) return failed(status);

  Values d_q(q.shape), d_k(k.shape), d_v(v.shape);
  Values d_mask(options.bias.given() ? options.bias.shape : Dims{});
  Values d_sinks({static_cast<int64_t>(options.sinks.size())});
  AttentionGradients gradients{.d_q = d_q.tensor(), .d_k = d_k.tensor(), .d_v = d_v.tensor()};
  if (options.bias.given()) gradients.d_bias = d_mask.tensor();
  gradients.d_sinks = d_sinks.data;
  status =
      attention_backward(q.view(), k.view(), v.view(), options,
                         {.out = out.view(), .lse = lse.view()}, d_out.view(), gradients, context);
  if (!status.ok()) return failed(status);
  // Give d_mask the rank that the case uses.
  if (const SafetensorsEntry* const mask = c.input("mask"); mask != nullptr) {
    d_mask.shape = mask->shape;
  }
  Outcome outcome;
  outcome.outputs["out"] = std::move(out);
  outcome.outputs["lse"] = std::move(lse);
  outcome.outputs["d_q"] = std::move(d_q);
  outcome.outputs["d_k"] = std::move(d_k);
  outcome.outputs["d_v"] = std::move(d_v);
  outcome.outputs["d_mask"] = std::move(d_mask);
  outcome.outputs["d_sinks"] = std::move(d_sinks);
  return outcome;
}

Outcome run_attention_varlen(const Case& c, Context& context) {
  const Values q = c.floats("q");
  const Values k = c.floats("k");
  const Values v = c.floats("v");
  CaseOptions given;
  read_options(c, q.shape[1], given);
  if (!given.failure.empty()) return {{}, given.failure};
  Values out({q.shape[0], q.shape[1], v.shape[2]});
  Values lse({q.shape[1], q.shape[0]});
  const Status status = attention_varlen(q.view(), k.view(), v.view(), c.integers("cu_seqlens_q"),
                                         c.integers("cu_seqlens_k"), given.options,
                                         {.out = out.tensor(), .lse = lse.tensor()}, context);
  if (!status.ok()) return failed(status);
  return {{{"out", std::move(out)}, {"lse", std::move(lse)}}, {}};
}

// Attention on given scores: Q = scores, K = the identity, scale 1.
Outcome run_softmax(const Case& c, Context& context) {
  const std::optional<Causal> causal = alignment_of(c);
  if (!causal) return unsupported("align " + c.text("align", ""));
  Values scores = c.floats("scores");
  const Dims shape = scores.shape;
  const int rank = shape.rank();
  const int64_t rows = shape[rank - 2];
  const int64_t keys = shape[rank - 1];
  const int64_t heads = shape.elements() / (rows * keys);
  Values identity({1, 1, keys, keys});
  for (int64_t i = 0; i < keys; ++i) {
    identity.data[static_cast<size_t>(i * keys + i)] = 1.0F;
  }
  Values out({1, heads, rows, keys});
  Values lse({1, heads, rows});
  Values weights({1, heads, rows, keys});
  const Status status =
      attention({scores.data.data(), {1, heads, rows, keys}}, identity.view(), identity.view(),
                {.scale = 1.0F, .causal = c.flag("causal") ? *causal : Causal::none()},
                {.out = out.tensor(), .lse = lse.tensor(), .weights = weights.tensor()}, context);
  if (!status.ok()) return failed(status);

  if (c.has_input("printed_weights")) {
    // A published value may be off by one in its last digit, because some were computed from
    // rounded scores.
    const Values printed = c.floats("printed_weights");
    const int64_t decimals = c.integer("printed_decimals", 0);
    const double step = std::pow(10.0, -static_cast<double>(decimals));
    const json* const wrong = c.given("printed_rows_wrong");
    for (size_t i = 0; i < printed.data.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / keys % rows;
      if (wrong != nullptr && std::find(wrong->begin(), wrong->end(), json(row)) != wrong->end()) {
        continue;
      }
      const double error =
          std::abs(static_cast<double>(printed.data[i]) - static_cast<double>(weights.data[i]));
      if (!(error <= 1.01 * step)) {
        return {{}, "weights differ from the printed ones in row " + std::to_string(row)};
      }
    }
  }
  Dims lse_shape;
  for (int axis = 0; axis + 1 < rank; ++axis) lse_shape.push_back(shape[axis]);
  lse.shape = lse_shape;
  weights.shape = shape;
  return {{{"weights", std::move(weights)}, {"lse", std::move(lse)}}, {}};
}

}  // namespace multihead::conformance
