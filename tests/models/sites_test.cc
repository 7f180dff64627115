// Tests captures and edits: each value against the formula of the values before it, edits against
// plain loops, and the errors of wrong ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "models/site_values.h"
#include "multihead/models.h"
#include "multihead/weights.h"

namespace multihead {
namespace {

using models::Capture;
using models::Edit;
using models::Model;
using models::Site;
using testing::Numbers;
using testing::OwnInputs;
using testing::Place;
using testing::Random;
using testing::SiteValues;

std::vector<std::string> all_models() {
  std::vector<std::string> names(std::begin(testing::kLanguageModels),
                                 std::end(testing::kLanguageModels));
  names.insert(names.end(), std::begin(testing::kOtherModels), std::end(testing::kOtherModels));
  return names;
}

// Checks that differences are at most `tolerance` times the largest expected magnitude, and at
// least
// 1. NaN fails.
void expect_close(const std::vector<float>& got, const std::vector<double>& expected,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double size = 1;
  for (const double number : expected) {
    if (std::isfinite(number)) size = std::max(size, std::abs(number));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (static_cast<double>(got[i]) == expected[i]) continue;
    ASSERT_NEAR(static_cast<double>(got[i]), expected[i], tolerance * size) << what << ", " << i;
  }
}
std::vector<double> doubles(const std::vector<float>& numbers) {
  return {numbers.begin(), numbers.end()};
}

// Computes each value of a layer from the values before it, by plain formulas on rows.
struct Formulas {
  const Model::Internals& m;

  void norm(std::vector<double>& x, const nn::NormParameters& norm, size_t width) const {
    if (!norm.given()) return;
    for (size_t row = 0; row < x.size(); row += width) {
      double mean = 0, squares = 0;
      for (size_t i = 0; i < width; ++i) mean += x[row + i] / static_cast<double>(width);
      if (m.architecture.family->rms_norm) mean = 0;
      for (size_t i = 0; i < width; ++i) squares += (x[row + i] - mean) * (x[row + i] - mean);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) +
                                         static_cast<double>(m.architecture.eps));
      for (size_t i = 0; i < width; ++i) {
        double& number = x[row + i];
        number = (number - mean) * scale * static_cast<double>(norm.weight.data[i]);
        if (norm.bias.given()) number += static_cast<double>(norm.bias.data[i]);
      }
    }
  }
  static std::vector<double> project(const std::vector<float>& x, const nn::Projection& p) {
    const auto in = static_cast<size_t>(p.weight.columns);
    const auto out = static_cast<size_t>(p.weight.rows);
    std::vector<float> weight(in * out);
    std::vector<int32_t> rows(out);
    std::iota(rows.begin(), rows.end(), 0);
    EXPECT_TRUE(
        dequantize(p.weight, rows, {weight.data(), {p.weight.rows, p.weight.columns}}).ok());
    std::vector<double> y(x.size() / in * out);
    for (size_t row = 0; row < x.size() / in; ++row) {
      for (size_t o = 0; o < out; ++o) {
        double sum = p.bias.given() ? static_cast<double>(p.bias.data[o]) : 0.0;
        for (size_t i = 0; i < in; ++i) {
          sum += static_cast<double>(x[row * in + i]) * static_cast<double>(weight[o * in + i]);
        }
        y[row * out + o] = sum;
      }
    }
    return y;
  }
};

