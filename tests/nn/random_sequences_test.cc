// Random sequences of calls on all objects with state: module, cache, transformer, prepared
// operation, context. After each call, all of them must agree with a simple model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "multihead/multihead.h"
#include "support/random_module.h"

namespace multihead {
namespace {

using testing::Random;

// Scores may be rounded differently in steps than in one pass.
constexpr float kSequenceTolerance = 2e-5F;

void expect_near(const std::vector<float>& got, const float* expected, const char* what) {
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], kSequenceTolerance) << what;
}

// A module with one cache, and the tokens that were appended to it.
class ModulePlayer {
 public:
  ModulePlayer(Random& random, Context& context) : random_(random), context_(context) {
    config_ = {.embed_dim = 8, .num_heads = 4, .num_kv_heads = random.pick<int64_t>({1, 2, 4})};
    config_.sinks = random.chance(0.3);
    config_.qk_norm = random.chance(0.3);
    if (random.chance(0.5)) config_.rope.style = Rope::Style::kHalf;
    if (random.chance(0.5)) config_.window.left = 2;
    EXPECT_TRUE(MultiHeadAttention::create(config_, module_).ok());
    load();
    create_cache();
  }

  void play() {
    switch (random_.integer(0, 9)) {
      case 0:
        return load();
      case 1:
        return create_cache();
      case 2:
        return truncate();
      case 3:
        return refused();
      case 4: {
        // A copy shares the parameters, and a moved object keeps its contents.
        MultiHeadAttention copy = module_;
        module_ = std::move(copy);
        MultiHeadAttentionCache moved = std::move(cache_);
        cache_ = std::move(moved);
        return;
      }
      case 5: {
        // Loads the module's own weights again.
        StateDict dict;
        ASSERT_TRUE(module_.state_dict(dict).ok());
        ASSERT_TRUE(module_.load_state_dict(dict).ok());
        return forget_tokens();
      }
      default:
        return step();
    }
  }

  void check() const {
    ASSERT_EQ(cache_.length(), length());
    ASSERT_EQ(cache_.kv().config().capacity, capacity_);
    for (const TraceStep& step : trace_.steps) {
      ASSERT_EQ(step.values.size(), static_cast<size_t>(step.shape.elements())) << step.name;
    }
  }

 private:
  int64_t length() const { return static_cast<int64_t>(tokens_.size()) / 8; }

