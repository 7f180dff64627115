// Random lists of operations: where plan() puts their values, and the gradients that follow.
#include "nn/graph/graph.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "engine/runtime/scratch.h"
#include "nn/call_memory.h"
#include "nn/graph/call.h"
#include "support/random_case.h"
#include "support/slope.h"

namespace multihead::nn {
namespace {

using Kind = Operation::Kind;
using testing::Random;

constexpr int64_t kWidth = 8, kHeads = 2, kHidden = 12, kTokens = 3, kBatch = 2;

// Makes a layer whose branches read the stream, and are added to it in any order and at any time.
class RandomList {
 public:
  explicit RandomList(Random& random) : random_(random) {
    graph.activation = random.pick({Activation::kGelu, Activation::kSilu, Activation::kGeluTanh});
    graph.norm = {.rms = random.chance(0.5), .eps = 1e-3F};
    graph.norms_all_heads = random.chance(0.3);
    add_parameters();
    stream_ = graph.input = graph.add({.width = kWidth});
    for (int64_t steps = random.integer(1, 6); steps > 0; --steps) {
      if (random_.chance(0.5)) {
        // Only one attention: the frame has memory for the log-sum-exp of one.
        pending_.push_back(attends_ || random_.chance(0.5) ? mlp() : attention());
      } else if (!pending_.empty()) {
        add_branch();
      } else if (random_.chance(0.5)) {
        stream_ = norm(stream_, true);
      }
    }
    if (pending_.empty()) pending_.push_back(mlp());
    while (!pending_.empty()) add_branch();
    graph.output = stream_;
    plan(graph);
    call = {.parameters = &parameters_,
            .batch = kBatch,
            .tokens = kTokens,
            .rotation = {
                .cos = floats(kTokens * 2), .sin = floats(kTokens * 2), .pairs = 2, .step = 2}};
    if (random.chance(0.5)) call.head_scales = {floats(kHeads), static_cast<size_t>(kHeads)};
    if (random.chance(0.5)) call.attention.causal = Causal::top_left();
  }

  Graph graph;
  LayerCall call;

 private:
  float* floats(int64_t count) { return memory_.emplace_back(random_.floats(count)).data(); }
  Projection projection(int64_t rows, int64_t columns) {
    Projection made{.weight = {floats(rows * columns), WeightType::kF32, rows, columns},
                    .bias = {}};
    if (random_.chance(0.5)) made.bias = {floats(rows), rows};
    return made;
  }
  void add_parameters() {
    LayerParameters& p = parameters_;
    p.mlp_norm = {{floats(kWidth), kWidth}, {}};
    if (!graph.norm.rms) p.mlp_norm.bias = {floats(kWidth), kWidth};
    // One norm does nothing, because layers of some families lack it.
    p.q_norm.weight = {floats(kWidth), graph.norms_all_heads ? kWidth : kWidth / kHeads};
    p.up = projection(kHidden, kWidth);
    p.gate_up = projection(2 * kHidden, kWidth);
    p.down = projection(kWidth, kHidden);
    p.qkv = projection(3 * kWidth, kWidth);
    p.o = projection(kWidth, kWidth);
    p.mlp_scale = {floats(kWidth), kWidth};
  }