void expect_sites_follow(const std::string& name, const Model& model, const OwnInputs& in,
                         SiteValues& values) {
  const Model::Internals& m = *Model::Internals::of(model);
  const models::Architecture& a = m.architecture;
  const Formulas formulas{m};
  const int64_t n = in.tokens, d = a.head_dim, group = a.heads / a.kv_heads;
  const auto width = static_cast<size_t>(a.width);
  for (int64_t layer = 0; layer < m.info.num_layers; ++layer) {
    const std::string where = name + ", layer " + std::to_string(layer) + ", ";
    const auto& plan = a.layers[static_cast<size_t>(layer)];
    const nn::LayerParameters& p = m.parameters.layers[static_cast<size_t>(plan.weights)];
    const auto of = [&](Site site) -> const std::vector<float>& {
      return values[{site, layer}].data;
    };
    // Compute scores from q and k, weights from scores, heads from weights and v.
    const std::vector<float>&q = of(Site::kQ), &k = of(Site::kK), &v = of(Site::kV);
    const std::vector<float>&scores = of(Site::kScores), &pattern = of(Site::kPattern);
    std::vector<double> expected_scores, weights, z(q.size());
    for (int64_t row = 0; row < in.batch * a.heads * n; ++row) {
      const int64_t b = row / (a.heads * n), h = row / n % a.heads, token = row % n;
      double sum = 0;
      int64_t seen = 0;
      for (int64_t key = 0; key < n; ++key) {
        const auto at = static_cast<size_t>(row * n + key);
        const auto q_at = static_cast<size_t>(((b * n + token) * a.heads + h) * d);
        const auto k_at = static_cast<size_t>(((b * n + key) * a.kv_heads + h / group) * d);
        double score = 0;
        for (size_t i = 0; i < static_cast<size_t>(d); ++i) {
          score += static_cast<double>(q[q_at + i]) * static_cast<double>(k[k_at + i]);
        }
        score *= static_cast<double>(plan.scale);
        if (a.attention_cap != 0.0F) {
          const auto cap = static_cast<double>(a.attention_cap);
          score = cap * std::tanh(score / cap);
        }
        const bool hidden = scores[at] == -INFINITY;
        const bool masked = !in.mask.empty() && in.mask[static_cast<size_t>(b * n + key)] == 0;
        const int64_t distance = a.window_both_sides ? std::abs(token - key) : token - key;
        const bool outside = plan.window > 0 && distance >= plan.window;
        EXPECT_EQ(hidden, masked || outside || (a.causal && key > token)) << where << row;
        EXPECT_EQ(pattern[at] == 0.0F, hidden) << where << row;
        if (!a.alibi_slopes.empty()) {
          score -= static_cast<double>(a.alibi_slopes[static_cast<size_t>(h)]) *
                   static_cast<double>(std::abs(token - key));
        }
        // A bias of relative positions is part of the score.
        expected_scores.push_back(hidden || a.buckets > 0 || a.relative_span > 0
                                      ? static_cast<double>(scores[at])
                                      : score);
        const double weight = hidden ? 0.0 : std::exp(static_cast<double>(scores[at]));
        weights.push_back(weight);
        sum += weight;
        seen += hidden ? 0 : 1;
        for (size_t i = 0; i < static_cast<size_t>(d); ++i) {
          z[q_at + i] += static_cast<double>(pattern[at]) * static_cast<double>(v[k_at + i]);
        }
      }
      for (size_t i = weights.size() - static_cast<size_t>(n); i < weights.size() && seen > 0;
           ++i) {
        weights[i] /= sum;
      }
    }
    expect_close(scores, expected_scores, 1e-5, where + "scores");
    expect_close(pattern, weights, 1e-5, where + "pattern");
    expect_close(of(Site::kZ), z, 1e-5, where + "z");

    std::vector<double> attn_out = formulas.project(of(Site::kZ), p.o);
    formulas.norm(attn_out, p.attention_out_norm, width);
    for (double& number : attn_out) number *= static_cast<double>(a.residual_factor);
    expect_close(of(Site::kAttnOut), attn_out, 2e-5, where + "attn_out");
    std::vector<double> mlp_out = formulas.project(of(Site::kMlpHidden), p.down);
    formulas.norm(mlp_out, p.mlp_out_norm, width);
    for (double& number : mlp_out) number *= static_cast<double>(a.residual_factor);
    expect_close(of(Site::kMlpOut), mlp_out, 2e-5, where + "mlp_out");
    std::vector<double> mid = doubles(of(Site::kResidPre));
    for (size_t i = 0; i < mid.size(); ++i) mid[i] += static_cast<double>(of(Site::kAttnOut)[i]);
    formulas.norm(mid, p.attention_sum_norm, width);
    if (!a.parallel) {
      expect_close(of(Site::kResidMid), mid, 2e-5, where + "resid_mid");
      mid = doubles(of(Site::kResidMid));
    }
    for (size_t i = 0; i < mid.size(); ++i) mid[i] += static_cast<double>(of(Site::kMlpOut)[i]);
    formulas.norm(mid, p.mlp_sum_norm, width);
    expect_close(of(Site::kResidPost), mid, 2e-5, where + "resid_post");
    if (layer + 1 < m.info.num_layers) {
      EXPECT_EQ(of(Site::kResidPost), (values[{Site::kResidPre, layer + 1}].data)) << where;
    }
  }
}

