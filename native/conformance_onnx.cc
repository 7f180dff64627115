// The ONNX operator of the conformance pack.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "conformance_case.h"
#include "multihead/multihead.h"
#include "multihead/safetensors.h"

namespace multihead::conformance {
namespace {

// Shape of an ONNX tensor as (B, H, S, D). Rank 3, (B, S, H * D), is viewed as (B, S, H, D).
Dims onnx_shape(const Dims& shape, int64_t heads) {
  if (shape.rank() != 3) return shape;
  return {shape[0], heads, shape[1], shape[2] / heads};
}

Dims onnx_strides(const Dims& shape, int64_t heads) {
  if (shape.rank() != 3) return contiguous_strides(shape);
  return {shape[1] * shape[2], shape[2] / heads, shape[2], 1};
}

// Concatenates past and new rows: (B, H, P + S, D), contiguous.
Values concatenated(const Values& past, const ConstTensor& added) {
  const int64_t before = past.shape.rank() == 4 ? past.shape[2] : 0;
  const int64_t width = added.shape[3];
  Values result({added.shape[0], added.shape[1], before + added.shape[2], width});
  auto to = result.data.begin();
  for (int64_t b = 0; b < added.shape[0]; ++b) {
    for (int64_t h = 0; h < added.shape[1]; ++h) {
      const auto from = past.data.begin() + (b * added.shape[1] + h) * before * width;
      to = std::copy_n(from, before * width, to);
      for (int64_t row = 0; row < added.shape[2]; ++row) {
        to = std::copy_n(
            added.data + b * added.strides[0] + h * added.strides[1] + row * added.strides[2],
            width, to);
      }
    }
  }
  return result;
}

// Extends a mask of rank 4 to `keys` columns, filled with `hidden`.
template <class T>
std::vector<T> continued(const T* data, Dims& shape, int64_t keys, T hidden) {
  const int64_t given = shape[3];
  const int64_t rows = given == 0 ? 0 : shape.elements() / given;
  shape[3] = std::max(given, keys);
  std::vector<T> result(static_cast<size_t>(shape.elements()), hidden);
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(data + row * given, given, result.begin() + row * shape[3]);
  }
  return result;
}

// The stage for ONNX's qk_matmul_output_mode. Mode 1, "s0 + mask", and mode 2 without softcap are
// the masked scores, with -inf for hidden keys. run_onnx_attention() rejects a mask together with
// softcap, so with softcap mode 1 is the raw scores.
ScoreStage onnx_stage(int64_t mode, bool softcap) {
  switch (mode) {
    case 1:
      return softcap ? ScoreStage::kRaw : ScoreStage::kMasked;
    case 2:
      return softcap ? ScoreStage::kCapped : ScoreStage::kMasked;
    case 3:
      return ScoreStage::kWeights;
    default:
      return ScoreStage::kRaw;
  }
}

}  // namespace

// https://onnx.ai/onnx/operators/onnx__Attention.html, opsets 23 and 24.
Outcome run_onnx_attention(const Case& c, Context& context) {
  const int64_t q_heads = c.integer("q_num_heads", 0), kv_heads = c.integer("kv_num_heads", 0);
  const int64_t opset = c.integer("opset", 23), mode = c.integer("qk_matmul_output_mode", 0);
  if (mode < 0 || mode > 3) return unsupported("qk_matmul_output_mode " + std::to_string(mode));
  const Values given_q = c.floats("Q");
  const Values given_k = c.floats("K");
  const Values given_v = c.floats("V");
  const auto view = [](const Values& values, int64_t heads) {
    return ConstTensor(values.data.data(), onnx_shape(values.shape, heads),
                       onnx_strides(values.shape, heads));
  };
  const ConstTensor q = view(given_q, q_heads);
  const ConstTensor new_k = view(given_k, kv_heads), new_v = view(given_v, kv_heads);
  const Values past_k = c.floats("past_key"), past_v = c.floats("past_value");
  Values k = concatenated(past_k, new_k);
  Values v = concatenated(past_v, new_v);
  const int64_t keys = k.shape[2];

  AttentionOptions options;
  if (c.is_set("scale")) options.scale = static_cast<float>(c.number("scale", 1));
  options.softcap = static_cast<float>(c.number("softcap", 0));
  if (c.flag("is_causal")) options.causal = Causal::at_offset(keys - new_k.shape[2]);
  const std::vector<int32_t> lengths = c.integers("nonpad_kv_seqlen");
  options.kv_lengths = lengths;
  std::vector<float> bias;
  std::vector<uint8_t> mask;
  if (const SafetensorsEntry* entry = c.input("attn_mask"); entry != nullptr) {
    Dims shape = of_rank_four(entry->shape);
    // Opset 23 broadcasts a last axis of 1, opset 24 extends it.
    const int64_t reach = shape[3] == 1 && opset < 24 ? 1 : keys;
    if (entry->type == SafetensorsEntry::Type::kBool) {
      mask =
          continued(reinterpret_cast<const uint8_t*>(entry->data.data()), shape, reach, uint8_t{0});
      options.mask = {mask.data(), shape};
    } else {
      bias = continued(Case::floats_of(entry).data.data(), shape, reach,
                       -std::numeric_limits<float>::infinity());
      options.bias = {bias.data(), shape};
    }
  }
  const bool masked =
      options.mask.given() || options.bias.given() || !lengths.empty() || options.causal.given();
  if (options.softcap > 0 && masked) {
    return unsupported("a mask with softcap, which ONNX applies after the mask");
  }

  Outcome outcome;
  Dims out_shape = given_q.shape;
  const int64_t value_dim = v.shape[3];
  out_shape[out_shape.rank() - 1] = out_shape.rank() == 3 ? q_heads * value_dim : value_dim;
  Values out(out_shape);
  Values scores({q.shape[0], q.shape[1], q.shape[2], keys});
  std::vector<ScoreCapture> captures;
  if (c.is_set("qk_matmul_output_mode")) {
    captures.push_back({.stage = onnx_stage(mode, options.softcap > 0), .out = scores.tensor()});
  }
  const Status status = attention(q, k.view(), v.view(), options,
                                  {.out = Tensor(out.data.data(), onnx_shape(out_shape, q_heads),
                                                 onnx_strides(out_shape, q_heads)),
                                   .captures = captures},
                                  context);
  if (!status.ok()) return failed(status);
  outcome.outputs["Y"] = std::move(out);
  outcome.outputs["present_key"] = std::move(k);
  outcome.outputs["present_value"] = std::move(v);
  if (!captures.empty()) outcome.outputs["qk_matmul_output"] = std::move(scores);
  return outcome;
}

}  // namespace multihead::conformance
