// Makes the calls on tensors with any operands and options: each call must either be refused
// without writing anything, or equal the oracle.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "fuzz/bytes.h"
#include "fuzz/operands.h"
#include "multihead/lab.h"
#include "multihead/multihead.h"
#include "reference/reference_attention.h"
#include "reference/reference_backward.h"
#include "rules/element.h"

namespace {

using namespace multihead;  // NOLINT(google-build-using-namespace)
using fuzz::Bytes;
using fuzz::Operands;

struct Shape {
  int64_t batch, heads, kv_heads, queries, keys, width, value_dim;
};

Shape shape_of(Bytes& from) {
  Shape s{};
  s.batch = from.integer(from.one_in(16) ? 0 : 1, 2);
  s.kv_heads = from.integer(from.one_in(16) ? 0 : 1, 2);
  s.heads = s.kv_heads * from.integer(from.one_in(16) ? 0 : 1, 3) + (from.one_in(64) ? 1 : 0);
  s.queries = from.integer(from.one_in(16) ? 0 : 1, from.one_in(8) ? 40 : 5);
  s.keys = from.one_in(32) ? 270 : from.integer(from.one_in(16) ? 0 : 1, 9);
  s.width = from.integer(from.one_in(32) ? 0 : 1, 10);
  s.value_dim = from.integer(from.one_in(32) ? 0 : 1, 10);
  return s;
}

DType dtype_of(Bytes& from) {
  return from.one_in(3) ? static_cast<DType>(from.integer(1, 2)) : DType::kF32;
}

// Returns one of the first `count` enumerators, or rarely any number.
template <class Enum>
Enum enumerator(Bytes& from, int count) {
  return static_cast<Enum>(from.one_in(128) ? from.byte() : from.integer(0, count - 1));
}

float option(Operands& operands, Bytes& from, float low, float high) {
  if (operands.wild() && from.one_in(4)) return from.special();
  return low + (high - low) * static_cast<float>(from.byte()) / 255.0F;
}

int64_t offset(Bytes& from) {
  return from.one_in(8) ? from.integer(INT64_MIN, INT64_MAX) : from.integer(-6, 6);
}

Dims mask_shape(Bytes& from, const Shape& s) {
  const auto keep = [&](int64_t extent) { return from.one_in(3) ? int64_t{1} : extent; };
  if (from.one_in(2)) return {keep(s.queries), keep(s.keys)};
  return {keep(s.batch), keep(s.heads), keep(s.queries), keep(s.keys)};
}

Rope rope_of(Operands& operands, Bytes& from, const Shape& s) {
  Rope rope{.style = enumerator<Rope::Style>(from, 3)};
  if (rope.style == Rope::Style::kNone && !from.one_in(32)) return rope;
  rope.base = static_cast<double>(option(operands, from, 2.0F, 10000.0F));
  if (from.one_in(2)) rope.rotary_dim = from.integer(from.one_in(16) ? -1 : 0, s.width / 2) * 2;
  if (from.one_in(64)) rope.rotary_dim = from.integer(INT64_MIN, INT64_MAX);
  if (from.one_in(2)) {
    rope.q_positions = operands.integers(from.one_in(2) ? s.queries : s.batch * s.queries, 0, 50);
    rope.k_positions = operands.integers(from.one_in(2) ? s.keys : s.batch * s.keys, 0, 50);
  }
  return rope;
}

AttentionOptions options_of(Operands& operands, Bytes& from, const Shape& s, bool packed) {
  AttentionOptions o;
  if (from.one_in(2)) o.scale = option(operands, from, -2.0F, 2.0F);
  const auto alignment = [&] {
    auto chosen = enumerator<Alignment>(from, 5);
    if (chosen == Alignment::kBottomRightOfLength && packed) chosen = Alignment::kTopLeft;
    return chosen;
  };
  if (from.one_in(2)) o.causal = {alignment(), offset(from)};
  if (from.one_in(3)) {
    o.window.left = from.one_in(16) ? from.integer(INT64_MIN, INT64_MAX) : from.integer(-1, 6);
    o.window.right = from.one_in(16) ? from.integer(INT64_MIN, INT64_MAX) : from.integer(-1, 6);
    if (from.one_in(2)) o.window.alignment = alignment();
    o.window.offset = o.window.alignment == o.causal.alignment ? o.causal.offset : offset(from);
  }
  if (from.one_in(4) && !packed) o.mask = operands.bools(mask_shape(from, s));
  if (from.one_in(4) && !packed) o.bias = operands.floats(mask_shape(from, s));
  if (!packed && (from.one_in(3) || o.causal.alignment == Alignment::kBottomRightOfLength)) {
    o.kv_lengths = operands.integers(s.batch, 0, s.keys);
  }
  if (from.one_in(5)) o.alibi_slopes = operands.values(s.heads);
  if (from.one_in(4)) o.softcap = option(operands, from, 0.0F, 20.0F);
  if (from.one_in(5)) o.sinks = operands.values(s.heads);
  if (from.one_in(5)) {
    o.qk_norm.enabled = !from.one_in(16);
    if (from.one_in(2)) o.qk_norm.q_gain = operands.values(s.width);
    if (from.one_in(2)) o.qk_norm.k_gain = operands.values(s.width);
    o.qk_norm.eps = option(operands, from, 1e-6F, 1e-2F);
  }
  if (from.one_in(4)) o.rope = rope_of(operands, from, s);
  if (packed) o.rope.q_positions = o.rope.k_positions = {};
  if (from.one_in(6)) {
    o.dropout = {option(operands, from, 0.0F, 0.9F),
                 static_cast<uint64_t>(from.integer(INT64_MIN, INT64_MAX))};
  }
  if (from.one_in(8)) o.precision = enumerator<Precision>(from, 2);
  return o;
}

float element(const AnyTensor& tensor, int64_t at) {
  float value = 0.0F;
  rules::read_floats(tensor.data, tensor.dtype, at, 1, &value);
  return value;
}

// Compares row-major `expected` with a tensor of any strides.
void compare(const char* name, const AnyTensor& got, const std::vector<double>& expected,
             double tolerance) {
  FUZZ_CHECK(got.shape.elements() == static_cast<int64_t>(expected.size()), "%s", name);
  const double relative = got.dtype == DType::kF32 ? 0.0 : got.dtype == DType::kF16 ? 1e-3 : 8e-3;
  for (size_t i = 0; i < expected.size(); ++i) {
    int64_t at = 0;
    auto rest = static_cast<int64_t>(i);
    for (int axis = got.shape.rank() - 1; axis >= 0; --axis) {
      at += rest % got.shape[axis] * got.strides[axis];
      rest /= got.shape[axis];
    }
    const auto value = static_cast<double>(element(got, at));
    const double allowed =
        tolerance * std::max(1.0, std::abs(expected[i]) / 8) + relative * std::abs(expected[i]);
    FUZZ_CHECK(value == expected[i] || std::abs(value - expected[i]) <= allowed,
               "%s[%zu]: %.9g, not %.9g", name, i, value, expected[i]);
  }
}

// The relative error of a weight equals the absolute error of its score, which grows with the
// score.
double tolerance_of(const reference::ReferenceOutputs& expected, const AttentionOptions& options,
                    DType dtype) {
  double size = 8;
  for (const double score : expected.raw) {
    if (std::isfinite(score)) size = std::max(size, std::abs(score));
  }
  return (options.precision == Precision::kBf16 && dtype == DType::kBF16 ? 2e-2 : 2e-5) * size / 8;
}

// Computes and compares the gradients of a call that was accepted.
void differentiate(Operands& operands, const ConstAnyTensor& q, const ConstAnyTensor& k,
                   const ConstAnyTensor& v, const AttentionOptions& options,
                   const AttentionOutputs& outputs, double tolerance, Context& context) {
  const ConstAnyTensor d_out = operands.input(outputs.out.shape, DType::kF32);
  AttentionGradients gradients{.d_q = operands.float_output(q.shape),
                               .d_k = operands.float_output(k.shape),
                               .d_v = operands.float_output(v.shape)};
  if (options.bias.given()) gradients.d_bias = operands.float_output(options.bias.shape);
  std::vector<float> d_sinks(options.sinks.size());
  gradients.d_sinks = d_sinks;
  const Status status = attention_backward(
      q, k, v, options, {.out = outputs.out, .lse = outputs.lse}, d_out, gradients, context);
  fuzz::check_words(status);
  if (!status.ok() || operands.wild()) return;
  const auto expected = reference::attention_backward(q, k, v, options, d_out);
  double largest = 1;
  for (const auto* gradient : {&expected.d_q, &expected.d_k, &expected.d_v}) {
    for (const double value : *gradient) {
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    }
  }
  tolerance *= 16 * largest;
  compare("d_q", gradients.d_q, expected.d_q, tolerance);
  compare("d_k", gradients.d_k, expected.d_k, tolerance);
  compare("d_v", gradients.d_v, expected.d_v, tolerance);
  if (options.bias.given()) compare("d_bias", gradients.d_bias, expected.d_bias, tolerance);
}

void attend(Bytes& from) {
  Operands operands(from, from.one_in(4));
  const Shape s = shape_of(from);
  const DType q_type = dtype_of(from), kv_type = dtype_of(from);
  const ConstAnyTensor q = operands.input({s.batch, s.heads, s.queries, s.width}, q_type);
  const ConstAnyTensor k = operands.input({s.batch, s.kv_heads, s.keys, s.width}, kv_type);
  const ConstAnyTensor v = operands.input({s.batch, s.kv_heads, s.keys, s.value_dim}, kv_type);
  const AttentionOptions options = options_of(operands, from, s, false);
  AttentionOutputs outputs{
      .out = operands.output({s.batch, s.heads, s.queries, s.value_dim}, dtype_of(from))};
  if (from.one_in(2)) outputs.lse = operands.float_output({s.batch, s.heads, s.queries});
  const Dims scores{s.batch, s.heads, s.queries, s.keys};
  if (from.one_in(3)) outputs.weights = operands.float_output(scores);
  std::vector<ScoreCapture> captures;
  for (int64_t n = from.one_in(3) ? from.integer(1, 2) : 0; n > 0; --n) {
    ScoreCapture capture{.stage = enumerator<ScoreStage>(from, 4)};
    if (from.one_in(2)) capture.heads = operands.integers(from.integer(0, 2), 0, s.heads - 1);
    capture.first_row = from.one_in(4) ? from.integer(-1, 3) : 0;
    const int64_t heads =
        capture.heads.empty() ? s.heads : static_cast<int64_t>(capture.heads.size());
    capture.out = operands.float_output(
        {s.batch, heads, std::max<int64_t>(s.queries - capture.first_row, 0), s.keys});
    captures.push_back(capture);
  }
  outputs.captures = captures;
  Context context(static_cast<int>(from.integer(1, 2)));
  const bool prepares = from.one_in(4);
  PreparedAttention prepared;
  Status status;
  if (prepares) {
    status = PreparedAttention::create(q, k, v, options, outputs, context, prepared);
    operands.check_untouched();
    if (status.ok()) {
      status = prepared.run(q.data, k.data, v.data, outputs.out.data);
    }
  } else {
    status = attention(q, k, v, options, outputs, context);
  }
  fuzz::check_words(status);
  if (!status.ok()) return operands.check_untouched();
  const auto expected = operands.wild() ? reference::ReferenceOutputs()
                                        : reference::attention(q, k, v, options, true);
  const double tolerance = tolerance_of(expected, options, q.dtype);
  if (outputs.lse.given() && outputs.out.dtype == DType::kF32) {
    differentiate(operands, q, k, v, options, outputs, tolerance, context);
  }
  if (operands.wild()) return;
  compare("out", outputs.out, expected.out, tolerance);
  if (outputs.lse.given()) compare("lse", outputs.lse, expected.lse, tolerance);
  if (outputs.weights.given()) compare("weights", outputs.weights, expected.weights, tolerance);
  for (const ScoreCapture& capture : captures) {
    const std::vector<double>& stage = expected.stage(capture.stage);
    std::vector<double> part;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < capture.out.shape[1]; ++h) {
        const int64_t head = capture.heads.empty() ? h : capture.heads[static_cast<size_t>(h)];
        const auto first =
            stage.begin() + ((b * s.heads + head) * q.shape[2] + capture.first_row) * k.shape[2];
        part.insert(part.end(), first, first + capture.out.shape[2] * k.shape[2]);
      }
    }
    compare("capture", capture.out, part, 2 * tolerance);
  }
}

