#include "multihead/directions.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "models/config_reader.h"
#include "models/io/read_json.h"
#include "multihead/linear.h"
#include "rules/element.h"

namespace multihead::models {
namespace {

using Floats = std::vector<float>;
using Encoder = SparseAutoencoderInfo::Architecture;
enum class RowNorm : uint8_t { kNone, kLayerNorm, kConstant };

constexpr std::string_view kEncoders[] = {"standard", "jumprelu", "topk", "gated"};
constexpr std::string_view kRowNorms[] = {"none", "layer_norm", "constant_norm_rescale"};
constexpr std::pair<std::string_view, Site> kHooks[] = {
    {"hook_resid_pre", Site::kResidPre},   {"hook_resid_mid", Site::kResidMid},
    {"hook_resid_post", Site::kResidPost}, {"hook_attn_out", Site::kAttnOut},
    {"hook_mlp_out", Site::kMlpOut},       {"attn.hook_z", Site::kZ}};
constexpr int64_t kMostFeatures = int64_t{1} << 22;

// Checks a contiguous matrix. Any number of rows is right if that is negative.
template <class T>
Status check_matrix(const char* name, const TensorView<T>& matrix, int64_t rows, int64_t columns) {
  const Dims& shape = matrix.shape;
  if (matrix.data == nullptr || shape.rank() != 2 || shape[1] != columns ||
      (rows >= 0 && shape[0] != rows) || !(matrix.strides == contiguous_strides(shape))) {
    const std::string expected = rows < 0 ? "rows" : std::to_string(rows);
    return {StatusCode::kShape, name,
            "(" + expected + ", " + std::to_string(columns) + "), contiguous",
            matrix.data == nullptr ? "none" : shape.to_string()};
  }
  if constexpr (std::is_const_v<T>) {
    const float* const end = matrix.data + shape.elements();
    if (!std::all_of(matrix.data, end, [](float x) { return std::isfinite(x); })) {
      return {StatusCode::kOption, name, "finite numbers", "NaN or an infinity"};
    }
  }
  return {};
}

// The encoder reads (x - shift) / divisor; decoded numbers are multiplied by `factor` before
// `shift` is added.
struct RowScale {
  double shift = 0, divisor = 1, factor = 1;
};
RowScale scale_of(const float* row, int64_t width, RowNorm norm) {
  if (norm == RowNorm::kNone) return {};
  const auto count = static_cast<double>(width);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < width; ++i) sum += row[i];
  const double shift = norm == RowNorm::kLayerNorm ? sum / count : 0.0;
  for (int64_t i = 0; i < width; ++i) squares += (row[i] - shift) * (row[i] - shift);
  if (norm == RowNorm::kConstant) {
    const double size = std::sqrt(squares / count);
    return {0.0, size == 0.0 ? 1.0 : size, size};
  }
  const double deviation = std::sqrt(squares / std::max(count - 1, 1.0));
  return {shift, deviation + 1e-5, deviation};
}

// Reads "blocks.N.HOOK". Returns false for another name.
bool read_hook(const std::string& name, SparseAutoencoderInfo& info) {
  constexpr std::string_view kBlocks = "blocks.";
  const char* const end = name.data() + name.size();
  if (!name.starts_with(kBlocks)) return false;
  const auto [dot, error] = std::from_chars(name.data() + kBlocks.size(), end, info.layer);
  if (error != std::errc() || dot == end || *dot != '.' || info.layer < 0) return false;
  const auto* const hook =
      std::find_if(std::begin(kHooks), std::end(kHooks), [&](const auto& each) {
        return each.first == std::string_view(dot + 1, static_cast<size_t>(end - dot - 1));
      });
  if (hook == std::end(kHooks)) return false;
  info.site = hook->second;
  return true;
}

// Reads a vector, or the transpose of a matrix, as floats.
Status read_tensor(const StateDict& dict, const char* name, const Dims& shape, Floats& result) {
  const auto found = dict.find(name);
  if (found == dict.end() || !(found->second.shape == shape)) {
    return {StatusCode::kFormat, name, shape.to_string(),
            found == dict.end() ? "none" : found->second.shape.to_string()};
  }
  const int64_t columns = shape[shape.rank() - 1], rows = shape.elements() / columns;
  constexpr int64_t kBlock = 16;  // rows at a time, because 16 floats are a cache line
  Floats block(static_cast<size_t>(kBlock * columns));
  result.resize(static_cast<size_t>(shape.elements()));
  for (int64_t first = 0; first < rows; first += kBlock) {
    const int64_t some = std::min(kBlock, rows - first);
    rules::read_floats(found->second.data, found->second.dtype, first * columns, some * columns,
                       block.data());
    for (int64_t i = 0; i < some * columns; ++i) {
      const float value = block[static_cast<size_t>(i % some * columns + i / some)];
      if (!std::isfinite(value)) {
        return {StatusCode::kFormat, name, "finite numbers", "NaN or an infinity"};
      }
      result[static_cast<size_t>(i / some * rows + first + i % some)] = value;
    }
  }
  return {};
}

// Sets all but the k largest numbers to 0; the first of equal ones are kept.
void keep_largest(float* row, int64_t count, int64_t k) {
  // The difference of two infinite sums has no place in an order.
  for (int64_t f = 0; f < count; ++f) row[f] = std::isnan(row[f]) ? 0.0F : row[f];
  Floats sorted(row, row + count);
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const float least = sorted[static_cast<size_t>(k - 1)];
  int64_t equal = k - std::count_if(row, row + count, [&](float x) { return x > least; });
  for (int64_t f = 0; f < count; ++f) {
    if (row[f] < least || (row[f] == least && equal-- <= 0)) row[f] = 0.0F;
  }
}

}  // namespace

