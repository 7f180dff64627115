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

// Reads the settings of one file, and keeps the first error.
class File {
 public:
  File(const Config& config, const std::string& path) : config_(config), name_(path + "/") {}

  // Null if the setting is not there or null.
  const ConfigValue* find(const std::string& setting) const {
    const auto found = config_.find(name_ + setting);
    if (found == config_.end() || found->second.kind == Kind::kNull) return nullptr;
    return &found->second;
  }
  bool exists() const {
    const auto found = config_.lower_bound(name_);
    return found != config_.end() && found->first.starts_with(name_);
  }
  bool flag(const std::string& setting, bool absent) {
    const ConfigValue* const value = find(setting);
    if (value == nullptr) return absent;
    if (value->kind != Kind::kBool) fail(setting, "true or false");
    return value->number != 0;
  }
  // A number from 1 on; larger ones than a size can be become the largest.
  int64_t size(const std::string& setting, int64_t absent) {
    const ConfigValue* const value = find(setting);
    if (value == nullptr) return absent;
    if (value->kind != Kind::kNumber || !(value->number >= 1)) fail(setting, "a number from 1 on");
    return value->number < 0x1p31 ? static_cast<int64_t>(value->number) : int64_t{1} << 31;
  }
  // Empty if the setting is not there.
  std::string_view text(const std::string& setting) {
    const ConfigValue* const value = find(setting);
    if (value == nullptr) return {};
    if (value->kind != Kind::kText) fail(setting, "a text");
    return value->text;
  }
  void fail(const std::string& setting, std::string_view expected) {
    if (status.ok()) status = setting_error(name_ + setting, expected, described(find(setting)));
  }

  Status status;

 private:
  const Config& config_;
  std::string name_;
};

Status read_pooling(File file, Sentence& sentence) {
  sentence.pools_prompt = file.flag("include_prompt", true);
  std::string_view mode = file.text("pooling_mode");
  if (mode.empty()) mode = file.text("pooling_mode.0");
  if (file.find("pooling_mode.1") != nullptr) file.fail("pooling_mode.1", "one pooling");
  bool known = mode.empty();
  for (const PoolingName& name : kPoolings) {
    // Before version 5.4 of sentence-transformers each mode has a flag, which counts no more if
    // there is a mode.
    const std::string flag = "pooling_mode_" + std::string(name.flag);
    const bool chosen = known ? file.flag(flag, false) : name.mode == mode;
    if (!chosen) continue;
    if (known && !mode.empty()) file.fail(flag, "one pooling, and another was true");
    mode = name.mode;
    known = true;
    sentence.pooling = name.pooling;
    if (file.find("pooling_mode") != nullptr || file.find("pooling_mode.0") != nullptr) break;
  }
  if (!known) {
    file.fail(file.find("pooling_mode") == nullptr ? "pooling_mode.0" : "pooling_mode",
              "cls, max, mean, mean_sqrt_len_tokens, weightedmean or lasttoken");
  }
  return file.status;
}

Status read_dense(File file, const std::string& path, int64_t width, SentenceStep& step) {
  step.path = path;
  step.in = file.size("in_features", 0);
  step.out = file.size("out_features", 0);
  step.bias = file.flag("bias", true);
  if (step.in != width) file.fail("in_features", std::to_string(width));
  // Larger widths of tensors would overflow products.
  if (step.out < 1 || step.out > (1 << 20)) file.fail("out_features", "1 to 1048576");
  if (file.flag("use_residual", false)) file.fail("use_residual", "false");
  for (const char* const name : {"module_input_name", "module_output_name"}) {
    const std::string_view tensor = file.text(name);
    if (!tensor.empty() && tensor != "sentence_embedding") file.fail(name, "sentence_embedding");
  }
  std::string_view name = file.text("activation_function");
  name.remove_prefix(name.rfind('.') + 1);
  step.tanh = name.empty() || name == "Tanh";
  if (name == "ReLU") step.activation = Activation::kRelu;
  if (name == "GELU") step.activation = Activation::kGelu;
  if (name == "SiLU") step.activation = Activation::kSilu;
  if (!step.tanh && !step.activation && name != "Identity") {
    file.fail("activation_function", "Identity, Tanh, ReLU, GELU or SiLU of torch");
  }
  return file.status;
}