void score(Bytes& from) {
  Operands operands(from, from.one_in(4));
  const Shape s = shape_of(from);
  const ConstAnyTensor q = operands.input({s.batch, s.heads, s.queries, s.width}, dtype_of(from));
  const ConstAnyTensor k = operands.input({s.batch, s.kv_heads, s.keys, s.width}, dtype_of(from));
  const AttentionOptions options = options_of(operands, from, s, false);
  const ScoreCapture capture{.stage = enumerator<ScoreStage>(from, 4),
                             .out = operands.float_output({s.batch, s.heads, s.queries, s.keys})};
  Context context(1);
  const Status status = attention_scores(q, k, options, capture, context);
  fuzz::check_words(status);
  if (!status.ok()) return operands.check_untouched();
  if (operands.wild() || capture.out.shape[2] != q.shape[2]) return;
  ConstAnyTensor v = k;
  v.shape[3] = 0;
  const auto expected = reference::attention(q, k, v, options, true);
  compare("scores", capture.out, expected.stage(capture.stage),
          2 * tolerance_of(expected, options, q.dtype));
}

// Returns rows first .. last - 1 of (T, H, d), as (1, H, N, d).
template <class View>
View sequence(const View& packed, int64_t first, int64_t last, int64_t size) {
  View part = packed;
  part.shape = {1, packed.shape[1], last - first, packed.shape[2]};
  part.strides = {0, packed.strides[1], packed.strides[0], packed.strides[2]};
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(part.data)>>,
                                  const uint8_t, uint8_t>;
  if (part.data == nullptr) return part;  // no elements
  part.data = static_cast<Byte*>(part.data) + first * packed.strides[0] * size;
  return part;
}