TEST(Sites, EachFollowsFromThoseBefore) {
  Context context(1);
  for (const std::string& name : all_models()) {
    const Model model = testing::open_golden(name);
    Random random(3);
    OwnInputs in = testing::random_inputs(model, 2, 9, random);
    if (!model.info().causal && !model.info().takes_pixels) {
      in.mask.assign(18, 1);
      in.mask[16] = in.mask[17] = 0;
    }
    SiteValues values;
    const std::vector<Place> places = testing::places_of(model);
    testing::run_and_capture(model, in, {}, places, values, context);
    expect_sites_follow(name, model, in, values);

    // Heads in another order, maps and hidden states have the same numbers.
    const models::ModelInfo& info = model.info();
    Numbers states({info.num_layers + 1, 2, in.tokens, info.embed_dim});
    Numbers map({2, in.tokens, in.tokens});
    const int64_t last = info.num_heads - 1;
    Numbers heads({2, in.tokens, 2, info.head_dim});
    const models::HeadMap wanted{0, last, map.tensor()};
    const Capture capture{.site = Site::kZ, .heads = {last, 0}, .out = heads.tensor()};
    ASSERT_TRUE(
        model
            .forward(
                in.inputs(),
                {.hidden_states = states.tensor(), .maps = {&wanted, 1}, .captures = {&capture, 1}},
                context)
            .ok());
    const std::vector<float>& z = values[{Site::kZ, 0}].data;
    const auto width = static_cast<size_t>(info.head_dim);
    for (size_t row = 0; row < static_cast<size_t>(2 * in.tokens); ++row) {
      const auto from = z.begin() + static_cast<int64_t>(row) * info.num_heads * info.head_dim;
      const auto got = heads.data.begin() + static_cast<int64_t>(row * 2 * width);
      EXPECT_TRUE(std::equal(got, got + info.head_dim, from + last * info.head_dim)) << name;
      EXPECT_TRUE(std::equal(got + info.head_dim, got + 2 * info.head_dim, from)) << name;
    }
    const std::vector<float>& pattern = values[{Site::kPattern, 0}].data;
    const int64_t square = in.tokens * in.tokens;
    for (int64_t b = 0; b < 2; ++b) {
      EXPECT_TRUE(std::equal(map.data.begin() + b * square, map.data.begin() + (b + 1) * square,
                             pattern.begin() + (b * info.num_heads + last) * square))
          << name;
    }
    for (int64_t layer = 0; layer < info.num_layers; ++layer) {
      const std::vector<float>& pre = values[{Site::kResidPre, layer}].data;
      EXPECT_TRUE(std::equal(pre.begin(), pre.end(),
                             states.data.begin() + layer * static_cast<int64_t>(pre.size())))
          << name;
    }
  }
}

// ---- Edits. ----

