// One decode step of a transformer with the shape of GPT-2 small: 12 layers of width 768 with 12
// heads and an MLP of 3072 (GELU by tanh), 1024 learned positions, 50257 tokens, and the embedding
// as output matrix. The step adds the last of the cache's 1024 tokens.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numbers>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "inputs.h"
#include "multihead/transformer.h"
#include "work.h"

namespace multihead::bench {
namespace {

constexpr int64_t kLayers = 12, kMlp = 3072, kVocabulary = 50257;
constexpr int32_t kToken = 464;

using Row = std::vector<double>;

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

class StepWork : public Work {
 public:
  explicit StepWork(const Case& which)
      : shape_(which.shape),
        embed_(shape_.heads * shape_.width),
        logits_(static_cast<size_t>(kVocabulary)) {
    require(Transformer::create(
        {.block = {.attention = {.embed_dim = embed_, .num_heads = shape_.heads},
                   .mlp_dim = kMlp,
                   .activation = Activation::kGeluTanh},
         .num_layers = kLayers,
         .vocab_size = kVocabulary,
         .max_positions = shape_.keys,
         .tied_output = true},
        model_));
    load_weights();
    require(model_.create_cache({.batch = 1, .capacity = shape_.keys}, cache_));
    fill_cache(which.threads);
  }

  Status run(Context& context) override {
    const int32_t tokens[] = {kToken};
    Status status =
        model_.step(tokens, {}, {.logits = {logits_.data(), {1, 1, kVocabulary}}}, cache_, context);
    return status.ok() ? cache_.truncate(shape_.keys - 1) : status;
  }

  std::span<const float> output() const override { return logits_; }

  double operations() const override {
    return 2.0 * matrix_elements() +
           4.0 * static_cast<double>(kLayers * shape_.keys) * static_cast<double>(embed_);
  }

  // Counts every matrix once, and every layer's keys and values. Leaves out biases, norms,
  // activations, one row of each embedding and the logits: 0.2 %.
  double bytes() const override {
    const double kept = 2.0 * static_cast<double>(kLayers * shape_.keys * embed_);
    return sizeof(float) * (matrix_elements() + kept);
  }

  // Error of all logits compared with the step in double, over the cached keys and values.
  double error() const override;

 private:
  double matrix_elements() const {
    return static_cast<double>(kLayers * embed_ * (4 * embed_ + 2 * kMlp) + kVocabulary * embed_);
  }

  // All parameters except norm gains are slices of one array, with GPT-2's initial standard
  // deviation.
  void load_weights() {
    std::vector<float> numbers = random_floats(kVocabulary * embed_, kKeySeed);
    for (float& value : numbers) value *= 0.03F;
    const std::vector<float> ones(static_cast<size_t>(embed_), 1.0F);
    StateDict dict;
    int64_t next = 0;
    const auto add = [&](const std::string& name, const Dims& shape) {
      const int64_t count = shape.elements();
      if (next + count > static_cast<int64_t>(numbers.size())) next = 0;
      dict.emplace(name, ConstTensor(numbers.data() + next, shape));
      next += count;
    };
    const auto add_norm = [&](const std::string& name) {
      dict.emplace(name + ".weight", ConstTensor(ones.data(), {embed_}));
      add(name + ".bias", {embed_});
    };
    const auto add_linear = [&](const std::string& name, int64_t out, int64_t in) {
      add(name + "weight", {out, in});
      add(name + "bias", {out});
    };
    add("embedding.weight", {kVocabulary, embed_});
    add("position.weight", {shape_.keys, embed_});
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const std::string prefix = prefix_of(layer);
      add_norm(prefix + "norm1");
      add_linear(prefix + "self_attn.in_proj_", 3 * embed_, embed_);
      add_linear(prefix + "self_attn.out_proj.", embed_, embed_);
      add_norm(prefix + "norm2");
      add_linear(prefix + "linear1.", kMlp, embed_);
      add_linear(prefix + "linear2.", embed_, kMlp);
    }
    add_norm("norm");
    require(model_.load_state_dict(dict));
    require(model_.state_dict(parameters_));
  }

  void fill_cache(int threads) {
    std::vector<int32_t> tokens(static_cast<size_t>(shape_.keys - 1));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 49 % 50257);
    kept_.resize(static_cast<size_t>(kLayers));
    for (Trace& trace : kept_) trace.wanted = {"k_heads", "v_heads"};
    Context context(threads);
    require(model_.step(tokens, {}, {.traces = kept_}, cache_, context));
  }

  static std::string prefix_of(int64_t layer) { return "layers." + std::to_string(layer) + "."; }