void attend_packed(Bytes& from) {
  Operands operands(from, from.one_in(4));
  const Shape s = shape_of(from);
  std::vector<int32_t> cu_q{0}, cu_k{0};
  for (int64_t n = from.integer(0, 3); n > 0; --n) {
    cu_q.push_back(cu_q.back() + static_cast<int32_t>(from.integer(from.one_in(64) ? -1 : 0, 5)));
    cu_k.push_back(cu_k.back() + static_cast<int32_t>(from.integer(from.one_in(64) ? -1 : 0, 9)));
  }
  if (from.one_in(64)) cu_k.push_back(cu_k.back());
  const DType q_type = dtype_of(from), kv_type = dtype_of(from);
  const ConstAnyTensor q = operands.input({cu_q.back(), s.heads, s.width}, q_type);
  const ConstAnyTensor k = operands.input({cu_k.back(), s.kv_heads, s.width}, kv_type);
  const ConstAnyTensor v = operands.input({cu_k.back(), s.kv_heads, s.value_dim}, kv_type);
  AttentionOptions options = options_of(operands, from, s, !from.one_in(32));
  AttentionOutputs outputs{
      .out = operands.output({cu_q.back(), s.heads, s.value_dim}, dtype_of(from))};
  if (from.one_in(2)) outputs.lse = operands.float_output({s.heads, cu_q.back()});
  Context context(static_cast<int>(from.integer(1, 2)));
  const Status status = attention_varlen(q, k, v, cu_q, cu_k, options, outputs, context);
  fuzz::check_words(status);
  if (!status.ok()) return operands.check_untouched();
  if (operands.wild()) return;
  for (size_t n = 0; n + 1 < cu_q.size(); ++n) {
    const auto part = [&](const ConstAnyTensor& packed, const std::vector<int32_t>& cu) {
      return sequence(packed, cu[n], cu[n + 1], bytes_of(packed.dtype));
    };
    const auto expected =
        reference::attention(part(q, cu_q), part(k, cu_k), part(v, cu_k), options, true);
    compare("out", sequence(outputs.out, cu_q[n], cu_q[n + 1], bytes_of(outputs.out.dtype)),
            expected.out, tolerance_of(expected, options, q.dtype));
    options.dropout.seed += uint64_t{1} << 32U;
  }
}