// Applies an edit element by element, by its definition.
void apply_slowly(const Edit& edit, Numbers& numbers) {
  const Dims& shape = numbers.shape;
  const bool weights = testing::is_weights(edit.site);
  const bool pattern = weights && edit.site != Site::kScores && edit.site != Site::kCrossScores;
  std::vector<std::vector<int64_t>> lists(static_cast<size_t>(shape.rank()));
  lists[0] = edit.sequences;
  lists[weights ? 2 : 1] = edit.tokens;
  if (testing::has_heads(edit.site)) lists[weights ? 1 : 2] = edit.heads;
  Dims part = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const auto& list = lists[static_cast<size_t>(axis)];
    if (!list.empty()) part[axis] = static_cast<int64_t>(list.size());
  }
  const Dims strides = contiguous_strides(shape);
  for (int64_t at = 0; at < part.elements(); ++at) {
    int64_t rest = at, offset = 0, from = 0;
    for (int axis = shape.rank(); axis-- > 0; rest /= part[axis]) {
      const int64_t index = rest % part[axis];
      const auto& list = lists[static_cast<size_t>(axis)];
      const int64_t place = list.empty() ? index : list[static_cast<size_t>(index)];
      offset += place * strides[axis];
      const int of_value = axis - (shape.rank() - edit.value.shape.rank());
      if (of_value < 0 || edit.value.shape[of_value] == 1) continue;
      const bool whole = edit.action == Edit::Action::kReplace;
      from += (whole ? place : index) * edit.value.strides[of_value];
    }
    float& number = numbers.data[static_cast<size_t>(offset)];
    // Scores and weights of hidden keys.
    if (number == -INFINITY || (pattern && number == 0)) continue;
    switch (edit.action) {
      case Edit::Action::kSet:
      case Edit::Action::kReplace:
        number = edit.value.data[from];
        break;
      case Edit::Action::kAdd:
        number += edit.value.data[from];
        break;
      case Edit::Action::kScale:
        number *= edit.factor;
        break;
    }
  }
}

// Draws some of the numbers 0 to count - 1, in any order, or none.
std::vector<int64_t> random_list(Random& random, int64_t count) {
  std::vector<int64_t> list;
  if (random.chance(0.5)) return list;
  for (int64_t i = 0; i < count; ++i) {
    if (random.chance(0.5)) list.insert(list.begin() + random.integer(0, std::ssize(list)), i);
  }
  return list;
}

// Makes an edit whose value has a random shape that broadcasts, and memory with gaps.
Edit random_edit(Random& random, const Model& model, const OwnInputs& in,
                 std::deque<std::vector<float>>& memory) {
  const std::vector<Site> sites = testing::sites_of(model);
  Edit edit;
  edit.site = sites[static_cast<size_t>(random.integer(0, std::ssize(sites) - 1))];
  edit.layer = random.integer(0, model.info().num_layers - 1);
  const Dims whole = testing::site_shape(model, edit.site, in.batch, in.tokens);
  const bool weights = testing::is_weights(edit.site);
  edit.sequences = random_list(random, in.batch);
  edit.tokens = random_list(random, in.tokens);
  if (testing::has_heads(edit.site)) edit.heads = random_list(random, whole[weights ? 1 : 2]);
  edit.action = random.pick(
      {Edit::Action::kSet, Edit::Action::kAdd, Edit::Action::kScale, Edit::Action::kReplace});
  edit.factor = random.uniform(-1.5F, 1.5F);
  if (edit.action == Edit::Action::kScale) return edit;
  Dims part = whole;
  if (edit.action != Edit::Action::kReplace) {
    if (!edit.sequences.empty()) part[0] = std::ssize(edit.sequences);
    if (!edit.tokens.empty()) part[weights ? 2 : 1] = std::ssize(edit.tokens);
    if (!edit.heads.empty()) part[weights ? 1 : 2] = std::ssize(edit.heads);
    Dims broadcast;
    const int dropped = static_cast<int>(random.integer(0, part.rank()));
    for (int axis = dropped; axis < part.rank(); ++axis) {
      broadcast.push_back(random.chance(0.4) ? 1 : part[axis]);
    }
    part = broadcast;
  } else if (random.chance(0.3)) {
    part[0] = 1;
  }
  Dims strides = contiguous_strides(part);
  for (int axis = 0; axis < part.rank(); ++axis) strides[axis] *= 2;
  memory.push_back(random.floats(2 * part.elements() + 1, 0.0F, 1.0F));
  edit.value = {memory.back().data(), part, strides};
  return edit;
}