struct SparseAutoencoder::Internals {
  SparseAutoencoderInfo info;
  RowNorm norm = RowNorm::kNone;
  bool subtracts_bias = true;  // apply_b_dec_to_input
  bool by_norms = false;       // rescale_acts_by_decoder_norm
  int64_t k = 0;
  Floats encoder;       // (F, E)
  Floats decoder;       // (E, F)
  Floats decoder_bias;  // (E)
  Floats bias;          // (F): b_enc or b_mag
  Floats gate;          // (F): threshold or b_gate
  Floats gain;          // (F): exp(r_mag)

  Status read_settings(const Config& config);
  Status read_weights(const StateDict& dict);
  // Turns a row of x W_enc into features. Without a gain, the row has `bias` added already.
  void activate(float* row) const;
};

Status SparseAutoencoder::Internals::read_settings(const Config& config) {
  ConfigReader reader(config, "cfg.json/");
  const auto size = [&](const char* name, int64_t most) {
    const std::string expected = "an integer from 1 to " + std::to_string(most);
    if (reader.find(name) == nullptr) reader.fail(name, expected, "nothing");
    return reader.integer(name, 1, {.most = most});
  };
  // The first of several names under which a setting is not null; else the last.
  const auto first = [&](std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      if (reader.has(name)) return name;
    }
    return *(names.end() - 1);
  };
  // The place of a text among `names`.
  const auto choice = [&](const char* name, const std::string& text, const auto& names,
                          const char* expected) {
    const auto* const found = std::find(std::begin(names), std::end(names), text);
    if (found == std::end(names)) reader.fail(name, expected, described(reader.find(name)));
    return found - std::begin(names);
  };
  const auto text = [&](const char* name, std::string_view absent) {
    return reader.has(name) ? reader.text(name, absent) : std::string(absent);
  };
  info.width = size("d_in", kMostWidth);
  info.features = size("d_sae", kMostFeatures);

  constexpr std::string_view kFunctions[] = {"relu", "topk"};
  const char* const function = first({"activation_fn_str", "activation_fn"});
  const bool is_top = choice(function, text(function, "relu"), kFunctions, "relu or topk") == 1;
  info.architecture = static_cast<Encoder>(
      choice("architecture", is_top ? "topk" : text("architecture", kEncoders[0]), kEncoders,
             "standard, jumprelu, topk or gated"));
  if (info.architecture == Encoder::kTopK) {
    k = size(first({"activation_fn_kwargs.k", "k"}), info.features);
    by_norms = reader.flag("rescale_acts_by_decoder_norm", false);
  }

  const char* const kNorm = "normalize_activations";
  const ConfigValue* const given = reader.find(kNorm);
  const bool is_text = given != nullptr && given->kind == ConfigValue::Kind::kText;
  // Older files have false or true.
  const bool is_none = given == nullptr || (!is_text && given->number == 0);
  norm = static_cast<RowNorm>(choice(kNorm, is_none ? std::string(kRowNorms[0]) : given->text,
                                     kRowNorms, "none, layer_norm or constant_norm_rescale"));
  subtracts_bias = reader.flag("apply_b_dec_to_input", true);

  const char* const head =
      first({"hook_point_head_index", "metadata.hook_head_index", "hook_head_index"});
  if (reader.has(head)) reader.fail("hook_head_index", "null", described(reader.find(head)));
  const char* const hook = first({"hook_point", "metadata.hook_name", "hook_name"});
  if (!read_hook(text(hook, ""), info)) {
    reader.fail("hook_name",
                "hook_resid_pre, hook_resid_mid, hook_resid_post, hook_attn_out, hook_mlp_out or "
                "attn.hook_z after blocks.N.",
                described(reader.find(hook)));
  }
  return reader.status();
}