  ValueId write(Operation op, const Value& value) {
    op.out = graph.add(value);
    graph.operations.push_back(op);
    return op.out;
  }
  ValueId norm(ValueId in, bool in_place) {
    return write(
        {.kind = Kind::kNorm,
         .in = in,
         .norm = random_.chance(0.2) ? &LayerParameters::k_norm : &LayerParameters::mlp_norm},
        {.width = kWidth, .replaces = in_place ? in : kNoValue});
  }
  // Returns the stream, or its norm.
  ValueId input() { return random_.chance(0.7) ? norm(stream_, false) : stream_; }
  ValueId end(ValueId in, Projection LayerParameters::*projection) {
    ValueId out =
        write({.kind = Kind::kProject, .in = in, .projection = projection}, {.width = kWidth});
    if (random_.chance(0.3)) {
      out = write({.kind = Kind::kScaleColumns, .in = out, .vector = &LayerParameters::mlp_scale},
                  {.width = kWidth, .replaces = out});
    }
    return random_.chance(0.3) ? norm(out, true) : out;
  }
  ValueId mlp() {
    const ValueId in = input();
    const bool gated = random_.chance(0.5);
    const ValueId all = graph.add({.width = gated ? 2 * kHidden : kHidden});
    const auto part = [&](int64_t first) {
      return graph.add({.width = kHidden, .whole = all, .column = first, .head_step = kHidden});
    };
    const ValueId first = part(0), second = gated ? part(kHidden) : kNoValue;
    graph.operations.push_back(
        {.kind = Kind::kProject,
         .in = in,
         .out = all,
         .projection = gated ? &LayerParameters::gate_up : &LayerParameters::up});
    const ValueId hidden = write({.kind = Kind::kActivate, .in = first, .in2 = second},
                                 {.width = kHidden, .replaces = first});
    return end(hidden, &LayerParameters::down);
  }
  ValueId attention() {
    attends_ = true;
    const ValueId in = input();
    const ValueId all = graph.add({.width = 3 * kWidth});
    const int64_t d = kWidth / kHeads;
    // A norm of all heads needs them side by side.
    const bool mixed = !graph.norms_all_heads && random_.chance(0.5);
    ValueId parts[3];
    for (int64_t i = 0; i < 3; ++i) {
      parts[i] = graph.add({.width = kWidth,
                            .heads = kHeads,
                            .whole = all,
                            .column = mixed ? i * d : i * kWidth,
                            .head_step = mixed ? 3 * d : d});
    }
    graph.operations.push_back(
        {.kind = Kind::kProject, .in = in, .out = all, .projection = &LayerParameters::qkv});
    for (const Kind kind : {Kind::kNormHeads, Kind::kRotate}) {
      for (int i = 0; i < 2 && random_.chance(0.7); ++i) {
        parts[i] = write({.kind = kind, .in = parts[i], .norm = &LayerParameters::q_norm},
                         {.width = kWidth, .heads = kHeads, .replaces = parts[i]});
      }
    }
    const ValueId heads =
        write({.kind = Kind::kAttend, .in = parts[0], .in2 = parts[1], .in3 = parts[2]},
              {.width = kWidth, .heads = kHeads});
    const ValueId z = write({.kind = Kind::kScaleHeads, .in = heads},
                            {.width = kWidth, .heads = kHeads, .replaces = heads});
    return end(z, &LayerParameters::o);
  }
  void add_branch() {
    const auto at = random_.integer(0, static_cast<int64_t>(pending_.size()) - 1);
    const ValueId branch = pending_[static_cast<size_t>(at)];
    pending_.erase(pending_.begin() + at);
    stream_ = write({.kind = Kind::kAdd, .in = stream_, .in2 = branch},
                    {.width = kWidth, .replaces = stream_});
  }

  Random& random_;
  LayerParameters parameters_;
  std::deque<std::vector<float>> memory_;
  ValueId stream_ = kNoValue;
  bool attends_ = false;
  std::vector<ValueId> pending_;
};

// Returns the value whose memory a value uses, by the definitions of Value.
ValueId origin(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  if (value.whole != kNoValue) return origin(graph, value.whole);
  return value.replaces == kNoValue ? id : origin(graph, value.replaces);
}

TEST(Graph, ValuesThatLiveAtTheSameTimeShareNoMemory) {
  size_t values = 0, slots = 0;
  const std::vector<uint64_t> seeds = testing::random_seeds(300);
  for (const uint64_t seed : seeds) {
    Random random(seed);
    const RandomList list(random);
    const Graph& graph = list.graph;
    std::map<int, ValueId> last_written;  // by slot
    for (const Operation& op : graph.operations) {
      for (const ValueId id : {op.in, op.in2, op.in3}) {
        if (id == kNoValue || origin(graph, id) == graph.input) continue;
        const Value& memory = graph.value(origin(graph, id));
        ASSERT_GE(memory.slot, 0);
        ASSERT_EQ(last_written[memory.slot], origin(graph, id)) << "seed " << seed;
        ASSERT_GE(graph.slots[static_cast<size_t>(memory.slot)], memory.width);
      }
      const ValueId written = origin(graph, op.out);
      if (written != graph.input) last_written[graph.value(written).slot] = written;
      values += written != graph.input && graph.value(op.out).replaces == kNoValue ? 1 : 0;
    }
    slots += graph.slots.size();
  }
  // Counted over all lists, because a short one has few values that could share.
  if (seeds.size() >= 15) EXPECT_LT(2 * slots, values) << "values share too little memory";
}

// Runs a list in memory that values share, and in memory where each value has its own place.
struct Played {
  Played(const Graph& graph_, const LayerCall& call_, Context& context_)
      : graph(graph_), call(call_), context(context_) {
    EXPECT_TRUE(reserve(memory, [&](rules::Arena& take) {
                  shared.lay_out(graph, call.rows(), 0, take);
                  kept.lay_out_kept(graph, call, input.data(), output.data(), take);
                  gradients.lay_out_gradients(graph, call, gradient.data(), take);
                }).ok());
  }