// Computes each edited value by itself, in a pass that gets the values before it.
TEST(Sites, EditsAreThoseOfPlainLoops) {
  Context context(1);
  const std::vector<std::string> names = all_models();
  for (const uint64_t seed : testing::random_seeds(4 * std::ssize(names))) {
    const std::string& name = names[seed % names.size()];
    const Model model = testing::open_golden(name);
    Random random(seed);
    OwnInputs in =
        testing::random_inputs(model, random.integer(1, 3), random.integer(1, 8), random);
    std::deque<std::vector<float>> memory;
    std::vector<Edit> edits;
    for (int64_t count = random.integer(1, 6); count > 0; --count) {
      edits.push_back(random_edit(random, model, in, memory));
      if (random.chance(0.3)) {  // another one of the same place
        Edit next = random_edit(random, model, in, memory);
        if (next.site == edits.back().site) next.layer = edits.back().layer;
        edits.push_back(next);
      }
    }
    std::deque<Numbers> arrays;
    std::vector<Edit> given;
    SiteValues expected, got;
    std::vector<Place> edited;
    for (const Place& place : testing::places_of(model)) {
      const auto is_here = [&](const Edit& edit) {
        return edit.site == place.first && edit.layer == place.second;
      };
      if (std::none_of(edits.begin(), edits.end(), is_here)) continue;
      edited.push_back(place);
      testing::run_and_capture(model, in, given, {place}, expected, context);
      for (const Edit& edit : edits) {
        if (is_here(edit)) apply_slowly(edit, expected[place]);
      }
      arrays.push_back(testing::finite_copy(expected[place]));
      given.push_back({.site = place.first,
                       .layer = place.second,
                       .action = Edit::Action::kReplace,
                       .value = arrays.back().view()});
    }
    SiteValues none;
    const Numbers state = testing::run_and_capture(model, in, edits, edited, got, context);
    const Numbers wanted = testing::run_and_capture(model, in, given, {}, none, context);
    const std::string what = name + " seed " + std::to_string(seed);
    for (const Place& place : edited) {
      expect_close(got[place].data, doubles(expected[place].data), 5e-5,
                   what + ' ' + models::name_of(place.first));
    }
    expect_close(state.data, doubles(wanted.data), 1e-4, what);
  }
}

TEST(Sites, EditsThatChangeNothingGiveTheOrdinaryOutput) {
  Context context(1);
  for (const std::string& name : all_models()) {
    const Model model = testing::open_golden(name);
    Random random(5);
    const OwnInputs in = testing::random_inputs(model, 1, 6, random);
    SiteValues values, none;
    const std::vector<Place> places = testing::places_of(model);
    const Numbers plain = testing::run_and_capture(model, in, {}, places, values, context);
    for (const Place& place : places) {
      const Numbers same = testing::finite_copy(values[place]);
      const Edit scale{.site = place.first, .layer = place.second, .action = Edit::Action::kScale};
      const Edit replace{.site = place.first,
                         .layer = place.second,
                         .action = Edit::Action::kReplace,
                         .value = same.view()};
      for (const Edit& edit : {scale, replace}) {
        const Numbers got = testing::run_and_capture(model, in, {&edit, 1}, {}, none, context);
        const std::string what = name + ' ' + models::name_of(place.first);
        if (testing::is_weights(place.first)) {
          expect_close(got.data, doubles(plain.data), 1e-5, what);
        } else {
          EXPECT_EQ(got.data, plain.data) << what;
        }
      }
    }
  }
}

