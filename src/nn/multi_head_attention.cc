#include "multihead/multi_head_attention.h"

#include <algorithm>

#include "engine/scratch.h"
#include "engine/validate.h"
#include "multihead/linear.h"

namespace multihead {
namespace {

std::string divisors_of(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t low = 1; low * low <= number; ++low) {
    if (number % low != 0) continue;
    divisors.push_back(low);
    if (low != number / low) divisors.push_back(number / low);
  }
  std::sort(divisors.begin(), divisors.end());
  std::string text;
  for (size_t i = 0; i < divisors.size(); ++i) {
    if (i > 0) text += i + 1 == divisors.size() ? " or " : ", ";
    text += std::to_string(divisors[i]);
  }
  return text;
}

struct Sizes {
  int64_t batch, tokens, embed, heads, head_width, merged, output;
};

Status validate(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights,
                const ConstTensor& x, const AttentionOptions& options, const Tensor& output,
                Sizes& sizes) {
  // Far beyond any model, and small enough for products of three.
  constexpr int64_t kMost = 1 << 20;
  const auto in_range = [](int64_t value, int64_t least) {
    return value >= least && value <= kMost;
  };
  if (!in_range(config.embed_dim, 1)) {
    return {StatusCode::kOption, "embed_dim", "a number from 1 to 1048576",
            std::to_string(config.embed_dim)};
  }
  if (!in_range(config.num_heads, 1)) {
    return {StatusCode::kOption, "num_heads", "a number from 1 to 1048576",
            std::to_string(config.num_heads)};
  }
  if (!in_range(config.head_dim, 0)) {
    return {StatusCode::kOption, "head_dim",
            "a number up to 1048576, or 0 for embed_dim / num_heads",
            std::to_string(config.head_dim)};
  }
  if (config.head_dim == 0 && config.embed_dim % config.num_heads != 0) {
    return {StatusCode::kOption, "num_heads",
            "a divisor of embed_dim = " + std::to_string(config.embed_dim) + " (" +
                divisors_of(config.embed_dim) + ")",
            std::to_string(config.num_heads)};
  }
  const int64_t head_width =
      config.head_dim != 0 ? config.head_dim : config.embed_dim / config.num_heads;
  const int64_t merged = config.num_heads * head_width;
  const bool projects = weights.out_proj.given();
  sizes = {.batch = x.shape[0],
           .tokens = x.shape[1],
           .embed = config.embed_dim,
           .heads = config.num_heads,
           .head_width = head_width,
           .merged = merged,
           .output = projects ? config.embed_dim : merged};

  using engine::validate_exact;
  if (x.shape.rank() != 3) {
    return {StatusCode::kShape, "x", "rank 3, (B, N, embed_dim)",
            "rank " + std::to_string(x.shape.rank()) + ", " + x.shape.to_string()};
  }
  const Dims projection{merged, config.embed_dim};
  constexpr const char* kProjection = "(num_heads * head_dim, embed_dim)";
  constexpr const char* kBias = "(num_heads * head_dim)";
  for (const Status& status :
       {validate_exact("x", "(B, N, embed_dim)", x, {x.shape[0], x.shape[1], config.embed_dim}),
        validate_exact("q_proj", kProjection, weights.q_proj, projection),
        validate_exact("k_proj", kProjection, weights.k_proj, projection),
        validate_exact("v_proj", kProjection, weights.v_proj, projection)}) {
    if (!status.ok()) return status;
  }
  const struct {
    const char* name;
    const char* letters;
    const ConstTensor& tensor;
    Dims shape;
  } optional[] = {
      {"q_bias", kBias, weights.q_bias, {merged}},
      {"k_bias", kBias, weights.k_bias, {merged}},
      {"v_bias", kBias, weights.v_bias, {merged}},
      {"out_proj",
       "(embed_dim, num_heads * head_dim)",
       weights.out_proj,
       {config.embed_dim, merged}},
      {"out_bias", "(embed_dim)", weights.out_bias, {config.embed_dim}},
  };
  for (const auto& [name, letters, tensor, shape] : optional) {
    if (!tensor.given()) continue;
    if (Status status = validate_exact(name, letters, tensor, shape); !status.ok()) return status;
  }
  if (weights.out_bias.given() && !projects) {
    return {StatusCode::kOption, "out_bias", "out_proj beside it", "no out_proj"};
  }
  const engine::AttentionShape shape{.batch = sizes.batch,
                                     .heads = sizes.heads,
                                     .kv_heads = sizes.heads,
                                     .queries = sizes.tokens,
                                     .keys = sizes.tokens,
                                     .key_width = head_width,
                                     .value_width = head_width};
  for (const Status& status :
       {engine::validate_options(options, shape),
        validate_exact("output", projects ? "(B, N, embed_dim)" : "(B, N, num_heads * head_dim)",
                       output, {sizes.batch, sizes.tokens, sizes.output})}) {
    if (!status.ok()) return status;
  }
  if (!(x.strides == contiguous_strides(x.shape))) {
    return {StatusCode::kShape, "x", "a contiguous tensor", "strides " + x.strides.to_string()};
  }
  if (!(output.strides == contiguous_strides(output.shape))) {
    return {StatusCode::kShape, "output", "a contiguous tensor",
            "strides " + output.strides.to_string()};
  }
  return {};
}

// (B, N, H * d_head) seen as (B, H, N, d_head), without a copy.
template <class T>
TensorView<T> split_heads(T* data, const Sizes& s) {
  return {data,
          {s.batch, s.heads, s.tokens, s.head_width},
          {s.tokens * s.merged, s.head_width, s.merged, 1}};
}

class Tracer {
 public:
  Tracer(Trace& trace, const Sizes& sizes) : trace_(trace), s_(sizes) { trace_.steps.clear(); }