  void load() {
    const testing::ModuleParameters parameters = testing::random_parameters(config_, random_);
    ASSERT_TRUE(module_.load_state_dict(parameters.dict).ok());
    forget_tokens();
  }
  // Tokens of earlier weights are refused, so the cache is emptied.
  void forget_tokens() {
    if (length() == 0) return;
    const std::vector<float> x(8, 1.0F);
    std::vector<float> out(8, 42.0F);
    if (ring_ || length() < capacity_) {
      const Status status = module_.step({x.data(), {1, 8}}, {}, {.out = {out.data(), {1, 8}}},
                                         cache_, &trace_, context_);
      ASSERT_EQ(status.argument(), "cache") << status.message();
      ASSERT_EQ(out, std::vector<float>(8, 42.0F));
    }
    ASSERT_TRUE(cache_.truncate(0).ok());
    tokens_.clear();
  }
  void create_cache() {
    using Layout = KVCacheConfig::Layout;
    const bool rings = config_.window.left >= 0;
    const Layout layout =
        random_.pick({Layout::kContiguous, Layout::kPaged, rings ? Layout::kRing : Layout::kPaged});
    capacity_ = random_.integer(5, 20);
    ASSERT_TRUE(
        module_.create_cache({.capacity = capacity_, .layout = layout, .page_size = 3}, cache_)
            .ok());
    ring_ = layout == Layout::kRing;
    tokens_.clear();
  }
  void truncate() {
    const int64_t to = random_.integer(-1, length() + 1);
    const bool legal = to >= cache_.kv().first_kept(0) && to <= length();
    ASSERT_EQ(cache_.truncate(to).ok(), legal) << to;
    if (legal) tokens_.resize(static_cast<size_t>(to * 8));
  }
  // Each of these calls must leave cache, trace and output unchanged.
  void refused() {
    const std::vector<float> x(8, 1.0F);
    std::vector<float> out(8, 42.0F);
    const size_t steps = trace_.steps.size();
    MultiHeadAttentionOptions options;
    Trace unknown{.wanted = {"nothing"}};
    Trace* trace = &trace_;
    switch (random_.integer(0, 3)) {
      case 0:
        options.attention.softcap = -1.0F;
        break;
      case 1:
        options.heads.head_scales = x;
        break;
      case 2:
        options.attention.causal = Causal::top_left();
        break;
      default:
        trace = &unknown;
    }
    const Status status = module_.step({x.data(), {1, 8}}, options, {.out = {out.data(), {1, 8}}},
                                       cache_, trace, context_);
    ASSERT_FALSE(status.ok());
    ASSERT_EQ(out, std::vector<float>(8, 42.0F));
    ASSERT_EQ(trace_.steps.size(), steps);
    ASSERT_FALSE(module_.load_state_dict({}).ok());
  }
  void step() {
    const int64_t count = random_.integer(1, 4);
    const std::vector<float> x = testing::sixteenths(random_, count * 8);
    std::vector<float> out(x.size());
    Trace* const trace = random_.chance(0.3) ? &trace_ : nullptr;
    const Status status = module_.step({x.data(), {count, 8}}, {},
                                       {.out = {out.data(), {count, 8}}}, cache_, trace, context_);
    // A ring must hold a window and the new tokens; other layouts must hold all tokens.
    const bool legal =
        ring_ ? length() + count <= capacity_ || count <= capacity_ - config_.window.left
              : length() + count <= capacity_;
    ASSERT_EQ(status.ok(), legal) << status.message();
    if (!legal) return;
    tokens_.insert(tokens_.end(), x.begin(), x.end());
    std::vector<float> whole(tokens_.size());
    const Dims shape{length(), 8};
    ASSERT_TRUE(module_
                    .forward({.query = {tokens_.data(), shape}},
                             {.attention = {.causal = Causal::top_left()}},
                             {.out = {whole.data(), shape}}, nullptr, context_)
                    .ok());
    expect_near(out, whole.data() + whole.size() - out.size(), "step");
    if (trace != nullptr) {
      ASSERT_EQ(testing::vector_of(trace->find("output")->values), out);
    }
  }

  Random& random_;
  Context& context_;
  MultiHeadAttentionConfig config_;
  MultiHeadAttention module_;
  MultiHeadAttentionCache cache_;
  Trace trace_;
  std::vector<float> tokens_;
  int64_t capacity_ = 0;
  bool ring_ = false;
};

// A transformer of two blocks with its cache, and the tokens that were appended to it.
class TransformerPlayer {
 public:
  TransformerPlayer(Random& random, Context& context) : random_(random), context_(context) {
    config_.block = {.attention = {.embed_dim = 8, .num_heads = 2},
                     .mlp_dim = 6,
                     .gated = random.chance(0.5),
                     .norm = random.pick({Norm::kNone, Norm::kLayerNorm, Norm::kRmsNorm})};
    config_.num_layers = 2;
    config_.vocab_size = kWords;
    config_.max_positions = 10;
    config_.tied_output = true;
    EXPECT_TRUE(Transformer::create(config_, model_).ok());
    load();
    EXPECT_TRUE(model_.create_cache({.capacity = 12}, cache_).ok());
  }

  void play() {
    switch (random_.integer(0, 7)) {
      case 0:
        return load();
      case 1: {
        const int64_t to = random_.integer(-1, length() + 1);
        const bool legal = to >= 0 && to <= length();
        ASSERT_EQ(cache_.truncate(to).ok(), legal);
        if (legal) tokens_.resize(static_cast<size_t>(to));
        return;
      }
      case 2: {
        Transformer moved = std::move(model_);
        model_ = std::move(moved);
        TransformerCache cache = std::move(cache_);
        ASSERT_EQ(cache_.length(), 0);  // NOLINT(bugprone-use-after-move): of no layers now
        cache_ = std::move(cache);
        return;
      }
      case 3: {
        // A refused call must change nothing.
        const std::vector<int32_t> wrong{0, static_cast<int32_t>(kWords)};
        ASSERT_FALSE(model_.step(wrong, {}, {}, cache_, context_).ok());
        ASSERT_FALSE(model_.load_state_dict({}, ParameterNames::kGpt2).ok());
        return;
      }
      default:
        return step();
    }
  }