TEST(Sites, HiddenStatesShowEditsAsCapturesDo) {
  Context context(1);
  for (const char* name : {"gpt2", "vit", "bert"}) {
    const Model model = testing::open_golden(name);
    const models::ModelInfo& info = model.info();
    Random random(6);
    const OwnInputs in = testing::random_inputs(model, 1, 4, random);
    const std::vector<float> vector = random.floats(info.embed_dim);
    const Edit edit{.site = Site::kResidPre,
                    .layer = 1,
                    .tokens = {2},
                    .action = Edit::Action::kAdd,
                    .value = {vector.data(), {info.embed_dim}}};
    Numbers states({info.num_layers + 1, 1, in.tokens, info.embed_dim});
    Numbers pre({1, in.tokens, info.embed_dim}), last = pre;
    const Capture capture{.site = Site::kResidPre, .layer = 1, .out = pre.tensor()};
    ASSERT_TRUE(model
                    .forward(in.inputs({&edit, 1}),
                             {.hidden_states = states.tensor(),
                              .last_hidden_state = last.tensor(),
                              .captures = {&capture, 1}},
                             context)
                    .ok());
    const auto size = static_cast<int64_t>(pre.data.size());
    EXPECT_TRUE(std::equal(pre.data.begin(), pre.data.end(), states.data.begin() + size)) << name;
    // The last of vit's hidden states lacks the final norm.
    EXPECT_EQ(std::equal(last.data.begin(), last.data.end(),
                         states.data.begin() + info.num_layers * size),
              name != std::string("vit"));
  }
}

TEST(Sites, ResultsHaveTheSameBitsWithAnyNumberOfThreads) {
  Context one(1), three(3);
  for (const char* name : {"gemma2", "gpt_neox", "qwen3"}) {
    const Model model = testing::open_golden(name);
    Random random(7);
    const OwnInputs in = testing::random_inputs(model, 2, 40, random);
    std::deque<std::vector<float>> memory;
    std::vector<Edit> edits;
    for (int i = 0; i < 8; ++i) edits.push_back(random_edit(random, model, in, memory));
    edits.push_back({.site = Site::kScores, .action = Edit::Action::kScale, .factor = 0.5F});
    SiteValues a, b;
    const std::vector<Place> places = testing::places_of(model);
    EXPECT_EQ(testing::run_and_capture(model, in, edits, places, a, one).data,
              testing::run_and_capture(model, in, edits, places, b, three).data);
    for (const Place& place : places) EXPECT_EQ(a[place].data, b[place].data) << name;
  }
}

// ---- Wrong calls. ----

struct Wrong {
  Context context{1};
  Model model = testing::open_golden("llama3");
  Model parallel = testing::open_golden("gpt_neox");
  std::vector<int32_t> ids = {5, 6, 7, 8, 9, 10};  // two sequences
  std::vector<float> numbers = std::vector<float>(2000, 7.0F);
  std::vector<float> out = numbers;