void transform_rows(Bytes& from) {
  Operands operands(from, from.one_in(4));
  const int64_t rows = from.integer(0, 9), in = from.integer(0, 20), out = from.integer(0, 20);
  Context context(static_cast<int>(from.integer(1, 2)));
  Status status;
  switch (from.integer(0, 5)) {
    case 0: {
      const ConstTensor x = operands.floats({rows, in});
      const ConstAnyTensor weight = operands.input({out, in}, dtype_of(from));
      const ConstTensor bias = from.one_in(2) ? operands.floats({out}) : ConstTensor();
      const Tensor y = operands.float_output({rows, out});
      status = linear(x, weight, bias, y, context);
      if (!status.ok() || operands.wild()) break;
      std::vector<double> expected;
      for (int64_t r = 0; r < x.shape[0]; ++r) {
        for (int64_t o = 0; o < weight.shape[0]; ++o) {
          double sum = bias.given() ? static_cast<double>(bias.data[o * bias.strides[0]]) : 0.0;
          const AnyTensor w(const_cast<void*>(weight.data), weight.dtype, weight.shape,
                            weight.strides);
          for (int64_t i = 0; i < x.shape[1]; ++i) {
            sum += static_cast<double>(x.data[r * x.strides[0] + i * x.strides[1]]) *
                   static_cast<double>(element(w, o * w.strides[0] + i * w.strides[1]));
          }
          expected.push_back(sum);
        }
      }
      compare("y", y, expected, 1e-5);
      break;
    }
    case 1: {
      const ConstTensor x = operands.floats({rows, in});
      const ConstTensor weight = from.one_in(2) ? operands.floats({in}) : ConstTensor();
      const ConstTensor bias = from.one_in(2) ? operands.floats({in}) : ConstTensor();
      const float eps = option(operands, from, 0.0F, 1e-3F);
      const Tensor y = operands.float_output({rows, in});
      status = bias.given() ? layer_norm(x, weight, bias, eps, y, context)
                            : rms_norm(x, weight, eps, y, context);
      break;
    }
    case 2: {
      const ConstTensor x = operands.floats({rows, in});
      const auto activation = enumerator<Activation>(from, 4);
      const Tensor y = operands.float_output({rows, in});
      status = from.one_in(2)
                   ? activate(x, activation, y, context)
                   : activate_gated(x, operands.floats({rows, in}), activation, y, context);
      break;
    }
    case 3: {
      const Shape s = shape_of(from);
      const Dims shape{s.batch, s.heads, s.queries, s.width}, row{s.batch, s.heads, s.queries};
      const ConstTensor b = operands.floats(shape), b_lse = operands.floats(row);
      const Tensor a = operands.float_output(shape), a_lse = operands.float_output(row);
      status = merge_attention(a, a_lse, b, b_lse);
      break;
    }
    case 4: {
      const Shape s = shape_of(from);
      const Dims shape{s.batch, s.heads, s.queries, s.width};
      const ConstTensor x = operands.floats(shape);
      const auto positions =
          operands.integers(from.one_in(2) ? s.queries : s.batch * s.queries, 0, 99);
      status =
          rotate(x, positions, rope_of(operands, from, s), operands.float_output(shape), context);
      break;
    }
    default: {
      const Shape s = shape_of(from);
      const ConstTensor weights = operands.floats({s.batch, s.heads, s.queries, s.keys});
      const auto tokens = operands.integers(from.one_in(4) ? 0 : s.batch * s.keys, 0, 3);
      std::vector<float> results(static_cast<size_t>(s.heads) * 4, 42.0F);
      const auto part = [&](size_t n) {
        return from.one_in(4) ? std::span<float>()
                              : std::span(results).subspan(n * static_cast<size_t>(s.heads),
                                                           static_cast<size_t>(s.heads));
      };
      status = head_statistics(weights, tokens, {part(0), part(1), part(2), part(3)});
      if (!status.ok()) {
        FUZZ_CHECK(std::count(results.begin(), results.end(), 42.0F) ==
                       static_cast<int64_t>(results.size()),
                   "written by a refused call");
      }
    }
  }
  fuzz::check_words(status);
  if (!status.ok()) operands.check_untouched();
}

