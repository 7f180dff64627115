#include "nn/graph/probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "multihead/weights.h"
#include "nn/call_memory.h"

namespace multihead::nn {
namespace {

using models::Capture;
using models::Edit;
using models::Site;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The array of a site as (batch, heads, tokens, width); heads is 1 for sites without heads.
struct View {
  Tensor array;
  Site site;

  bool is_pattern() const { return site == Site::kPattern || site == Site::kCrossPattern; }
  bool is_weights() const { return kWeighting.has(site) || kCrossWeighting.has(site); }
  bool has_heads() const {
    constexpr Site kOfHeads[] = {Site::kQ,      Site::kK,      Site::kV,      Site::kZ,
                                 Site::kCrossQ, Site::kCrossK, Site::kCrossV, Site::kCrossZ};
    return is_weights() ||
           std::find(std::begin(kOfHeads), std::end(kOfHeads), site) != std::end(kOfHeads);
  }
};

// Strides of a tensor of the site's rank for the axes of View::array: 0 where it is broadcast.
struct Strides {
  int64_t batch, head, token, number;
};

Strides strides_of(const ConstTensor& tensor, const View& view) {
  const auto from_right = [&](int axis) -> int64_t {
    const int at = tensor.shape.rank() - 1 - axis;
    return at < 0 || tensor.shape[at] == 1 ? 0 : tensor.strides[at];
  };
  if (!view.has_heads()) return {from_right(2), 0, from_right(1), from_right(0)};
  if (view.is_weights()) return {from_right(3), from_right(2), from_right(1), from_right(0)};
  return {from_right(3), from_right(1), from_right(2), from_right(0)};
}

// Changes a row. Returns false if a number became infinite. Scores and weights of hidden keys,
// which are -infinity, stay it.
bool change_row(const Edit& edit, const float* value, int64_t step, bool weights, float* row,
                int64_t width) {
  bool finite = true;
  for (int64_t i = 0; i < width; ++i) {
    if (weights && row[i] == kHidden) continue;
    const float given = value == nullptr ? 0.0F : value[i * step];
    switch (edit.action) {
      case Edit::Action::kSet:
      case Edit::Action::kReplace:
        row[i] = given;
        break;
      case Edit::Action::kAdd:
        row[i] += given;
        break;
      case Edit::Action::kScale:
        row[i] *= edit.factor;
        break;
    }
    finite = finite && std::isfinite(row[i]);
  }
  return finite;
}

// Returns false if a number became infinite.
bool apply(const Edit& edit, const View& view, int64_t first_token) {
  const Dims& shape = view.array.shape;
  const Dims& strides = view.array.strides;
  const Strides from = strides_of(edit.value, view);
  const bool whole = edit.action == Edit::Action::kReplace;
  const bool scales = edit.action == Edit::Action::kScale;
  const auto count = [](const std::vector<int64_t>& list, int64_t all) {
    return list.empty() ? all : static_cast<int64_t>(list.size());
  };
  const auto item = [](const std::vector<int64_t>& list, int64_t at) {
    return list.empty() ? at : list[static_cast<size_t>(at)];
  };
  bool finite = true;
  const int64_t tokens = first_token + shape[2];
  for (int64_t s = 0; s < count(edit.sequences, shape[0]); ++s) {
    const int64_t b = item(edit.sequences, s);
    for (int64_t t = edit.tokens.empty() ? first_token : 0; t < count(edit.tokens, tokens); ++t) {
      const int64_t token = item(edit.tokens, t);
      if (token < first_token || token >= tokens) continue;
      for (int64_t h = 0; h < count(edit.heads, shape[1]); ++h) {
        const int64_t head = item(edit.heads, h);
        const float* const value = scales ? nullptr
                                          : edit.value.data + (whole ? b : s) * from.batch +
                                                (whole ? token : t) * from.token +
                                                (whole ? head : h) * from.head;
        float* const row = view.array.data + b * strides[0] + head * strides[1] +
                           (token - first_token) * strides[2];
        finite &= change_row(edit, value, from.number, view.is_weights(), row, shape[3]);
      }
    }
  }
  return finite;
}

void copy(const Capture& capture, const View& view) {
  const Dims& shape = view.array.shape;
  const Dims& strides = view.array.strides;
  const Strides to = strides_of(capture.out, view);
  const auto heads = capture.heads.empty() ? shape[1] : static_cast<int64_t>(capture.heads.size());
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t head = capture.heads.empty() ? h : capture.heads[static_cast<size_t>(h)];
      for (int64_t token = 0; token < shape[2]; ++token) {
        std::copy_n(view.array.data + b * strides[0] + head * strides[1] + token * strides[2],
                    shape[3], capture.out.data + b * to.batch + h * to.head + token * to.token);
      }
    }
  }
}

Status change_and_copy(const Probe& probe, const View& view) {
  for (size_t at = 0; at < probe.edits.size(); ++at) {
    const Edit& edit = probe.edits[at];
    if (edit.site != view.site || edit.layer != probe.layer) continue;
    if (apply(edit, view, probe.first_token)) continue;
    return {StatusCode::kOption, "edits", "finite numbers",
            "NaN or an infinity in " + std::string(name_of(view.site)) + " of layer " +
                std::to_string(probe.layer) + " after edit " + std::to_string(at)};
  }
  if (view.is_pattern()) {
    const Tensor& weights = view.array;
    std::replace(weights.data, weights.data + weights.shape.elements(), kHidden, 0.0F);
  }
  for (const Capture& capture : probe.captures) {
    if (capture.site == view.site && capture.layer == probe.layer) copy(capture, view);
  }
  return {};
}