  Status run(const Model& of, const std::vector<Edit>& edits,
             const std::vector<Capture>& captures) {
    return of.forward({.ids = ids, .batch = 2, .edits = edits}, {.captures = captures}, context);
  }
  // Returns the argument of the error, and checks that nothing was written and the next call works.
  std::string refused(const Status& status) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(out, std::vector<float>(out.size(), 7.0F)) << "wrote";
    EXPECT_TRUE(model.forward({.ids = ids, .batch = 2}, {}, context).ok());
    return status.argument();
  }
  std::string edit(const Edit& edit) {
    const Capture capture{.site = Site::kResidPre, .out = {out.data(), {2, 3, 16}}};
    return refused(run(model, {edit}, {capture}));
  }
  std::string capture(const Capture& capture) { return refused(run(model, {}, {capture})); }
};

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TEST(Sites, WrongEditsAreRefused) {
  Wrong wrong;
  const ConstTensor row(wrong.numbers.data(), {16});
  const Edit fine{.action = Edit::Action::kAdd, .value = row};
  ASSERT_TRUE(wrong.run(wrong.model, {fine}, {}).ok());
  const auto with = [&](auto change) {
    Edit edit = fine;
    change(edit);
    return wrong.edit(edit);
  };
  for (const int site : {12, 100, 255}) {
    EXPECT_EQ(with([&](Edit& e) { e.site = static_cast<Site>(site); }), "edits[0].site");
  }
  for (const int64_t layer : {int64_t{-1}, int64_t{2}, kHuge, -kHuge}) {
    EXPECT_EQ(with([&](Edit& e) { e.layer = layer; }), "edits[0].layer");
  }
  using List = std::vector<int64_t>;
  for (const auto action : {Edit::Action::kAdd, Edit::Action::kScale}) {
    for (const List& list : {List{-1}, List{3}, List{kHuge}, List{0, 0}, List{2, 1, 2}}) {
      EXPECT_EQ(with([&](Edit& e) { e.tokens = list, e.action = action; }), "edits[0].tokens");
    }
    for (const List& list : {List{-1}, List{2}, List{0, -kHuge}, List{1, 1}}) {
      EXPECT_EQ(with([&](Edit& e) { e.sequences = list, e.action = action; }),
                "edits[0].sequences");
    }
    for (const List& list : {List{-1}, List{2}, List{1, kHuge}, List{0, 1, 0}}) {
      EXPECT_EQ(with([&](Edit& e) { e.site = Site::kZ, e.heads = list, e.action = action; }),
                "edits[0].heads");
    }
  }
  EXPECT_EQ(with([](Edit& e) { e.site = Site::kV, e.heads = {1}; }), "edits[0].heads");
  EXPECT_EQ(with([](Edit& e) { e.heads = {0}; }), "edits[0].heads") << "has no heads";
  EXPECT_EQ(with([](Edit& e) { e.action = static_cast<Edit::Action>(4); }), "edits[0].action");
  for (const float factor : {NAN, INFINITY, -INFINITY}) {
    EXPECT_EQ(with([&](Edit& e) { e.action = Edit::Action::kScale, e.factor = factor; }),
              "edits[0].factor");
  }
  float* const data = wrong.numbers.data();
  for (const Dims& shape : {Dims{15}, Dims{17}, Dims{3, 1, 16}, Dims{1, 2, 3, 16}, Dims{0},
                            Dims{-1}, Dims{kHuge}, Dims{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    EXPECT_EQ(with([&](Edit& e) {
                e.value = {data, shape};
              }),
              "edits[0].value")
        << shape.to_string();
  }
  EXPECT_EQ(with([&](Edit& e) { e.value = {nullptr, {16}}; }), "edits[0].value");
  EXPECT_EQ(with([&](Edit& e) { e.value = {}; }), "edits[0].value");
  EXPECT_EQ(with([&](Edit& e) { e.value = {data, {2, 3, 16}, {1}}; }), "edits[0].value");
  for (const Dims& shape : {Dims{16}, Dims{3, 16}, Dims{2, 3, 15}, Dims{2, 1, 16}}) {
    EXPECT_EQ(with([&](Edit& e) {
                e.value = {data, shape}, e.action = Edit::Action::kReplace, e.tokens = {0};
              }),
              "edits[0].value");
  }
  for (const float bad : {NAN, INFINITY}) {
    const std::vector<float> numbers(16, bad);
    EXPECT_EQ(with([&](Edit& e) { e.value = {numbers.data(), {16}}; }), "edits[0].value");
  }
  // Errors name the second edit; for a missing site they list the sites of the model.
  EXPECT_EQ(wrong.refused(wrong.run(wrong.model, {fine, {.layer = 9}}, {})), "edits[1].layer");
  const Status status =
      wrong.run(wrong.parallel, {{.site = Site::kResidMid, .action = Edit::Action::kScale}}, {});
  EXPECT_EQ(status.argument(), "edits[0].site");
  EXPECT_EQ(status.expected(),
            "one of resid_pre, q, k, v, scores, pattern, z, attn_out, mlp_hidden, mlp_out, "
            "resid_post");
  EXPECT_EQ(status.got(), "resid_mid");
}

TEST(Sites, EditsThatMakeNumbersInfiniteAreRefused) {
  Wrong wrong;
  const float large = 3e38F;
  for (const Site site : testing::all_sites()) {
    const std::vector<Edit> edits(
        3, {.site = site, .layer = 1, .action = Edit::Action::kAdd, .value = {&large, {1}}});
    const Status status =
        wrong.run(wrong.model, edits,
                  {{.site = Site::kResidPost, .layer = 1, .out = {wrong.out.data(), {2, 3, 16}}}});
    EXPECT_EQ(wrong.refused(status), "edits") << models::name_of(site);
    EXPECT_NE(status.got().find(models::name_of(site)), std::string::npos) << status.message();
  }
}

TEST(Sites, WrongCapturesAreRefused) {
  Wrong wrong;
  const Capture fine{.out = {wrong.out.data(), {2, 3, 16}}};
  const auto with = [&](auto change) {
    Capture capture = fine;
    change(capture);
    return wrong.capture(capture);
  };
  float* const data = wrong.out.data();
  EXPECT_EQ(with([](Capture& c) { c.site = static_cast<Site>(12); }), "captures[0].site");
  EXPECT_EQ(with([](Capture& c) { c.layer = -1; }), "captures[0].layer");
  EXPECT_EQ(with([](Capture& c) { c.layer = kHuge; }), "captures[0].layer");
  EXPECT_EQ(with([](Capture& c) { c.heads = {0}; }), "captures[0].heads");
  EXPECT_EQ(with([&](Capture& c) {
              c.site = Site::kZ, c.heads = {1, 1}, c.out = {data, {2, 3, 2, 8}};
            }),
            "captures[0].heads");
  EXPECT_EQ(with([&](Capture& c) { c.out = {}; }), "captures[0].out");
  EXPECT_EQ(with([&](Capture& c) { c.out = {nullptr, {2, 3, 16}}; }), "captures[0].out");
  EXPECT_EQ(with([&](Capture& c) { c.out = {data, {6, 16}}; }), "captures[0].out");
  EXPECT_EQ(with([&](Capture& c) { c.out = {data, {2, 3, 16}, {96, 32, 1}}; }), "captures[0].out");
  EXPECT_EQ(with([&](Capture& c) { c.out = {data, {2, 3, 16}, {48}}; }), "captures[0].out");
  // Outputs may not lie in memory of another output, of an input or of an edit's value.
  const Capture overlapping{.site = Site::kAttnOut, .out = {data + 95, {2, 3, 16}}};
  EXPECT_EQ(wrong.refused(wrong.run(wrong.model, {}, {fine, overlapping})), "outputs");
  const Capture in_ids{.out = {reinterpret_cast<float*>(wrong.ids.data()), {2, 3, 16}}};
  EXPECT_EQ(wrong.refused(wrong.run(wrong.model, {}, {in_ids})), "outputs");
  const Edit edit{.layer = 1, .action = Edit::Action::kAdd, .value = {data + 80, {16}}};
  EXPECT_EQ(wrong.refused(wrong.run(wrong.model, {edit}, {fine})), "outputs");
  Numbers states({3, 2, 3, 16});
  const Capture within{.out = {states.data.data() + 100, {2, 3, 16}}};
  EXPECT_EQ(wrong.refused(wrong.model.forward(
                {.ids = wrong.ids, .batch = 2},
                {.hidden_states = states.tensor(), .captures = {&within, 1}}, wrong.context)),
            "outputs");
}

}  // namespace
}  // namespace multihead