void attend_latents(Bytes& from) {
  Operands operands(from, from.one_in(4));
  const Shape s = shape_of(from);
  const int64_t rope = from.integer(0, 4), rank = from.integer(0, 6);
  const LatentAttentionInputs inputs{
      .q_nope = operands.floats({s.batch, s.heads, s.queries, s.width}),
      .q_rope = operands.floats({s.batch, s.heads, s.queries, rope}),
      .latent = operands.floats({s.batch, s.keys, rank}),
      .k_rope = operands.floats({s.batch, s.keys, rope}),
      .w_uk = operands.floats({s.heads, s.width, rank}),
      .w_uv = operands.floats({s.heads, s.value_dim, rank})};
  AttentionOptions options = options_of(operands, from, s, false);
  if (!from.one_in(32)) options.rope = {};
  if (!from.one_in(32)) options.qk_norm = {};
  const Tensor out = operands.float_output({s.batch, s.heads, s.queries, s.value_dim});
  const auto form = enumerator<LatentForm>(from, 2);
  Context context(1);
  Status status = latent_attention(inputs, form, options, {.out = out}, context);
  fuzz::check_words(status);
  if (!status.ok()) return operands.check_untouched();
  if (operands.wild()) return;
  // The other form (expanded or absorbed) must give the same result.
  std::vector<float> other(static_cast<size_t>(out.shape.elements()));
  const auto other_form =
      form == LatentForm::kExpanded ? LatentForm::kAbsorbed : LatentForm::kExpanded;
  status = latent_attention(inputs, other_form, options, {.out = Tensor(other.data(), out.shape)},
                            context);
  FUZZ_CHECK(status.ok(), "%s", status.message().c_str());
  compare("out", out, {other.begin(), other.end()}, 1e-3);
}