  // Returns the sum of output * weights.
  double run() {
    EXPECT_TRUE(forward(graph, kept, call, context).ok());
    return testing::dot(output, weights);
  }
  std::vector<float> run_shared() {
    std::vector<float> x = input;
    shared.bind(graph, call, x.data());
    EXPECT_TRUE(forward(graph, shared, call, context).ok());
    return x;
  }

  const Graph& graph;
  const LayerCall& call;
  Context& context;
  std::vector<float> input = std::vector<float>(kBatch * kTokens * kWidth), output = input,
                     weights = input, gradient = input;
  engine::Buffer memory;
  Frame shared, kept, gradients;
};

TEST(Graph, GradientsAreThoseOfFiniteDifferences) {
  Context context(1);
  for (const uint64_t seed : testing::random_seeds(200)) {
    Random random(seed);
    const RandomList list(random);
    Played played(list.graph, list.call, context);
    for (std::vector<float>* const numbers : {&played.input, &played.weights}) {
      for (float& number : *numbers) number = random.uniform(-1, 1);  // addresses stay
    }
    static_cast<void>(played.run());
    EXPECT_EQ(played.run_shared(), played.output) << "seed " << seed;
    played.gradient = played.weights;
    ASSERT_TRUE(
        backward(list.graph, played.kept, played.gradients, list.call, 0, {}, context).ok());
    const std::vector<float> direction = testing::random_direction(random, played.input.size());
    const double expected = testing::slope(played.input, direction, [&] { return played.run(); });
    const double got = testing::dot(played.gradient, direction);
    EXPECT_NEAR(got, expected, 0.01 * testing::size_of_dot(played.gradient, direction) + 1e-3)
        << "seed " << seed;
  }
}

// f(x) and g(x) read the stream; g is written first and added last, so f's norm changes the
// gradient of the stream before g's operations read their own.
TEST(Graph, ASumLendsItsGradientOnlyWhileNothingChangesIt) {
  Graph graph;
  const auto branch = [&] {
    const ValueId normed = graph.add({.width = kWidth});
    graph.operations.push_back({.kind = Kind::kNorm,
                                .in = graph.input,
                                .out = normed,
                                .norm = &LayerParameters::mlp_norm});
    const ValueId out = graph.add({.width = kWidth});
    graph.operations.push_back(
        {.kind = Kind::kProject, .in = normed, .out = out, .projection = &LayerParameters::o});
    return out;
  };
  const auto add = [&](ValueId to, ValueId from) {
    const ValueId out = graph.add({.width = kWidth, .replaces = to});
    graph.operations.push_back({.kind = Kind::kAdd, .in = to, .in2 = from, .out = out});
    return out;
  };
  graph.input = graph.add({.width = kWidth});
  const ValueId g = branch(), f = branch();
  graph.output = add(add(graph.input, f), g);
  plan(graph);
  const size_t count = graph.operations.size();
  EXPECT_TRUE(graph.operations[count - 2].lends_gradient);
  EXPECT_FALSE(graph.operations[count - 1].lends_gradient);
}

}  // namespace
}  // namespace multihead::nn