  const float* values_of(const std::string& name) const {
    return static_cast<const float*>(parameters_.at(name).data);
  }
  Row product(const Row& x, const std::string& weight, const float* bias) const;
  Row normalized(const Row& x, const std::string& name) const;
  Row attended(const Row& qkv, int64_t layer) const;

  Shape shape_;
  int64_t embed_;
  Transformer model_;
  TransformerCache cache_;
  StateDict parameters_;
  std::vector<Trace> kept_;  // cached keys and values of each layer
  std::vector<float> logits_;
};

double dot(const float* a, const double* b, int64_t count) {
  return std::inner_product(b, b + count, a, 0.0);
}

void add(Row& x, const Row& y) {
  for (size_t c = 0; c < x.size(); ++c) x[c] += y[c];
}

// W x + bias.
Row StepWork::product(const Row& x, const std::string& weight, const float* bias) const {
  const float* const rows = values_of(weight);
  const auto in = static_cast<int64_t>(x.size());
  Row y(static_cast<size_t>(parameters_.at(weight).shape[0]));
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] = dot(rows + static_cast<int64_t>(o) * in, x.data(), in);
    if (bias != nullptr) y[o] += static_cast<double>(bias[o]);
  }
  return y;
}

Row StepWork::normalized(const Row& x, const std::string& name) const {
  const auto width = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / width;
  double squares = 0;
  for (const double value : x) squares += (value - mean) * (value - mean);
  const double eps = static_cast<double>(model_.config().block.norm_eps);
  const double factor = 1 / std::sqrt(squares / width + eps);
  const float *const gain = values_of(name + ".weight"), *const bias = values_of(name + ".bias");
  Row y(x.size());
  for (size_t c = 0; c < x.size(); ++c) {
    y[c] = (x[c] - mean) * factor * static_cast<double>(gain[c]) + static_cast<double>(bias[c]);
  }
  return y;
}

// Attention output of the newest token, with heads merged.
Row StepWork::attended(const Row& qkv, int64_t layer) const {
  const Trace& kept = kept_[static_cast<size_t>(layer)];
  const int64_t before = shape_.keys - 1, width = shape_.width;
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  Row merged;
  for (int64_t head = 0; head < shape_.heads; ++head) {
    const float* const keys = kept.find("k_heads")->values.data() + head * before * width;
    const float* const values = kept.find("v_heads")->values.data() + head * before * width;
    const double* const q = qkv.data() + head * width;
    const double *const k = q + embed_, *const v = k + embed_;
    Row weights;
    for (int64_t j = 0; j < before; ++j) {
      weights.push_back(std::exp(scale * dot(keys + j * width, q, width)));
    }
    weights.push_back(std::exp(scale * std::inner_product(q, q + width, k, 0.0)));
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (int64_t c = 0; c < width; ++c) {
      double total = weights.back() * v[c];
      for (int64_t j = 0; j < before; ++j) {
        total += weights[static_cast<size_t>(j)] * static_cast<double>(values[j * width + c]);
      }
      merged.push_back(total / sum);
    }
  }
  return merged;
}

double StepWork::error() const {
  Row x(static_cast<size_t>(embed_));
  const float* const embedding = values_of("embedding.weight") + kToken * embed_;
  const float* const position = values_of("position.weight") + (shape_.keys - 1) * embed_;
  for (size_t c = 0; c < x.size(); ++c) {
    x[c] = static_cast<double>(embedding[c]) + static_cast<double>(position[c]);
  }
  const auto linear = [&](const Row& from, const std::string& name) {
    return product(from, name + "weight", values_of(name + "bias"));
  };
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = prefix_of(layer);
    const Row qkv = linear(normalized(x, prefix + "norm1"), prefix + "self_attn.in_proj_");
    add(x, linear(attended(qkv, layer), prefix + "self_attn.out_proj."));
    Row inner = linear(normalized(x, prefix + "norm2"), prefix + "linear1.");
    for (double& value : inner) {
      const double cubic = value + 0.044715 * value * value * value;
      value *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * cubic));
    }
    add(x, linear(inner, prefix + "linear2."));
  }
  const Row expected = product(normalized(x, "norm"), "embedding.weight", nullptr);
  double largest = 0;
  for (size_t at = 0; at < expected.size(); ++at) {
    largest = std::max(largest, std::abs(expected[at] - static_cast<double>(logits_[at])));
  }
  return largest;
}

}  // namespace

std::unique_ptr<Work> make_step(const Case& which) { return std::make_unique<StepWork>(which); }

}  // namespace multihead::bench