// Rows of length 1; a row of zeros stays.
void normalize_rows(int64_t rows, std::vector<float>& values) {
  const size_t width = values.size() / static_cast<size_t>(rows);
  for (size_t row = 0; row < values.size(); row += width) {
    const std::span<float> vector(values.data() + row, width);
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
  sentence.width = architecture.width;
  File modules(config, "modules.json");
  bool has_pooling = false;
  int64_t count = 0;
  for (;; ++count) {
    const std::string at = std::to_string(count);
    std::string_view type = modules.text(at + ".type");
    if (type.empty()) break;
    type.remove_prefix(type.rfind('.') + 1);
    const std::string path(modules.text(at + ".path"));
    File file(config, path + "/config.json");
    if (type == "Dropout" || (count == 0 && type == "Transformer")) continue;
    if (type == "Pooling" && !has_pooling) {
      if (!file.exists()) file.fail("pooling_mode", "a pooling");
      MULTIHEAD_TRY(file.status);
      MULTIHEAD_TRY(read_pooling(file, sentence));
      has_pooling = true;
    } else if (type == "Dense" && has_pooling) {
      SentenceStep& step = sentence.steps.emplace_back();
      MULTIHEAD_TRY(read_dense(file, path, sentence.width, step));
      sentence.width = step.out;
    } else if (type == "Normalize" && has_pooling) {
      sentence.steps.emplace_back();
    } else {
      modules.fail(at + ".type", "a Transformer, a Pooling, then Dense and Normalize");
    }
  }
  if (count == 0) {
    MULTIHEAD_TRY(read_pooling({config, "1_Pooling/config.json"}, sentence));
  } else if (!has_pooling) {
    modules.fail(std::to_string(count) + ".type", "a Pooling");
  }
  sentence.refusal = modules.status;
  File settings(config, "sentence_bert_config.json");
  // Without a length of their own, sentence-transformers take the tokenizer's.
  File tokenizer(config, "tokenizer_config.json");
  const int64_t length = count > 0 ? tokenizer.size("model_max_length", 0) : 0;
  sentence.max_tokens = settings.size("max_seq_length", length);
  return settings.status;
}

Status compute_vectors(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       Pooling pooling, bool normalize, const Tensor& out, Context& context) {
  const int64_t batch = pass.inputs.batch, width = state.shape[1];
  std::vector<float> vectors(static_cast<size_t>(batch * width));
  for (int64_t b = 0; b < batch; ++b) {
    const auto tokens = static_cast<size_t>(pass.tokens), first = static_cast<size_t>(b) * tokens;
    const std::span<const uint8_t> mask = pass.inputs.mask;
    pool(mask.empty() ? mask : mask.subspan(first, tokens), state.data + b * pass.tokens * width,
         pass.tokens, pooling, {vectors.data() + b * width, static_cast<size_t>(width)});
  }
  for (const SentenceStep& step : model.sentence.steps) {
    if (step.out == 0) {
      normalize_rows(batch, vectors);
      continue;
    }
    std::vector<float> next(static_cast<size_t>(batch * step.out));
    const Tensor y(next.data(), {batch, step.out});
    MULTIHEAD_TRY(project(ConstTensor(vectors.data(), {batch, step.in}), step.dense, y, context));
    if (step.activation) MULTIHEAD_TRY(activate(y, *step.activation, y, context));
    for (size_t i = 0; step.tanh && i < next.size(); ++i) next[i] = std::tanh(next[i]);
    vectors = std::move(next);
  }
  if (normalize) normalize_rows(batch, vectors);
  std::copy(vectors.begin(), vectors.end(), out.data);
  return {};
}

}  // namespace multihead::models