  void check() const {
    ASSERT_EQ(cache_.length(), length());
    StateDict dict;
    ASSERT_TRUE(model_.state_dict(dict).ok());
    ASSERT_EQ(dict.size(), values_.size());
  }

 private:
  static constexpr int64_t kWords = 7;
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }

  // Loads other parameters and forgets all results of the old ones.
  void load() {
    std::vector<std::vector<float>> values;
    StateDict dict;
    const auto add = [&](const std::string& name, const Dims& shape) {
      values.push_back(testing::sixteenths(random_, shape.elements()));
      dict[name] = ConstTensor(values.back().data(), shape);
    };
    add("embedding.weight", {kWords, 8});
    add("position.weight", {10, 8});
    const auto add_norm = [&](const std::string& name) {
      if (config_.block.norm == Norm::kNone) return;
      add(name + ".weight", {8});
      if (config_.block.norm == Norm::kLayerNorm) add(name + ".bias", {8});
    };
    for (const std::string prefix : {"layers.0.", "layers.1."}) {
      add_norm(prefix + "norm1");
      add_norm(prefix + "norm2");
      add(prefix + "self_attn.in_proj_weight", {24, 8});
      add(prefix + "self_attn.in_proj_bias", {24});
      add(prefix + "self_attn.out_proj.weight", {8, 8});
      add(prefix + "self_attn.out_proj.bias", {8});
      add(prefix + "linear1.weight", {6, 8});
      add(prefix + "linear1.bias", {6});
      if (config_.block.gated) {
        add(prefix + "linear_gate.weight", {6, 8});
        add(prefix + "linear_gate.bias", {6});
      }
      add(prefix + "linear2.weight", {8, 6});
      add(prefix + "linear2.bias", {8});
    }
    add_norm("norm");
    const Status status = model_.load_state_dict(dict);
    ASSERT_TRUE(status.ok()) << status.message();
    values_ = std::move(values);
    if (cache_.length() > 0) {
      ASSERT_TRUE(cache_.truncate(0).ok());
    }
    tokens_.clear();
  }

  void step() {
    const int64_t count = random_.integer(1, 3);
    std::vector<int32_t> next;
    for (int64_t i = 0; i < count; ++i) {
      next.push_back(static_cast<int32_t>(random_.integer(0, kWords - 1)));
    }
    std::vector<float> logits(static_cast<size_t>(count * kWords));
    const Status status =
        model_.step(next, {}, {.logits = {logits.data(), {1, count, kWords}}}, cache_, context_);
    const bool legal = length() + count <= config_.max_positions;
    ASSERT_EQ(status.ok(), legal) << status.message();
    if (!legal) return;
    tokens_.insert(tokens_.end(), next.begin(), next.end());
    std::vector<float> whole(static_cast<size_t>(length() * kWords));
    ASSERT_TRUE(
        model_.forward(tokens_, 1, {}, {.logits = {whole.data(), {1, length(), kWords}}}, context_)
            .ok());
    // Without norms, the numbers grow from layer to layer.
    const float scale = *std::max_element(whole.begin(), whole.end());
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i], whole[whole.size() - logits.size() + i],
                  kSequenceTolerance * std::max(1.0F, std::abs(scale)));
    }
  }

  Random& random_;
  Context& context_;
  TransformerConfig config_;
  Transformer model_;
  TransformerCache cache_;
  std::vector<std::vector<float>> values_;
  std::vector<int32_t> tokens_;
};