MultiHeadAttentionConfig config_of(Bytes& from) {
  MultiHeadAttentionConfig c;
  const auto extent = [&](int64_t least, int64_t most) {
    return from.one_in(128) ? from.integer(INT64_MIN, INT64_MAX) : from.integer(least, most);
  };
  c.num_kv_heads = extent(1, 2);
  c.num_heads = c.num_kv_heads <= 2 && c.num_kv_heads > 0 ? c.num_kv_heads * from.integer(1, 3) : 2;
  c.head_dim = 2 * from.integer(1, 3);
  c.embed_dim = extent(1, 9);
  if (from.one_in(3)) c.value_dim = extent(1, 5);
  if (from.one_in(4)) c.kdim = extent(1, 5);
  if (from.one_in(4)) c.vdim = extent(1, 5);
  if (from.one_in(4)) c.out_dim = extent(1, 9);
  c.bias = from.one_in(2);
  c.out_proj = !from.one_in(6);
  c.add_bias_kv = from.one_in(6);
  c.add_zero_attn = from.one_in(6);
  c.batch_first = !from.one_in(3);
  if (from.one_in(4)) {
    c.num_kv_heads = 0;
    c.kdim = c.vdim = 0;
    c.kv_latent_dim = extent(1, 5);
    c.q_latent_dim = extent(0, 4);
    c.rope_head_dim = from.one_in(2) ? 2 : 0;
    c.latent_norm_eps = from.one_in(16) ? from.special() : 1e-6F;
  }
  c.sinks = from.one_in(4);
  c.qk_norm = from.one_in(6);
  if (from.one_in(4)) c.softcap = from.one_in(8) ? from.special() : 5.0F;
  if (from.one_in(4)) c.window = {from.integer(-1, 3), from.integer(-1, 3)};
  if (from.one_in(4)) c.rope.style = enumerator<Rope::Style>(from, 3);
  return c;
}

