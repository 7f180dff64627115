// Tests that a configuration and a list of tensors, both from untrusted files, give a model that
// runs, or an error that names the setting or the tensor. Configurations are taken from the golden
// models, in which settings are replaced, removed or exchanged. Tensors are made with the shapes
// that the loader lists, so that the numbers of the configuration reach the passes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/bytes.h"
#include "models/sites.h"
#include "multihead/analysis.h"
#include "multihead/context.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"

namespace {

namespace fs = std::filesystem;
using multihead::Context;
using multihead::Dims;
using multihead::Safetensors;
using multihead::SafetensorsEntry;
using multihead::Status;
using multihead::StatusCode;
using multihead::Tensor;
using multihead::WeightType;
using multihead::fuzz::Bytes;
using multihead::models::Capture;
using multihead::models::Config;
using multihead::models::ConfigValue;
using multihead::models::Edit;
using multihead::models::GradientOutput;
using multihead::models::HeadMap;
using multihead::models::Metric;
using multihead::models::Model;
using multihead::models::ModelInfo;
using multihead::models::ModelInputs;
using multihead::models::ModelLoader;
using multihead::models::ModelOutputs;
using multihead::models::OpenOptions;
using multihead::models::Output;
using multihead::models::Session;
using multihead::models::Site;
using multihead::models::StoredTensor;
using Kind = ConfigValue::Kind;

// The configuration and the list of tensors of a golden model.
struct Base {
  Config config;
  std::vector<StoredTensor> tensors;
};

std::vector<Base> read_bases() {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(MULTIHEAD_CONFORMANCE_FOLDER "/models")) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  std::vector<Base> bases;
  for (const fs::path& folder : folders) {
    Base base;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
      Safetensors file;
      const Status status = Safetensors::read(entry.path().string(), file);
      FUZZ_CHECK(status.ok(), "%s", status.message().c_str());
      for (const auto& [tensor, stored] : file.entries()) {
        const char* const type = stored.type == SafetensorsEntry::Type::kF16    ? "F16"
                                 : stored.type == SafetensorsEntry::Type::kBF16 ? "BF16"
                                                                                : "F32";
        base.tensors.push_back({tensor, type, stored.shape});
      }
    }
    for (const char* name : {"config.json", "config_v4.json"}) {
      if (!fs::exists(folder / name)) continue;
      const Status status = multihead::models::read_config((folder / name).string(), base.config);
      FUZZ_CHECK(status.ok(), "%s", status.message().c_str());
      bases.push_back(base);
      // Models whose settings index tables are listed twice.
      const std::string& type = base.config["model_type"].text;
      const bool indexes = type.ends_with("roberta") || type == "t5" || type == "mpnet";
      if (indexes) bases.push_back(base);
    }
  }
  FUZZ_CHECK(!bases.empty(), "no golden models");
  return bases;
}

// Draws a number below `count` from two bytes: half of the driver's bytes are below 8.
size_t below(Bytes& from, size_t count) {
  return (static_cast<size_t>(from.byte()) * 37 + from.byte()) % count;
}

ConfigValue number(double value) { return {Kind::kNumber, value, {}}; }

// Draws a small number, a number of the configuration, or any value.
ConfigValue value_of(Bytes& from, const Config& config, const std::vector<std::string>& names) {
  if (from.one_in(3)) return number(static_cast<double>(below(from, from.one_in(2) ? 10 : 70)));
  if (from.one_in(3)) {
    const auto other = config.find(names[below(from, names.size())]);
    const double near =
        (other == config.end() ? 0 : other->second.number) + from.pick<double>({0, -1, 1});
    return number(from.one_in(4) ? std::floor(near / 4) : near);
  }
  switch (below(from, 24)) {
    case 0:
    case 1:
    case 2:
      return {};
    case 3:
      return number(0);
    case 4:
      return number(-1);
    case 5:
      return number(0x1p20);
    case 6:
      return number(0x1p31 - 1);
    case 7:
      return number(0x1p31);
    case 8:
      return number(0x1p62);
    case 9:
      return number(1e300);
    case 10:
      return number(-1e300);
    case 11:
      return number(NAN);
    case 12:
      return number(INFINITY);
    case 13:
      return number(0.5);
    case 14:
      return number(1e-40);
    case 15:
      return number(5000);
    case 16:
      return {Kind::kBool, 0, {}};
    case 17:
      return {Kind::kBool, 1, {}};
    case 18:
      return {Kind::kText, 0, ""};
    case 19:
      return {Kind::kText, 0, "1e-6"};
    case 20:
      return {
          Kind::kText, 0,
          from.pick<const char*>({"linear", "dynamic", "yarn", "longrope", "llama3", "default"})};
    case 21:
      return {Kind::kText, 0,
              from.pick<const char*>({"bert", "gpt2", "vit", "t5", "gemma3_text", "qwen2"})};
    case 22:
      return {Kind::kText, 0,
              from.pick<const char*>({"BertForMaskedLM", "LlamaForCausalLM",
                                      "BertForTokenClassification", "Gemma2Model",
                                      "RobertaForSequenceClassification"})};
    default:
      return number(static_cast<double>(from.special()));
  }
}