// A prepared operation whose operands, mask and lengths change between its runs.
class PreparedPlayer {
 public:
  PreparedPlayer(Random& random, Context& context) : random_(random), context_(context) {
    create();
  }

  void play() {
    switch (random_.integer(0, 7)) {
      case 0:
        return create();
      case 1: {
        PreparedAttention moved = std::move(op_);
        op_ = std::move(moved);
        return;
      }
      case 2:
        ASSERT_FALSE(op_.run(nullptr, k_.data(), v_.data(), out_.data()).ok());
        return;
      case 3:
        mask_[static_cast<size_t>(random_.integer(0, keys_ - 1))] ^= 1U;
        return;
      case 4:
        lengths_[0] = static_cast<int32_t>(random_.integer(0, keys_));
        return;
      default:
        q_ = random_.floats(2 * queries_ * 4);
        return run();
    }
  }

 private:
  Dims query() const { return {1, 2, queries_, 4}; }
  Dims key() const { return {1, 2, keys_, 4}; }
  AttentionOptions options() const {
    AttentionOptions options{.causal = Causal::bottom_right_of_length(),
                             .mask = {mask_.data(), {1, keys_}},
                             .kv_lengths = lengths_};
    if (rotates_) options.rope.style = Rope::Style::kInterleaved;
    return options;
  }
  void create() {
    queries_ = random_.pick<int64_t>({1, 1, 3, 20});
    keys_ = random_.pick<int64_t>({1, 5, 300});
    rotates_ = random_.chance(0.3);
    q_ = random_.floats(2 * queries_ * 4);
    k_ = random_.floats(2 * keys_ * 4);
    v_ = random_.floats(2 * keys_ * 4);
    mask_.assign(static_cast<size_t>(keys_), 1);
    lengths_.assign(1, static_cast<int32_t>(random_.integer(0, keys_)));
    out_.assign(q_.size(), 0.0F);
    const Status status = PreparedAttention::create(
        ConstTensor(nullptr, query()), ConstTensor(nullptr, key()), ConstTensor(nullptr, key()),
        options(), {.out = Tensor(nullptr, query())}, context_, op_);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void run() {
    const Status status = op_.run(q_.data(), k_.data(), v_.data(), out_.data());
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<float> expected(out_.size());
    ASSERT_TRUE(attention(ConstTensor(q_.data(), query()), ConstTensor(k_.data(), key()),
                          ConstTensor(v_.data(), key()), options(),
                          {.out = Tensor(expected.data(), query())}, context_)
                    .ok());
    // The header promises bit-identical results.
    ASSERT_EQ(out_, expected);
  }

  Random& random_;
  Context& context_;
  PreparedAttention op_;
  int64_t queries_ = 1, keys_ = 1;
  bool rotates_ = false;
  std::vector<float> q_, k_, v_, out_;
  std::vector<uint8_t> mask_;
  std::vector<int32_t> lengths_;
};

// All objects share one context, as in a typical program.
TEST(RandomSequences, EveryObjectIsWhatItsModelSays) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Context context(2);
    ModulePlayer module(random, context), other(random, context);
    TransformerPlayer transformer(random, context);
    PreparedPlayer prepared(random, context);
    size_t scratch = 0;
    for (int turn = 0; turn < 100; ++turn) {
      SCOPED_TRACE("turn " + std::to_string(turn));
      switch (random.integer(0, 3)) {
        case 0:
          ASSERT_NO_FATAL_FAILURE(module.play());
          break;
        case 1:
          ASSERT_NO_FATAL_FAILURE(other.play());
          break;
        case 2:
          ASSERT_NO_FATAL_FAILURE(transformer.play());
          break;
        default:
          ASSERT_NO_FATAL_FAILURE(prepared.play());
      }
      ASSERT_NO_FATAL_FAILURE(module.check());
      ASSERT_NO_FATAL_FAILURE(other.check());
      ASSERT_NO_FATAL_FAILURE(transformer.check());
      ASSERT_GE(context.scratch_bytes(), scratch);
      scratch = context.scratch_bytes();
    }
  }
}

}  // namespace
}  // namespace multihead