MultiHeadAttentionWeights weights_of(Operands& operands, Bytes& from,
                                     const MultiHeadAttentionConfig& c) {
  MultiHeadAttentionWeights w;
  const int64_t q = c.num_heads * c.head_dim, k = c.num_kv_heads * c.head_dim;
  const int64_t v = c.num_kv_heads * c.value_dim, merged = c.num_heads * c.value_dim;
  const auto floats = [&](const Dims& shape) { return operands.floats(shape); };
  if (c.kv_latent_dim > 0) {
    const int64_t kept = c.kv_latent_dim + c.rope_head_dim;
    if (c.q_latent_dim > 0) {
      w.q_a_proj = floats({c.q_latent_dim, c.embed_dim});
      w.q_b_proj = floats({q, c.q_latent_dim});
      if (from.one_in(2)) w.q_a_norm = floats({c.q_latent_dim});
    } else {
      w.q_proj = floats({q, c.embed_dim});
    }
    w.kv_a_proj = floats({kept, c.embed_dim});
    if (c.bias) w.kv_a_bias = floats({kept});
    w.kv_b_proj =
        floats({c.num_heads * (c.head_dim - c.rope_head_dim + c.value_dim), c.kv_latent_dim});
  } else {
    w.q_proj = floats({q, c.embed_dim});
    w.k_proj = floats({k, c.kdim});
    w.v_proj = floats({v, c.vdim});
    if (c.bias) w.q_bias = floats({q});
    if (c.bias) w.k_bias = floats({k});
  }
  if (c.out_proj) w.out_proj = floats({c.out_dim, merged});
  if (c.out_proj && c.bias) w.out_bias = floats({c.out_dim});
  if (c.add_bias_kv) w.bias_k = floats({k});
  if (c.add_bias_kv) w.bias_v = floats({v});
  if (c.sinks) w.sinks = floats({c.num_heads});
  if (c.qk_norm && from.one_in(2)) w.q_norm = floats({c.head_dim});
  return w;
}

