#include "models/sentence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "models/config_reader.h"
#include "models/run.h"
#include "multihead/elementwise.h"
#include "multihead/models.h"

namespace multihead::models {
namespace {

using Kind = ConfigValue::Kind;

// Names of the poolings, as `pooling_mode` and as flags after "pooling_mode_".
struct PoolingName {
  std::string_view mode, flag;
  Pooling pooling;
};
constexpr PoolingName kPoolings[] = {
    {"cls", "cls_token", Pooling::kFirstToken},
    {"max", "max_tokens", Pooling::kMax},
    {"mean", "mean_tokens", Pooling::kMean},
    {"mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::kMeanSqrtLength},
    {"weightedmean", "weightedmean_tokens", Pooling::kWeightedMean},
    {"lasttoken", "lasttoken", Pooling::kLastToken}};

constexpr std::pair<std::string_view, DenseActivation> kActivations[] = {
    {"Identity", DenseActivation::kIdentity}, {"Tanh", DenseActivation::kTanh},
    {"Sigmoid", DenseActivation::kSigmoid},   {"ReLU", DenseActivation::kRelu},
    {"GELU", DenseActivation::kGelu},         {"SiLU", DenseActivation::kSilu}};

// Reads the settings of one file, and keeps the first error.
class File {
 public:
  File(const Config& config, std::string name) : config_(config), name_(std::move(name) + "/") {}

  // Null if the setting is not there or null.
  const ConfigValue* find(std::string_view setting) const {
    const auto found = config_.find(name_ + std::string(setting));
    if (found == config_.end() || found->second.kind == Kind::kNull) return nullptr;
    return &found->second;
  }
  bool exists() const {
    const auto found = config_.lower_bound(name_);
    return found != config_.end() && found->first.starts_with(name_);
  }
  bool flag(std::string_view setting, bool absent) {
    const ConfigValue* const value = find(setting);
    if (value == nullptr) return absent;
    if (value->kind != Kind::kBool) fail(setting, "true or false", value);
    return value->number != 0;
  }
  // A whole number from 1 on; larger ones than a size can be become the largest.
  int64_t size(std::string_view setting, int64_t absent) {
    const ConfigValue* const value = find(setting);
    if (value == nullptr) return absent;
    if (value->kind != Kind::kNumber || !(value->number >= 1)) {
      fail(setting, "a number from 1 on", value);
      return absent;
    }
    return static_cast<int64_t>(std::min(value->number, 0x1p31));
  }
  std::string text(std::string_view setting, std::string_view absent) {
    const ConfigValue* const value = find(setting);
    if (value == nullptr) return std::string(absent);
    if (value->kind != Kind::kText) fail(setting, "a text", value);
    return value->text;
  }
  void fail(std::string_view setting, std::string_view expected, const ConfigValue* got) {
    fail(setting, expected, described(got));
  }
  void fail(std::string_view setting, std::string_view expected, const std::string& got) {
    if (status_.ok()) status_ = setting_error(name_ + std::string(setting), expected, got);
  }
  const Status& status() const { return status_; }

 private:
  const Config& config_;
  std::string name_;
  Status status_;
};

template <size_t kCount, class Name>
std::string listed(const Name (&names)[kCount], std::string_view (*name_of)(const Name&)) {
  std::string list;
  for (const Name& each : names) list += (list.empty() ? "" : ", ") + std::string(name_of(each));
  return list;
}

Status read_pooling(File file, int64_t width, Sentence& sentence) {
  sentence.pools_prompt = file.flag("include_prompt", true);
  const int64_t dimension =
      file.size("embedding_dimension", file.size("word_embedding_dimension", width));
  if (dimension != width) {
    file.fail("embedding_dimension", std::to_string(width), std::to_string(dimension));
  }
  std::string mode = file.text("pooling_mode", "");
  if (mode.empty()) mode = file.text("pooling_mode.0", "");
  std::string_view other = file.find("pooling_mode.1") != nullptr ? "pooling_mode.1" : "";
  // Before version 5.4 of sentence-transformers each mode has a flag.
  for (const PoolingName& name : kPoolings) {
    const std::string flag = "pooling_mode_" + std::string(name.flag);
    if (file.find("pooling_mode") != nullptr || !file.flag(flag, false)) continue;
    if (!mode.empty() && other.empty()) {
      file.fail(flag, "one pooling", "true beside " + mode);
    }
    mode = name.mode;
  }
  if (!other.empty()) file.fail(other, "one pooling", "several");
  MULTIHEAD_TRY(file.status());
  if (mode.empty()) return {};
  for (const PoolingName& name : kPoolings) {
    if (name.mode == mode) {
      sentence.pooling = name.pooling;
      return {};
    }
  }
  file.fail("pooling_mode",
            listed<std::size(kPoolings), PoolingName>(
                kPoolings, [](const PoolingName& name) { return name.mode; }),
            '"' + mode + '"');
  return file.status();
}

Status read_dense(File file, const std::string& path, int64_t width, SentenceStep& step) {
  step.path = path;
  step.in = file.size("in_features", 0);
  step.out = file.size("out_features", 0);
  step.bias = file.flag("bias", true);
  if (step.in != width) {
    file.fail("in_features", std::to_string(width), file.find("in_features"));
  }
  // Widths of tensors; larger ones would overflow products.
  if (step.out < 1 || step.out > (1 << 20)) {
    file.fail("out_features", "1 to 1048576", file.find("out_features"));
  }
  if (file.flag("use_residual", false)) file.fail("use_residual", "false", "true");
  for (const char* const name : {"module_input_name", "module_output_name"}) {
    const std::string tensor = file.text(name, "sentence_embedding");
    if (tensor != "sentence_embedding") {
      file.fail(name, "sentence_embedding", '"' + tensor + '"');
    }
  }
  const std::string whole = file.text("activation_function", "torch.nn.Tanh");
  const std::string_view activation = std::string_view(whole).substr(whole.rfind('.') + 1);
  const auto* const found =
      std::find_if(std::begin(kActivations), std::end(kActivations),
                   [&](const auto& named) { return named.first == activation; });
  if (found == std::end(kActivations)) {
    file.fail("activation_function", "Identity, Tanh, Sigmoid, ReLU, GELU or SiLU of torch",
              '"' + whole + '"');
  } else {
    step.activation = found->second;
  }
  return file.status();
}

// y = activation(y), by element.
void apply(DenseActivation activation, std::vector<float>& y) {
  for (float& each : y) {
    const auto x = static_cast<double>(each);
    double value = x;
    switch (activation) {
      case DenseActivation::kIdentity:
        break;
      case DenseActivation::kTanh:
        value = std::tanh(x);
        break;
      case DenseActivation::kSigmoid:
        value = 1.0 / (1.0 + std::exp(-x));
        break;
      case DenseActivation::kRelu:
        value = std::max(x, 0.0);
        break;
      case DenseActivation::kGelu:
        value = 0.5 * x * std::erfc(-x * 0.70710678118654752);
        break;
      case DenseActivation::kSilu:
        value = x / (1.0 + std::exp(-x));
        break;
    }
    each = static_cast<float>(value);
  }
}

// Rows of length 1; a row of zeros stays.
void normalize_rows(int64_t rows, int64_t width, float* values) {
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<float> vector(values + row * width, static_cast<size_t>(width));
    double squares = 0;
    for (const float value : vector) {
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double factor = squares > 0 ? 1.0 / std::sqrt(squares) : 0.0;
    for (float& value : vector) value = static_cast<float>(static_cast<double>(value) * factor);
  }
}

// One vector of the rows of a sequence; `mask` is empty, or 0 for padding.
void pool(std::span<const uint8_t> mask, const float* rows, int64_t tokens, Pooling pooling,
          std::span<float> out) {
  const auto width = static_cast<int64_t>(out.size());
  const auto is_real = [&](int64_t token) {
    return mask.empty() || mask[static_cast<size_t>(token)] != 0;
  };
  int64_t first = 0, last = tokens - 1;
  while (!is_real(first)) ++first;
  while (!is_real(last)) --last;
  const bool largest = pooling == Pooling::kMax;
  if (pooling == Pooling::kFirstToken) last = first;
  if (pooling == Pooling::kLastToken) first = last;
  std::vector<double> sum(out.size(), largest ? -std::numeric_limits<double>::infinity() : 0.0);
  double weights = 0, count = 0;
  for (int64_t token = first; token <= last; ++token) {
    if (!is_real(token)) continue;
    const double weight = pooling == Pooling::kWeightedMean ? static_cast<double>(token + 1) : 1.0;
    weights += weight;
    count += 1;
    for (int64_t c = 0; c < width; ++c) {
      double& total = sum[static_cast<size_t>(c)];
      const auto value = static_cast<double>(rows[token * width + c]);
      total = largest ? std::max(total, value) : total + weight * value;
    }
  }
  double divisor = weights;
  if (pooling == Pooling::kMeanSqrtLength) divisor = std::sqrt(count);
  if (largest) divisor = 1;
  for (size_t c = 0; c < out.size(); ++c) out[c] = static_cast<float>(sum[c] / divisor);
}

}  // namespace

Status read_sentence(const Config& config, const Architecture& architecture, Sentence& sentence) {
  Sentence read;
  read.width = architecture.width;
  const auto module_text = [&](int64_t index, const char* member) {
    const auto found = config.find("modules.json/" + std::to_string(index) + "." + member);
    return found == config.end() ? std::string() : found->second.text;
  };
  const auto refuse = [&](const std::string& setting, std::string_view expected,
                          std::string_view got) {
    if (read.refusal.ok()) {
      read.refusal = setting_error("modules.json/" + setting, expected, got);
    }
  };
  bool has_pooling = false;
  int64_t count = 0;
  for (std::string type; !(type = module_text(count, "type")).empty(); ++count) {
    const std::string path = module_text(count, "path");
    type = type.substr(type.rfind('.') + 1);
    if (type == "Dropout" || (count == 0 && type == "Transformer")) continue;
    if (type == "Pooling" && !has_pooling) {
      File file(config, path + "/config.json");
      if (!file.exists())
        return setting_error(path + "/config.json/pooling_mode", "a pooling", "none");
      MULTIHEAD_TRY(read_pooling(std::move(file), architecture.width, read));
      has_pooling = true;
    } else if (type == "Dense" && has_pooling) {
      SentenceStep& step = read.steps.emplace_back();
      MULTIHEAD_TRY(read_dense({config, path + "/config.json"}, path, read.width, step));
      read.width = step.out;
    } else if (type == "Normalize" && has_pooling) {
      read.steps.emplace_back();
    } else {
      refuse(std::to_string(count) + ".type", "a Transformer, a Pooling, then Dense and Normalize",
             '"' + type + '"');
    }
  }
  if (count == 0) {
    MULTIHEAD_TRY(read_pooling({config, "1_Pooling/config.json"}, architecture.width, read));
  } else if (!has_pooling) {
    refuse("0.type", "a Pooling after the Transformer", "none");
  }
  File settings(config, "sentence_bert_config.json");
  // Without a length of their own, sentence-transformers take the tokenizer's.
  File tokenizer(config, "tokenizer_config.json");
  read.max_tokens =
      settings.size("max_seq_length", count > 0 ? tokenizer.size("model_max_length", 0) : 0);
  MULTIHEAD_TRY(settings.status());
  sentence = std::move(read);
  return {};
}

Status compute_vectors(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       Pooling pooling, bool normalize, const Tensor& out, Context& context) {
  const int64_t batch = pass.inputs.batch, width = state.shape[1];
  std::vector<float> vectors(static_cast<size_t>(batch * width));
  for (int64_t b = 0; b < batch; ++b) {
    const auto tokens = static_cast<size_t>(pass.tokens), first = static_cast<size_t>(b) * tokens;
    const std::span<const uint8_t> mask = pass.inputs.mask;
    pool(mask.empty() ? mask : mask.subspan(first, tokens), state.data + b * pass.tokens * width,
         pass.tokens, pooling,
         std::span(vectors).subspan(static_cast<size_t>(b * width), static_cast<size_t>(width)));
  }
  for (const SentenceStep& step : model.sentence.steps) {
    if (step.out == 0) {
      normalize_rows(batch, static_cast<int64_t>(vectors.size()) / batch, vectors.data());
      continue;
    }
    std::vector<float> next(static_cast<size_t>(batch * step.out));
    MULTIHEAD_TRY(project(ConstTensor(vectors.data(), {batch, step.in}), step.dense,
                          {next.data(), {batch, step.out}}, context));
    apply(step.activation, next);
    vectors = std::move(next);
  }
  if (normalize) {
    normalize_rows(batch, static_cast<int64_t>(vectors.size()) / batch, vectors.data());
  }
  std::copy(vectors.begin(), vectors.end(), out.data);
  return {};
}

}  // namespace multihead::models