// Settings that few golden configurations have.
constexpr const char* kMore[] = {"attn_logit_softcapping",
                                 "final_logit_softcapping",
                                 "scale_attn_weights",
                                 "scale_attn_by_inverse_layer_idx",
                                 "sliding_window",
                                 "use_sliding_window",
                                 "max_window_layers",
                                 "sliding_window_pattern",
                                 "head_dim",
                                 "rope_theta",
                                 "rope_scaling",
                                 "rope_scaling.type",
                                 "rope_scaling.factor",
                                 "rope_parameters.rope_type",
                                 "rope_parameters.factor",
                                 "rope_parameters.attention_factor",
                                 "rope_parameters.mscale",
                                 "rope_parameters.beta_fast",
                                 "rope_parameters.original_max_position_embeddings",
                                 "original_max_position_embeddings",
                                 "partial_rotary_factor",
                                 "is_causal",
                                 "eos_token_id",
                                 "eos_token_id.0",
                                 "pad_token_id",
                                 "architectures.0",
                                 "query_pre_attn_scalar",
                                 "relative_attention_num_buckets",
                                 "relative_attention_max_distance",
                                 "max_position_embeddings",
                                 "num_attention_heads",
                                 "num_key_value_heads",
                                 "hidden_size"};

// Settings that no model here reads.
bool is_idle(const std::string& name) {
  constexpr std::string_view kIdle[] = {"drop",      "label",    "bos_token", "initializer",
                                        "use_cache", "_version", "dtype",     "pdrop"};
  return std::any_of(std::begin(kIdle), std::end(kIdle),
                     [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

void mutate(Bytes& from, Config& config) {
  // Numbers are the likeliest to reach a pass.
  std::vector<std::string> names;
  for (const auto& [name, value] : config) {
    if (!is_idle(name)) names.insert(names.end(), value.kind == Kind::kNumber ? 3 : 1, name);
  }
  do {
    const std::string name =
        from.one_in(5) ? kMore[below(from, std::size(kMore))] : names[below(from, names.size())];
    switch (below(from, 8)) {
      case 0:
        config.erase(name);
        break;
      case 1:
        std::swap(config[name], config[names[below(from, names.size())]]);
        break;
      default:
        config[name] = value_of(from, config, names);
    }
  } while (from.one_in(3));
}

// Checks that an error of a configuration names a setting, and that any other error names a missing
// or wrong tensor.
void check_refusal(const Status& status) {
  multihead::fuzz::check_words(status);
  const bool of_setting =
      status.code() == StatusCode::kOption && status.argument().starts_with("config.json: ");
  FUZZ_CHECK(of_setting || status.code() == StatusCode::kFormat, "%s", status.message().c_str());
}

StoredTensor* find(std::vector<StoredTensor>& tensors, std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const StoredTensor& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

// Adds the tensors that an error of the loader lists as missing, and corrects those that it lists
// with another shape. Returns false if the error is about something else.
bool follow(const Status& status, std::vector<StoredTensor>& tensors) {
  const std::string got(status.got());
  constexpr std::string_view kMissing = "none of the names ", kExpected = ": expected (";
  size_t changed = 0;
  if (got.starts_with(kMissing)) {
    for (size_t at = kMissing.size(); at < got.size();) {
      const size_t end = std::min(got.find(", ", at), got.size());
      const std::string name = got.substr(at, end - at);
      if (find(tensors, name) == nullptr && name.find(' ') == std::string::npos) {
        tensors.push_back({name, "F32", {1}});
        ++changed;
      }
      at = end + 2;
    }
    return changed > 0;
  }
  for (size_t at = 0; at < got.size();) {
    const size_t colon = got.find(kExpected, at);
    if (colon == std::string::npos) break;
    const size_t begin = got.rfind(' ', colon);
    StoredTensor* const tensor =
        find(tensors, got.substr(begin == std::string::npos ? 0 : begin + 1,
                                 colon - (begin == std::string::npos ? 0 : begin + 1)));
    at = colon + kExpected.size();
    if (tensor == nullptr) continue;
    tensor->shape = {};
    tensor->type = "F32";
    while (got[at] != ')') {
      size_t length = 0;
      tensor->shape.push_back(std::stoll(got.substr(at), &length));
      at += length;
      while (got[at] == ',' || got[at] == ' ') ++at;
    }
    ++changed;
  }
  return changed > 0;
}

// Makes small numbers of a stored type.
std::vector<std::byte> numbers_for(const StoredTensor& tensor, uint32_t& random) {
  const size_t size = tensor.type == "F32" ? 4 : 2;
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.shape.elements()) * size);
  for (size_t at = 0; at < bytes.size(); at += size) {
    random = random * 1664525U + 1013904223U;
    const float value = static_cast<float>(static_cast<int32_t>(random)) * 0x1p-32F;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    if (tensor.type == "BF16") bits >>= 16U;
    // Half precision: one sign and ten bits of fraction of a number from 1/8 to 1/4.
    if (tensor.type == "F16") bits = (random & 0x83FFU) | 0x3000U;
    std::memcpy(&bytes[at], &bits, size);
  }
  return bytes;
}

void check_info(const ModelInfo& info) {
  constexpr int64_t kMost = int64_t{1} << 31;
  for (const int64_t extent : {info.num_layers, info.embed_dim, info.num_heads, info.num_kv_heads,
                               info.head_dim, info.parameters, info.weight_bytes}) {
    FUZZ_CHECK(extent > 0, "%s: %lld", info.model_type.c_str(), static_cast<long long>(extent));
  }
  FUZZ_CHECK(info.max_tokens >= 0 && info.max_tokens < kMost, "max_tokens %lld",
             static_cast<long long>(info.max_tokens));
  FUZZ_CHECK(info.takes_pixels ? info.max_tokens > 0 : info.vocab_size > 0, "%s",
             info.model_type.c_str());
}

// Checks that a pass over valid inputs works, or fails because numbers are not finite.
bool computed(const Status& status) {
  multihead::fuzz::check_words(status);
  if (status.ok()) return true;
  FUZZ_CHECK(status.expected().find("finite") != std::string::npos, "%s", status.message().c_str());
  return false;
}

// Draws some numbers below `count`, and sometimes a wrong one.
std::vector<int64_t> some_below(Bytes& from, int64_t count) {
  std::vector<int64_t> list;
  while (list.size() < 4 && from.one_in(3)) {
    list.push_back(from.one_in(16) ? from.pick<int64_t>({-1, count, INT64_MAX, INT64_MIN})
                                   : from.integer(0, std::min<int64_t>(count, 200) - 1));
  }
  return list;
}

// Draws an edit, most of the time a valid one.
Edit make_edit(Bytes& from, const Model& model, int64_t tokens, std::vector<float>& numbers) {
  const ModelInfo& info = model.info();
  Edit edit;
  edit.site = static_cast<Site>(below(from, multihead::models::kSites));
  edit.layer = from.integer(0, info.num_layers - (from.one_in(16) ? 0 : 1));
  edit.action = static_cast<Edit::Action>(below(from, 4));
  edit.factor = from.number();
  edit.tokens = some_below(from, tokens);
  const multihead::models::Pass pass{.tokens = tokens};
  const multihead::models::SiteShape site =
      multihead::models::shape_of(*Model::Internals::of(model), pass, edit.site);
  Dims shape = site.shape;
  if (site.head_axis >= 0) edit.heads = some_below(from, shape[site.head_axis]);
  if (edit.action != Edit::Action::kReplace) {
    if (!edit.tokens.empty()) shape[site.token_axis] = std::ssize(edit.tokens);
    if (!edit.heads.empty()) shape[site.head_axis] = std::ssize(edit.heads);
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (from.one_in(3)) shape[axis] = 1;
    }
  }
  if (from.one_in(32)) shape[shape.rank() - 1] += 1;
  numbers.assign(static_cast<size_t>(shape.elements()), from.number());
  edit.value = {numbers.data(), shape};
  return edit;
}

// Checks that captures, edits and a gradient work, or fail with an error that names the cause.
void look_inside(Bytes& from, const Model& model, ModelInputs inputs, Context& context) {
  const ModelInfo& info = model.info();
  const int64_t tokens = info.takes_pixels ? info.max_tokens : std::ssize(inputs.ids);
  if (tokens > 40) return;
  std::vector<float> values[3], captured;
  std::vector<Edit> edits;
  for (std::vector<float>& numbers : values) {
    if (from.one_in(2)) edits.push_back(make_edit(from, model, tokens, numbers));
  }
  const auto site = static_cast<Site>(below(from, multihead::models::kSites + from.one_in(16)));
  const auto layer = static_cast<int64_t>(below(from, static_cast<size_t>(info.num_layers)));
  const multihead::models::Pass pass{.tokens = tokens};
  const Dims shape = multihead::models::shape_of(*Model::Internals::of(model), pass, site).shape;
  captured.assign(static_cast<size_t>(shape.elements()), 7.0F);
  const Capture capture{.site = site, .layer = layer, .out = {captured.data(), shape}};
  inputs.edits = edits;
  const Status status = model.forward(inputs, {.captures = {&capture, 1}}, context);
  multihead::fuzz::check_words(status);
  FUZZ_CHECK(
      status.ok() || status.code() == StatusCode::kOption || status.code() == StatusCode::kShape,
      "%s", status.message().c_str());
  inputs.edits = {};
  const GradientOutput output{.site = site, .layer = layer, .out = capture.out};
  const Metric metric{.kind = static_cast<Metric::Kind>(below(from, 3)),
                      .token = static_cast<int32_t>(from.byte()),
                      .against = static_cast<int32_t>(from.byte())};
  captured.assign(captured.size(), 7.0F);
  const Status differentiated =
      multihead::models::gradients(model, inputs, metric, {&output, 1}, context);
  multihead::fuzz::check_words(differentiated);
  for (const float number : captured) {
    FUZZ_CHECK(differentiated.ok() ? std::isfinite(number) : number == 7.0F, "%g",
               static_cast<double>(number));
  }
}

void run(Bytes& from, const Model& model) {
  const ModelInfo& info = model.info();
  Context context(1);
  int64_t tokens = info.takes_pixels ? info.max_tokens : from.integer(1, 100);
  const bool too_many = info.max_tokens > 0 && tokens > info.max_tokens;
  // Skip passes that would take long.
  const int64_t width = info.embed_dim + info.num_heads * info.head_dim + info.vocab_size;
  if (tokens > 2000 || tokens * width > 1'000'000 || tokens * info.parameters > 20'000'000 ||
      tokens * tokens * info.num_heads > 2'000'000 || info.num_layers > 64) {
    tokens = 1;
    if (info.takes_pixels || width > 1'000'000) return;
  }
  std::vector<int32_t> ids(static_cast<size_t>(tokens)), types, source;
  std::vector<uint8_t> mask;
  std::vector<float> pixels;
  if (info.takes_pixels) {
    ids.clear();
    const int64_t count = info.channels * info.image_size * info.image_size;
    if (count > 1'000'000) return;
    pixels.assign(static_cast<size_t>(count), 0.25F);
  }
  const auto draw_ids = [&](std::vector<int32_t>& list, int64_t vocab_size) {
    for (int32_t& id : list) {
      id = static_cast<int32_t>(
          below(from, static_cast<size_t>(std::min<int64_t>(vocab_size, 5000))));
    }
  };
  draw_ids(ids, info.vocab_size);
  if (info.has_encoder) {
    const ModelInfo& encoder = model.encoder().info();
    const int64_t longest = encoder.max_tokens > 0 ? std::min<int64_t>(encoder.max_tokens, 20) : 20;
    source.resize(static_cast<size_t>(from.integer(1, longest)));
    draw_ids(source, encoder.vocab_size);
  }
  if (info.token_types > 0 && from.one_in(2)) {
    types.assign(ids.size(), static_cast<int32_t>(info.token_types - 1));
  }
  if (!info.causal && !info.takes_pixels && from.one_in(2)) {
    mask.assign(ids.size(), 1);
    mask.back() = 0;
  }
  const auto floats = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count)); };
  std::vector<float> hidden = floats((info.num_layers + 1) * tokens * info.embed_dim);
  std::vector<float> map = floats(tokens * tokens), pooled = floats(info.embed_dim);
  const Dims shapes[] = {{},
                         {1, tokens, info.vocab_size},
                         {1, tokens, info.vocab_size},
                         {1, info.num_labels},
                         {1, tokens, info.num_labels}};
  const Dims& logits_shape = shapes[static_cast<size_t>(info.output)];
  std::vector<float> logits = floats(logits_shape.elements());
  const HeadMap wanted{static_cast<int64_t>(below(from, static_cast<size_t>(info.num_layers))),
                       static_cast<int64_t>(below(from, static_cast<size_t>(info.num_heads))),
                       {map.data(), {1, tokens, tokens}}};
  ModelOutputs outputs{
      .hidden_states = {hidden.data(), {info.num_layers + 1, 1, tokens, info.embed_dim}},
      .maps = {&wanted, 1}};
  if (info.output != Output::kNone) outputs.logits = {logits.data(), logits_shape};
  if (info.has_pooler) outputs.pooler_output = {pooled.data(), {1, info.embed_dim}};
  const ModelInputs inputs{
      .ids = ids, .mask = mask, .token_types = types, .pixels = pixels, .source = source};
  const Status status = model.forward(inputs, outputs, context);
  if (too_many && tokens > 1) {
    FUZZ_CHECK(status.code() == StatusCode::kOption, "%lld tokens of %lld: %s",
               static_cast<long long>(tokens), static_cast<long long>(info.max_tokens),
               status.message().c_str());
    return;
  }
  if (!computed(status)) return;
  for (int64_t row = 0; row < tokens; ++row) {
    double sum = 0;
    for (int64_t key = 0; key < tokens; ++key) {
      sum += static_cast<double>(map[static_cast<size_t>(row * tokens + key)]);
    }
    const bool right = std::abs(sum - 1) < 1e-3 || std::isnan(sum) || (sum == 0 && !mask.empty());
    FUZZ_CHECK(right, "a row of weights has the sum %g", sum);
  }
  look_inside(from, model, inputs, context);
  if (info.output != Output::kLanguageModel) return;
  Session session;
  const int64_t capacity = info.max_tokens > 0 ? std::min(info.max_tokens, tokens + 1) : tokens + 1;
  const Status created = Session::create(model, {.capacity = capacity}, session);
  if (!info.causal) {
    FUZZ_CHECK(created.code() == StatusCode::kOption, "%s", created.message().c_str());
    return;
  }
  FUZZ_CHECK(created.ok(), "%s", created.message().c_str());
  if (info.has_encoder && !computed(session.encode(source, {}, context))) return;
  const Tensor last(logits.data(), {info.vocab_size});
  if (!computed(session.append(ids, last, context)) || session.length() == capacity) return;
  static_cast<void>(computed(session.append(std::span(ids).first(1), last, context)));
  FUZZ_CHECK(session.length() <= capacity, "%lld tokens", static_cast<long long>(session.length()));
}