Status SparseAutoencoder::Internals::read_weights(const StateDict& dict) {
  const int64_t width = info.width, count = info.features;
  const bool gated = info.architecture == Encoder::kGated;
  MULTIHEAD_TRY(read_tensor(dict, "W_enc", {width, count}, encoder));
  MULTIHEAD_TRY(read_tensor(dict, "W_dec", {count, width}, decoder));
  MULTIHEAD_TRY(read_tensor(dict, "b_dec", {width}, decoder_bias));
  MULTIHEAD_TRY(read_tensor(dict, gated ? "b_mag" : "b_enc", {count}, bias));
  if (gated || info.architecture == Encoder::kJumpReLU) {
    MULTIHEAD_TRY(read_tensor(dict, gated ? "b_gate" : "threshold", {count}, gate));
  }
  if (gated) MULTIHEAD_TRY(read_tensor(dict, "r_mag", {count}, gain));
  for (float& each : gain) each = std::exp(each);
  // Older files have a factor of each feature, which is no part of the definition any more.
  Floats ones(1, 1.0F);
  const char* const kFactor = "scaling_factor";
  if (dict.contains(kFactor)) MULTIHEAD_TRY(read_tensor(dict, kFactor, {count}, ones));
  if (std::any_of(ones.begin(), ones.end(), [](float x) { return x != 1.0F; })) {
    return {StatusCode::kFormat, kFactor, "ones", "other numbers"};
  }
  for (int64_t f = 0; by_norms && f < count; ++f) {
    double squares = 0;
    for (int64_t at = f; at < width * count; at += count) {
      squares += std::pow(decoder[static_cast<size_t>(at)], 2.0);
    }
    const auto length = static_cast<float>(std::sqrt(squares));
    bias[static_cast<size_t>(f)] *= length;
    for (int64_t i = 0; i < width; ++i) {
      encoder[static_cast<size_t>(f * width + i)] *= length;
      if (length > 0.0F) decoder[static_cast<size_t>(i * count + f)] /= length;
    }
  }
  return {};
}

void SparseAutoencoder::Internals::activate(float* row) const {
  if (info.architecture == Encoder::kTopK) keep_largest(row, info.features, k);
  for (size_t f = 0; f < static_cast<size_t>(info.features); ++f) {
    bool active = true;
    if (info.architecture == Encoder::kJumpReLU) active = row[f] > gate[f];
    if (info.architecture == Encoder::kGated) {
      active = row[f] + gate[f] > 0.0F;
      row[f] = row[f] * gain[f] + bias[f];
    }
    if (!active || row[f] < 0.0F) row[f] = 0.0F;
  }
}

Status SparseAutoencoder::create(const Config& config, const Safetensors& weights,
                                 SparseAutoencoder& result) {
  return engine::memory_guard([&]() -> Status {
    const auto made = std::make_shared<Internals>();
    MULTIHEAD_TRY(made->read_settings(config));
    StateDict dict;
    MULTIHEAD_TRY(weights.state_dict(dict));
    MULTIHEAD_TRY(made->read_weights(dict));
    result.internals_ = made;
    return {};
  });
}

Status SparseAutoencoder::open(const std::string& folder, SparseAutoencoder& result) {
  return engine::memory_guard([&]() -> Status {
    const std::filesystem::path place(folder);
    Config config;
    Safetensors weights;
    MULTIHEAD_TRY(
        read_flat_json({.path = (place / "cfg.json").string(), .prefix = "cfg.json/"}, config));
    MULTIHEAD_TRY(Safetensors::read((place / "sae_weights.safetensors").string(), weights));
    return create(config, weights, result);
  });
}

Status SparseAutoencoder::find(const Internals*& result) const {
  result = internals_.get();
  if (result != nullptr) return {};
  return {StatusCode::kOption, "autoencoder", "one that was opened", "none"};
}