// Scores (rows, keys) become weights, in place. Those of hidden keys stay -infinity.
void softmax(float* scores, int64_t rows, int64_t keys) {
  for (int64_t row = 0; row < rows; ++row, scores += keys) {
    const float most = keys == 0 ? kHidden : *std::max_element(scores, scores + keys);
    double sum = 0;
    for (int64_t key = 0; key < keys; ++key) {
      if (scores[key] == kHidden) continue;
      const double weight = std::exp(static_cast<double>(scores[key] - most));
      scores[key] = static_cast<float>(weight);
      sum += weight;
    }
    for (int64_t key = 0; key < keys && sum > 0; ++key) {
      scores[key] = static_cast<float>(scores[key] / sum);
    }
  }
}

}  // namespace

bool apply_edit(const models::Edit& edit, const Tensor& array, int64_t first_token) {
  return apply(edit, {array, edit.site}, first_token);
}

Status visit(const Probe& probe, const Graph& graph, const Frame& frame, ValueId id) {
  const Value& value = graph.value(id);
  if (!value.site) return {};
  View view{frame.heads(id), *value.site};
  if (!view.has_heads()) {
    const Tensor rows = frame.rows(id);
    const Dims& shape = view.array.shape;
    view.array = {rows.data,
                  {shape[0], 1, shape[2], rows.shape[1]},
                  {shape[2] * rows.strides[0], 0, rows.strides[0], 1}};
  }
  return change_and_copy(probe, view);
}

bool changes_weights(const Probe& probe, const Weighting& sites) {
  return std::any_of(probe.edits.begin(), probe.edits.end(), [&](const Edit& edit) {
    return edit.layer == probe.layer && sites.has(edit.site);
  });
}

Status attend_changed(const Probe& probe, const Weighting& sites, const Tensor& q, const Tensor& k,
                      const Tensor& v, const AttentionOptions& options, const Tensor& z,
                      Context& context) {
  const int64_t batch = q.shape[0], heads = q.shape[1], queries = q.shape[2], keys = k.shape[2];
  const int64_t width = v.shape[3], group = heads / v.shape[1];
  engine::Buffer memory;
  float *weights = nullptr, *columns = nullptr;
  MULTIHEAD_TRY(reserve(memory, [&](rules::Arena& take) {
    take(weights, saturated_elements({batch, heads, queries, keys}));
    take(columns, saturated_elements({width, keys}));
  }));
  const Tensor array(weights, {batch, heads, queries, keys});
  MULTIHEAD_TRY(
      attention_scores(q, k, options, {.stage = ScoreStage::kMasked, .out = array}, context));
  MULTIHEAD_TRY(change_and_copy(probe, {array, sites.scores}));
  softmax(weights, batch * heads * queries, keys);
  MULTIHEAD_TRY(change_and_copy(probe, {array, sites.pattern}));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* const values = v.data + b * v.strides[0] + h / group * v.strides[1];
      for (int64_t key = 0; key < keys; ++key) {
        for (int64_t i = 0; i < width; ++i)
          columns[i * keys + key] = values[key * v.strides[2] + i];
      }
      MULTIHEAD_TRY(linear(
          {weights + (b * heads + h) * queries * keys, {queries, keys}},
          WeightMatrix{columns, WeightType::kF32, width, keys}, {},
          {z.data + b * z.strides[0] + h * z.strides[1], {queries, width}, {z.strides[2], 1}},
          context));
    }
  }
  return {};
}

void list_captures(const Probe& probe, const Weighting& sites, std::vector<ScoreCapture>& captures,
                   std::vector<int32_t>& heads) {
  const auto wanted = [&](const Capture& capture) {
    return capture.layer == probe.layer && sites.has(capture.site);
  };
  size_t count = 0;
  for (const Capture& capture : probe.captures) {
    if (wanted(capture)) count += capture.heads.size();
  }
  heads.reserve(count);  // spans of it stay valid
  for (const Capture& capture : probe.captures) {
    if (!wanted(capture)) continue;
    const size_t first = heads.size();
    for (const int64_t head : capture.heads) heads.push_back(static_cast<int32_t>(head));
    captures.push_back(
        {.stage = capture.site == sites.scores ? ScoreStage::kMasked : ScoreStage::kWeights,
         .out = capture.out,
         .heads = {heads.data() + first, capture.heads.size()}});
  }
}

}  // namespace multihead::nn

namespace multihead::models {
namespace {

constexpr const char* kNames[kSites] = {"resid_pre",
                                        "q",
                                        "k",
                                        "v",
                                        "scores",
                                        "pattern",
                                        "z",
                                        "attn_out",
                                        "resid_mid",
                                        "mlp_hidden",
                                        "mlp_out",
                                        "resid_post",
                                        "cross_q",
                                        "cross_k",
                                        "cross_v",
                                        "cross_scores",
                                        "cross_pattern",
                                        "cross_z",
                                        "cross_attn_out",
                                        "resid_mid_cross"};

}  // namespace

const char* name_of(Site site) { return kNames[static_cast<size_t>(site)]; }

std::optional<Site> site_of(std::string_view name) {
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return {};
  return static_cast<Site>(found - std::begin(kNames));
}

}  // namespace multihead::models
