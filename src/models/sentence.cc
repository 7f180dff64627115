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
#include "models/output.h"
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

// The settings of one file. null is the same as none.
class File : public ConfigReader {
 public:
  File(const Config& config, const std::string& path) : ConfigReader(config, path + "/") {}

  bool flag(const std::string& setting, bool absent) {
    return has(setting) ? ConfigReader::flag(setting.c_str(), absent) : absent;
  }
  // A number from 1 on; larger ones than a size can be become the largest.
  int64_t size(const char* setting, int64_t absent) {
    if (!has(setting)) return absent;
    const ConfigValue& value = *find(setting);
    if (value.kind != Kind::kNumber || !(value.number >= 1)) refuse(setting, "a number from 1 on");
    return value.number < 0x1p31 ? static_cast<int64_t>(value.number) : int64_t{1} << 31;
  }
  // Empty if the setting is not there.
  std::string text(const std::string& setting) {
    return has(setting) ? ConfigReader::text(setting.c_str(), "") : "";
  }
  // Returns the part of a text that follows its last dot.
  std::string last_name(const std::string& setting) {
    std::string name = text(setting);
    return name.erase(0, name.rfind('.') + 1);
  }
  void refuse(const std::string& setting, std::string_view expected) {
    fail(setting, expected, described(find(setting)));
  }
};

Status read_pooling(File& file, Sentence& sentence) {
  sentence.pools_prompt = file.flag("include_prompt", true);
  std::string mode = file.text("pooling_mode");
  if (mode.empty()) mode = file.text("pooling_mode.0");
  if (file.has("pooling_mode.1")) file.refuse("pooling_mode.1", "one pooling");
  bool known = mode.empty();
  for (const PoolingName& name : kPoolings) {
    // Before version 5.4 of sentence-transformers each mode has a flag, which counts no more if
    // there is a mode.
    const std::string flag = "pooling_mode_" + std::string(name.flag);
    const bool chosen = known ? file.flag(flag, false) : name.mode == mode;
    if (!chosen) continue;
    if (known && !mode.empty()) file.refuse(flag, "one pooling, and another was true");
    mode = name.mode;
    known = true;
    sentence.pooling = name.pooling;
    if (file.has("pooling_mode") || file.has("pooling_mode.0")) break;
  }
  if (!known) {
    file.refuse(file.has("pooling_mode") ? "pooling_mode" : "pooling_mode.0",
                "cls, max, mean, mean_sqrt_len_tokens, weightedmean or lasttoken");
  }
  return file.status();
}

Status read_dense(File& file, const std::string& path, int64_t width, SentenceStep& step) {
  step.name = path + "/linear";
  step.in = file.size("in_features", 0);
  step.out = file.size("out_features", 0);
  step.bias = file.flag("bias", true);
  if (step.in != width) file.refuse("in_features", std::to_string(width));
  // Larger widths of tensors would overflow products.
  if (step.out < 1 || step.out > (1 << 20)) file.refuse("out_features", "1 to 1048576");
  if (file.flag("use_residual", false)) file.refuse("use_residual", "false");
  for (const char* const name : {"module_input_name", "module_output_name"}) {
    const std::string tensor = file.text(name);
    if (!tensor.empty() && tensor != "sentence_embedding") file.refuse(name, "sentence_embedding");
  }
  const std::string name = file.last_name("activation_function");
  step.tanh = name.empty() || name == "Tanh";
  if (name == "ReLU") step.activation = Activation::kRelu;
  if (name == "GELU") step.activation = Activation::kGelu;
  if (name == "SiLU") step.activation = Activation::kSilu;
  if (!step.tanh && !step.activation && name != "Identity") {
    file.refuse("activation_function", "Identity, Tanh, ReLU, GELU or SiLU of torch");
  }
  return file.status();
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
  sentence.pooling = architecture.family->pooling;
  // The modules of such a folder are the model itself.
  if (architecture.has_towers) return {};
  File modules(config, "modules.json");
  bool has_pooling = false;
  int64_t count = 0;
  for (;; ++count) {
    const std::string at = std::to_string(count);
    if (modules.text(at + ".type").empty()) break;
    const std::string type = modules.last_name(at + ".type"), path = modules.text(at + ".path");
    File file(config, path + "/config.json");
    if (type == "Dropout" || (count == 0 && type == "Transformer")) continue;
    if (type == "Pooling" && !has_pooling) {
      if (!file.has_members()) file.refuse("pooling_mode", "a pooling");
      MULTIHEAD_TRY(file.status());
      MULTIHEAD_TRY(read_pooling(file, sentence));
      has_pooling = true;
    } else if (type == "Dense" && has_pooling) {
      SentenceStep& step = sentence.steps.emplace_back();
      MULTIHEAD_TRY(read_dense(file, path, sentence.width, step));
      sentence.width = step.out;
    } else if (type == "Normalize" && has_pooling) {
      sentence.steps.emplace_back();
    } else {
      modules.refuse(at + ".type", "a Transformer, a Pooling, then Dense and Normalize");
    }
  }
  if (count == 0) {
    File file(config, "1_Pooling/config.json");
    MULTIHEAD_TRY(read_pooling(file, sentence));
  } else if (!has_pooling) {
    modules.refuse(std::to_string(count) + ".type", "a Pooling");
  }
  sentence.refusal = modules.status();
  File settings(config, "sentence_bert_config.json");
  // Without a length of their own, sentence-transformers take the tokenizer's.
  File tokenizer(config, "tokenizer_config.json");
  const int64_t length = count > 0 ? tokenizer.size("model_max_length", 0) : 0;
  sentence.max_tokens = settings.size("max_seq_length", length);
  return settings.status();
}

Status compute_vectors(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       Pooling pooling, bool normalize, std::vector<float>& vectors,
                       Context& context) {
  const int64_t batch = pass.inputs.batch, width = state.shape[1];
  vectors.resize(static_cast<size_t>(batch * width));
  const bool by_pooler = pooling == Pooling::kPooler;
  if (by_pooler) {
    const Tensor pooled(vectors.data(), {batch, width});
    MULTIHEAD_TRY(compute_pooled(model, pass, state, pooled, context));
  }
  for (int64_t b = 0; b < batch && !by_pooler; ++b) {
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
    MULTIHEAD_TRY(
        nn::project(ConstTensor(vectors.data(), {batch, step.in}), step.dense, y, context));
    if (step.activation) MULTIHEAD_TRY(activate(y, *step.activation, y, context));
    for (size_t i = 0; step.tanh && i < next.size(); ++i) next[i] = std::tanh(next[i]);
    vectors = std::move(next);
  }
  if (normalize) normalize_rows(batch, vectors);
  return {};
}

}  // namespace multihead::models