  // Steps are std::vectors; asking once for their sum turns exhaustion into a Status.
  Status reserve() const {
    const int64_t rows = s_.batch * s_.tokens;
    const int64_t floats =
        rows * (s_.embed + 8 * s_.merged + s_.output) + 4 * rows * s_.heads * s_.tokens;
    engine::Buffer probe;
    const uint64_t bytes = static_cast<uint64_t>(floats) * sizeof(float) + 4096;
    return probe.reserve(bytes) ? Status() : engine::out_of_memory(bytes);
  }

  std::vector<float>& add(const char* name, const Dims& shape) {
    trace_.steps.push_back(
        {name, shape, std::vector<float>(static_cast<size_t>(shape.elements()))});
    return trace_.steps.back().values;
  }

  void add_copy(const char* name, const Dims& shape, const float* values) {
    std::copy_n(values, shape.elements(), add(name, shape).data());
  }

  void add_heads(const char* name, const float* merged) {
    const ConstTensor view = split_heads(merged, s_);
    float* target = add(name, view.shape).data();
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) {
        for (int64_t i = 0; i < s_.tokens; ++i, target += s_.head_width) {
          std::copy_n(view.data + b * view.strides[0] + h * view.strides[1] + i * view.strides[2],
                      s_.head_width, target);
        }
      }
    }
  }

  // scores, scaled_scores and masked_scores
  Status add_scores(const float* q, const float* k, const AttentionOptions& options,
                    Context& context) {
    AttentionOptions unscaled = options;
    unscaled.scale = 1.0F;
    const struct {
      const char* name;
      const AttentionOptions& options;
      ScoreStage stage;
    } steps[] = {{"scores", unscaled, ScoreStage::kRaw},
                 {"scaled_scores", options, ScoreStage::kRaw},
                 {"masked_scores", options, ScoreStage::kMasked}};
    const Dims shape{s_.batch, s_.heads, s_.tokens, s_.tokens};
    for (const auto& [name, step_options, stage] : steps) {
      const ScoreCapture capture{.stage = stage, .out = {add(name, shape).data(), shape}};
      Status status =
          attention_scores(split_heads(q, s_), split_heads(k, s_), step_options, capture, context);
      if (!status.ok()) return status;
    }
    return {};
  }

 private:
  Trace& trace_;
  const Sizes& s_;
};

}  // namespace

const TraceStep* Trace::find(std::string_view name) const {
  for (const TraceStep& step : steps) {
    if (step.name == name) return &step;
  }
  return nullptr;
}

Status multi_head_attention(const MultiHeadAttentionConfig& config,
                            const MultiHeadAttentionWeights& weights, const ConstTensor& x,
                            const AttentionOptions& options, const Tensor& output, Trace* trace,
                            Context& context) {
  Sizes s{};
  if (Status status = validate(config, weights, x, options, output, s); !status.ok()) return status;

  const int64_t rows = s.batch * s.tokens;
  const int64_t merged_floats = rows * s.merged;
  engine::Buffer& workspace = context.scratch().workspace();
  const uint64_t bytes = static_cast<uint64_t>(4 * merged_floats) * sizeof(float);
  if (!workspace.reserve(bytes)) return engine::out_of_memory(bytes);
  auto* const q = static_cast<float*>(workspace.data());
  float* const k = q + merged_floats;
  float* const v = k + merged_floats;
  // Without an output projection the merged heads are the output itself.
  float* const merged = weights.out_proj.given() ? v + merged_floats : output.data;

  const ConstTensor x_rows{x.data, {rows, s.embed}};
  const auto project = [&](const ConstTensor& weight, const ConstTensor& bias, float* target) {
    return linear(x_rows, weight, bias, {target, {rows, s.merged}}, context);
  };
  for (const Status& status :
       {project(weights.q_proj, weights.q_bias, q), project(weights.k_proj, weights.k_bias, k),
        project(weights.v_proj, weights.v_bias, v)}) {
    if (!status.ok()) return status;
  }

  Trace unused;
  Tracer tracer(trace != nullptr ? *trace : unused, s);
  AttentionOutputs outputs{.out = split_heads(merged, s)};
  const Dims flat{s.batch, s.tokens, s.merged};
  if (trace != nullptr) {
    if (Status status = tracer.reserve(); !status.ok()) return status;
    tracer.add_copy("x", x.shape, x.data);
    tracer.add_copy("q", flat, q);
    tracer.add_copy("k", flat, k);
    tracer.add_copy("v", flat, v);
    tracer.add_heads("q_heads", q);
    tracer.add_heads("k_heads", k);
    tracer.add_heads("v_heads", v);
    if (Status status = tracer.add_scores(q, k, options, context); !status.ok()) {
      return status;
    }
    const Dims scores{s.batch, s.heads, s.tokens, s.tokens};
    outputs.weights = {tracer.add("weights", scores).data(), scores};
  }
  if (Status status = attention(split_heads<const float>(q, s), split_heads<const float>(k, s),
                                split_heads<const float>(v, s), options, outputs, context);
      !status.ok()) {
    return status;
  }
  if (weights.out_proj.given()) {
    if (Status status = linear({merged, {rows, s.merged}}, weights.out_proj, weights.out_bias,
                               {output.data, {rows, s.output}}, context);
        !status.ok()) {
      return status;
    }
  }
  if (trace != nullptr) {
    tracer.add_heads("heads_out", merged);
    tracer.add_copy("merged", flat, merged);
    tracer.add_copy("output", output.shape, output.data);
  }
  return {};
}

}  // namespace multihead