SparseAutoencoderInfo SparseAutoencoder::info() const {
  return internals_ == nullptr ? SparseAutoencoderInfo() : internals_->info;
}

Status SparseAutoencoder::encode(const ConstTensor& rows, const Tensor& features,
                                 Context& context) const {
  const Internals* m = nullptr;
  MULTIHEAD_TRY(find(m));
  const int64_t width = m->info.width, count = m->info.features;
  MULTIHEAD_TRY(check_matrix("rows", rows, -1, width));
  MULTIHEAD_TRY(check_matrix("features", features, rows.shape[0], count));
  return engine::memory_guard([&]() -> Status {
    Floats inputs(rows.data, rows.data + rows.shape.elements());
    for (int64_t r = 0; r < rows.shape[0]; ++r) {
      float* const x = inputs.data() + r * width;
      const RowScale scale = scale_of(x, width, m->norm);
      for (int64_t i = 0; i < width; ++i) {
        const float bias = m->subtracts_bias ? m->decoder_bias[static_cast<size_t>(i)] : 0.0F;
        x[i] = static_cast<float>((x[i] - scale.shift) / scale.divisor - bias);
      }
    }
    ConstTensor bias(m->bias.data(), {count});
    if (!m->gain.empty()) bias = {};
    const ConstTensor encoder(m->encoder.data(), {count, width});
    MULTIHEAD_TRY(linear(ConstTensor(inputs.data(), rows.shape), encoder, bias, features, context));
    for (int64_t r = 0; r < rows.shape[0]; ++r) m->activate(features.data + r * count);
    return {};
  });
}

Status SparseAutoencoder::decode(const ConstTensor& features, const Tensor& rows, Context& context,
                                 const ConstTensor& encoded) const {
  const Internals* m = nullptr;
  MULTIHEAD_TRY(find(m));
  const int64_t width = m->info.width, count = m->info.features;
  MULTIHEAD_TRY(check_matrix("features", features, -1, count));
  const int64_t number = features.shape[0];
  MULTIHEAD_TRY(check_matrix("rows", rows, number, width));
  std::vector<RowScale> scales;
  if (m->norm != RowNorm::kNone) {
    MULTIHEAD_TRY(check_matrix("encoded", encoded, number, width));
  }
  return engine::memory_guard([&]() -> Status {
    for (int64_t r = 0; m->norm != RowNorm::kNone && r < number; ++r) {
      scales.push_back(scale_of(encoded.data + r * width, width, m->norm));
    }
    MULTIHEAD_TRY(linear(features, ConstTensor(m->decoder.data(), {width, count}),
                         ConstTensor(m->decoder_bias.data(), {width}), rows, context));
    float* row = rows.data;
    for (const RowScale& scale : scales) {
      for (int64_t i = 0; i < width; ++i, ++row) {
        *row = static_cast<float>(*row * scale.factor + scale.shift);
      }
    }
    return {};
  });
}

Status SparseAutoencoder::edit(int64_t feature, float strength, std::vector<float>& value,
                               Edit& result, int64_t num_heads) const {
  const Internals* m = nullptr;
  MULTIHEAD_TRY(find(m));
  const int64_t width = m->info.width, count = m->info.features;
  if (feature < 0 || feature >= count) {
    return {StatusCode::kOption, "feature", "0 to " + std::to_string(count - 1),
            std::to_string(feature)};
  }
  if (!std::isfinite(strength)) {
    return {StatusCode::kOption, "strength", "a finite number", "NaN or an infinity"};
  }
  const bool has_heads = m->info.site == Site::kZ;
  if (has_heads && (num_heads < 1 || width % num_heads != 0)) {
    return {StatusCode::kOption, "num_heads",
            "a number of heads that divides " + std::to_string(width), std::to_string(num_heads)};
  }
  return engine::memory_guard([&]() -> Status {
    value.resize(static_cast<size_t>(width));
    for (int64_t i = 0; i < width; ++i) {
      value[static_cast<size_t>(i)] =
          strength * m->decoder[static_cast<size_t>(i * count + feature)];
    }
    const Dims shape = has_heads ? Dims{num_heads, width / num_heads} : Dims{width};
    result = {.site = m->info.site, .layer = m->info.layer, .action = Edit::Action::kAdd};
    result.value = {value.data(), shape};
    return {};
  });
}

}  // namespace multihead::models