// Changes shapes and types of tensors to ones that the loader did not request.
void damage(Bytes& from, std::vector<StoredTensor>& tensors) {
  if (tensors.empty()) return;
  StoredTensor& tensor = tensors[below(from, tensors.size())];
  if (from.one_in(4)) tensor.type = from.pick<const char*>({"F64", "I8", "", "F8_E4M3"});
  if (from.one_in(4)) tensor.name += "x";
  for (int axis = 0; axis < std::min(tensor.shape.rank(), Dims::kMaxRank); ++axis) {
    if (from.one_in(3)) tensor.shape[axis] = from.pick<int64_t>({0, 1, -1, INT64_MAX, 1LL << 62});
  }
  while (from.one_in(3)) tensor.shape.push_back(from.pick<int64_t>({1, 0, 1LL << 62}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Base> bases = read_bases();
  Bytes from(data, size);
  const Base& base = bases[below(from, bases.size())];
  Config config = base.config;
  std::vector<StoredTensor> tensors = base.tensors;
  mutate(from, config);
  OpenOptions options;
  if (from.one_in(2)) {
    options.weights = from.pick<WeightType>({WeightType::kF32, WeightType::kF16, WeightType::kBF16,
                                             WeightType::kInt8, WeightType::kInt4});
  }
  options.keep_mapped = from.one_in(4);
  if (from.one_in(8)) {
    damage(from, tensors);
    ModelLoader loader;
    const Status status = ModelLoader::create(config, tensors, options, loader);
    if (!status.ok()) check_refusal(status);
    return 0;
  }
  ModelLoader loader;
  Status status = ModelLoader::create(config, tensors, options, loader);
  for (int turn = 0; turn < 200 && !status.ok() && follow(status, tensors); ++turn) {
    status = ModelLoader::create(config, tensors, options, loader);
  }
  if (!status.ok()) {
    check_refusal(status);
    return 0;
  }
  constexpr int64_t kMostBytes = 8 << 20;
  FUZZ_CHECK(loader.bytes(false) > 0, "%lld bytes", static_cast<long long>(loader.bytes(false)));
  if (loader.bytes(false) > kMostBytes) return 0;
  uint32_t random = from.byte();
  for (const size_t tensor : loader.needed()) {
    const std::vector<std::byte> bytes = numbers_for(tensors[tensor], random);
    status = loader.give(tensor, bytes);
    FUZZ_CHECK(status.ok(), "%s", status.message().c_str());
  }
  Model model;
  status = loader.finish(model);
  FUZZ_CHECK(status.ok(), "%s", status.message().c_str());
  check_info(model.info());
  run(from, model);
  return 0;
}
