#include "models/sites.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/attention/overlap.h"
#include "engine/error/error.h"

namespace multihead::models {

SiteShape shape_of(const Model::Internals& model, const Pass& pass, Site site) {
  const Architecture& a = model.architecture;
  const int64_t batch = pass.inputs.batch, tokens = pass.tokens;
  switch (site) {
    case Site::kQ:
    case Site::kZ:
      return {{batch, tokens, a.heads, a.head_dim}, 1, 2};
    case Site::kK:
    case Site::kV:
      return {{batch, tokens, a.kv_heads, a.head_dim}, 1, 2};
    case Site::kScores:
    case Site::kPattern:
      return {{batch, a.heads, tokens, tokens}, 2, 1};
    case Site::kCrossQ:
    case Site::kCrossZ:
      return {{batch, tokens, a.heads, a.head_dim}, 1, 2};
    case Site::kCrossK:
    case Site::kCrossV:
      return {{batch, pass.source.tokens, a.kv_heads, a.head_dim}, 1, 2};
    case Site::kCrossScores:
    case Site::kCrossPattern:
      return {{batch, a.heads, tokens, pass.source.tokens}, 2, 1};
    case Site::kMlpHidden:
      return {{batch, tokens, a.mlp}};
    default:
      return {{batch, tokens, a.width}};
  }
}

Status check_site(const Model::Internals& model, const std::string& argument, Site site) {
  const auto has = [&](Site each) {
    const bool crosses = each == Site::kCrossScores || each == Site::kCrossPattern;
    return model.graph.has(each) || each == Site::kScores || each == Site::kPattern ||
           (crosses && model.encoder != nullptr);
  };
  const bool known = static_cast<int>(site) < kSites;
  if (known && has(site)) return {};
  std::string sites;
  for (int each = 0; each < kSites; ++each) {
    if (!has(static_cast<Site>(each))) continue;
    sites += (sites.empty() ? "" : ", ") + std::string(name_of(static_cast<Site>(each)));
  }
  return {StatusCode::kOption, argument, "one of " + sites,
          known ? name_of(site) : std::to_string(static_cast<int>(site))};
}

namespace {

Status range_error(const std::string& argument, int64_t count, int64_t got) {
  return {StatusCode::kOption, argument,
          count == 0 ? "0 or more" : "0 to " + std::to_string(count - 1), std::to_string(got)};
}

// Checks indices below `count`, each of which may be listed once. 0: no limit.
Status check_list(const std::string& argument, std::vector<int64_t> list, int64_t count) {
  for (const int64_t item : list) {
    if (item < 0 || (count > 0 && item >= count)) return range_error(argument, count, item);
  }
  // std::sort() would add 4 kB to the WebAssembly module.
  std::make_heap(list.begin(), list.end());
  std::sort_heap(list.begin(), list.end());
  const auto twice = std::adjacent_find(list.begin(), list.end());
  if (twice == list.end()) return {};
  return {StatusCode::kOption, argument, "each number once", std::to_string(*twice) + " twice"};
}

// Checks what edits and captures share: site, layer and heads. Sets the shape's head axis.
template <class Place>
Status check_place(const Model::Internals& model, const std::string& name, const Place& place,
                   SiteShape& shape) {
  MULTIHEAD_TRY(check_site(model, name + ".site", place.site));
  const int64_t layers = model.info.num_layers;
  if (place.layer < 0 || place.layer >= layers) {
    return range_error(name + ".layer", layers, place.layer);
  }
  if (place.heads.empty()) return {};
  if (shape.head_axis < 0) {
    return {StatusCode::kOption, name + ".heads",
            "none: " + std::string(name_of(place.site)) + " has no heads",
            std::to_string(place.heads.size()) + " heads"};
  }
  MULTIHEAD_TRY(check_list(name + ".heads", place.heads, shape.shape[shape.head_axis]));
  shape.shape[shape.head_axis] = static_cast<int64_t>(place.heads.size());
  return {};
}

bool is_finite(const ConstTensor& value) {
  for (int64_t at = 0; at < value.shape.elements(); ++at) {
    int64_t rest = at, offset = 0;
    for (int axis = value.shape.rank(); axis-- > 0; rest /= value.shape[axis]) {
      offset += rest % value.shape[axis] * value.strides[axis];
    }
    if (!std::isfinite(value.data[offset])) return false;
  }
  return true;
}

bool broadcasts(const Dims& from, const Dims& to) {
  const int missing = to.rank() - from.rank();
  if (missing < 0) return false;
  for (int axis = 0; axis < from.rank(); ++axis) {
    if (from[axis] != 1 && from[axis] != to[axis + missing]) return false;
  }
  return true;
}

Status check_edit(const Model::Internals& model, const Pass& pass, const std::string& name,
                  const Edit& edit) {
  SiteShape part = shape_of(model, pass, edit.site);
  Dims whole = part.shape;
  MULTIHEAD_TRY(check_place(model, name, edit, part));
  const bool of_source = edit.site == Site::kCrossK || edit.site == Site::kCrossV;
  const ModelInfo& stack = of_source && model.encoder != nullptr ? model.encoder->info : model.info;
  const int64_t in_pass = of_source ? pass.source.tokens : pass.tokens;
  const int64_t tokens = pass.in_session ? stack.max_tokens : in_pass;
  MULTIHEAD_TRY(check_list(name + ".tokens", edit.tokens, tokens));
  MULTIHEAD_TRY(check_list(name + ".sequences", edit.sequences, pass.inputs.batch));
  part.shape[part.token_axis] = static_cast<int64_t>(edit.tokens.size());
  if (edit.tokens.empty()) part.shape[part.token_axis] = pass.in_session ? 1 : in_pass;
  if (edit.action > Edit::Action::kReplace) {
    return {StatusCode::kOption, name + ".action", "an Edit::Action",
            std::to_string(static_cast<int>(edit.action))};
  }
  if (edit.action == Edit::Action::kScale) {
    if (std::isfinite(edit.factor)) return {};
    return {StatusCode::kOption, name + ".factor", "a finite number", "NaN or an infinity"};
  }
  if (!edit.sequences.empty()) part.shape[0] = static_cast<int64_t>(edit.sequences.size());
  const bool replaces = edit.action == Edit::Action::kReplace;
  if (replaces && edit.value.shape.rank() > 0 && edit.value.shape[0] == 1) whole[0] = 1;
  if (pass.in_session) {
    // The number of tokens grows, so that a value cannot have one number for each.
    if (part.shape.rank() == 4 && part.token_axis == 2) part.shape[3] = 1;
    if (replaces) {
      return {StatusCode::kOption, name + ".action", "set, add or scale in a session", "replace"};
    }
  }
  if (edit.value.data == nullptr || edit.value.strides.rank() != edit.value.shape.rank() ||
      (replaces && !(edit.value.shape == whole)) ||
      (!replaces && !broadcasts(edit.value.shape, part.shape))) {
    return {StatusCode::kShape, name + ".value",
            replaces ? whole.to_string() : "numbers that broadcast to " + part.shape.to_string(),
            edit.value.data == nullptr ? "none" : edit.value.shape.to_string()};
  }
  if (is_finite(edit.value)) return {};
  return {StatusCode::kOption, name + ".value", "finite numbers", "NaN or an infinity"};
}

}  // namespace

Status check_edits(const Model::Internals& model, const Pass& pass) {
  for (size_t at = 0; at < pass.inputs.edits.size(); ++at) {
    MULTIHEAD_TRY(
        check_edit(model, pass, "edits[" + std::to_string(at) + "]", pass.inputs.edits[at]));
  }
  return {};
}

Status check_captures(const Model::Internals& model, const Pass& pass,
                      std::span<const Capture> captures, const std::string& argument) {
  for (size_t at = 0; at < captures.size(); ++at) {
    const Capture& capture = captures[at];
    const std::string name = argument + "[" + std::to_string(at) + "]";
    SiteShape part = shape_of(model, pass, capture.site);
    MULTIHEAD_TRY(check_place(model, name, capture, part));
    const Tensor& out = capture.out;
    if (out.data == nullptr || !(out.shape == part.shape) ||
        !(out.strides == contiguous_strides(part.shape))) {
      return {StatusCode::kShape, name + ".out", part.shape.to_string() + ", contiguous",
              out.data == nullptr ? "none" : out.shape.to_string()};
    }
  }
  return {};
}

Status check_apart(const ModelInputs& in, std::span<const Capture> captures,
                   const ModelOutputs& outputs) {
  const auto view = [](const auto& values) {
    const auto bytes = std::as_bytes(values);
    return TensorView<const std::byte>(bytes.data(), {static_cast<int64_t>(bytes.size())});
  };
  const TensorView<const std::byte> inputs[] = {view(in.ids), view(in.token_types), view(in.mask),
                                                view(in.pixels), view(in.head_scales)};
  const TensorView<const std::byte> of_source[] = {view(in.source), view(in.source_mask)};
  std::vector<ScoreCapture> values;  // all that is written
  for (const Tensor& output : {outputs.hidden_states, outputs.last_hidden_state, outputs.logits,
                               outputs.pooler_output, outputs.source_state}) {
    values.push_back({.out = output});
  }
  for (const Capture& capture : captures) values.push_back({.out = capture.out});
  constexpr auto kAny = engine::Name::kNone;
  Status status = engine::validate_apart({{kAny, inputs[0]},
                                          {kAny, inputs[1]},
                                          {kAny, inputs[2]},
                                          {kAny, inputs[3]},
                                          {kAny, inputs[4]},
                                          {kAny, of_source[0]},
                                          {kAny, of_source[1]}},
                                         {}, values);
  for (const Edit& edit : in.edits) {
    if (edit.action == Edit::Action::kScale) continue;
    for (const ScoreCapture& value : values) {
      if (status.ok()) status = engine::validate_apart({{kAny, edit.value}}, {{kAny, value.out}});
    }
  }
  if (status.ok()) return {};
  return {StatusCode::kShape, "outputs", "memory of their own",
          "memory of an input or of another output"};
}

}  // namespace multihead::models