void run_module(Bytes& from) {
  Operands operands(from, from.one_in(4));
  MultiHeadAttention module;
  Status status = MultiHeadAttention::create(config_of(from), module);
  fuzz::check_words(status);
  if (!status.ok()) return;
  const MultiHeadAttentionConfig& c = module.config();
  // Larger widths are valid, but take too long.
  if (c.embed_dim > 64 || c.value_dim > 64 || c.kdim > 64 || c.vdim > 64 || c.out_dim > 64 ||
      c.kv_latent_dim > 64 || c.q_latent_dim > 64) {
    return;
  }
  status = module.use_weights(weights_of(operands, from, c));
  fuzz::check_words(status);
  if (!status.ok()) return;
  Shape s{};
  s.batch = from.integer(from.one_in(16) ? 0 : 1, 2);
  s.heads = c.num_heads;
  s.queries = from.integer(from.one_in(16) ? 0 : 1, 4);
  s.keys = s.queries;
  s.width = c.kv_latent_dim > 0 ? c.rope_head_dim : c.head_dim;
  const bool steps = from.one_in(3);
  const auto rows = [&](int64_t tokens, int64_t width) {
    return c.batch_first ? Dims{s.batch, tokens, width} : Dims{tokens, s.batch, width};
  };
  MultiHeadAttentionInputs inputs{.query = operands.floats(rows(s.queries, c.embed_dim))};
  if (!steps && (from.one_in(3) || c.kdim != c.embed_dim || c.vdim != c.embed_dim)) {
    s.keys = from.integer(from.one_in(16) ? 0 : 1, 5);
    inputs.key = operands.floats(rows(s.keys, c.kdim));
    if (c.kv_latent_dim == 0) inputs.value = operands.floats(rows(s.keys, c.vdim));
  }
  MultiHeadAttentionOptions options;
  if (!steps || from.one_in(16)) options.attention = options_of(operands, from, s, false);
  if (from.one_in(6)) options.attn_mask_blocked = operands.bools({s.queries, s.keys});
  if (from.one_in(6)) options.key_padding_blocked = operands.bools({s.batch, s.keys});
  if (from.one_in(6)) options.key_padding_bias = operands.floats({s.batch, s.keys});
  if (from.one_in(6)) options.heads.head_scales = operands.values(s.heads);
  if (from.one_in(8)) module = without_out_proj(module);
  if (from.one_in(8)) options.heads.temperature = option(operands, from, 0.1F, 2.0F);
  options.training = from.one_in(8);
  const int64_t keys = s.keys + (c.add_bias_kv ? 1 : 0) + (c.add_zero_attn ? 1 : 0);
  MultiHeadAttentionOutputs outputs{
      .out = operands.float_output(rows(s.queries, module.config().out_dim))};
  if (from.one_in(3)) outputs.weights = operands.float_output({s.batch, s.heads, s.queries, keys});
  if (from.one_in(3)) outputs.mean_weights = operands.float_output({s.batch, s.queries, keys});
  Trace trace;
  if (from.one_in(16)) trace.wanted = {"nothing"};
  Trace* const traced = from.one_in(2) ? &trace : nullptr;
  Context context(1);
  MultiHeadAttentionCache cache;
  if (steps) {
    status = module.create_cache({.batch = s.batch, .capacity = from.integer(-1, 5)}, cache);
    fuzz::check_words(status);
    if (!status.ok()) return;
    status = module.step(inputs.query, options, outputs, cache, traced, context);
    FUZZ_CHECK(cache.length() == (status.ok() ? s.queries : 0), "%s", status.message().c_str());
  } else {
    status = module.forward(inputs, options, outputs, traced, context);
  }
  fuzz::check_words(status);
  if (!status.ok()) {
    FUZZ_CHECK(trace.steps.empty(), "%s", status.message().c_str());
    return operands.check_untouched();
  }
  if (traced == nullptr || operands.wild()) return;
  for (const TraceStep& step : trace.steps) {
    for (const float value : step.values) {
      FUZZ_CHECK(!std::isnan(value), "%s", step.name.c_str());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes from(data, size);
  switch (from.integer(0, 11)) {
    case 8:
      attend_latents(from);
      break;
    case 9:
    case 10:
    case 11:
      run_module(from);
      break;
    case 4:
      score(from);
      break;
    case 5:
      attend_packed(from);
      break;
    case 6:
    case 7:
      transform_rows(from);
      break;
    default:
      attend(from);
  }
  return 0;
}
