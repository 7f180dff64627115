#include "nn/graph/graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace multihead::nn {
namespace {

// The operations that use a value's memory, by index.
struct Life {
  int first = std::numeric_limits<int>::max(), last = -1;
};

// The value whose memory this one uses, or itself.
ValueId owner_of(const Graph& graph, ValueId id) {
  while (true) {
    const Value& value = graph.value(id);
    if (value.whole != kNoValue) {
      id = value.whole;
    } else if (value.replaces != kNoValue) {
      id = value.replaces;
    } else {
      return id;
    }
  }
}

// Gives each value memory that no value has that lives at the same time: the smallest that is large
// enough, or the largest, which then grows.
void share_memory(Graph& graph, const std::vector<Life>& lives) {
  std::vector<ValueId> owners;
  for (size_t at = 0; at < graph.values.size(); ++at) {
    const auto id = static_cast<ValueId>(at);
    const bool own = !graph.value(id).of_source && id != graph.input;
    if (lives[at].last >= 0 && owner_of(graph, id) == id && own) owners.push_back(id);
  }
  const auto life = [&](ValueId id) { return lives[static_cast<size_t>(id)]; };
  std::sort(owners.begin(), owners.end(), [&](ValueId a, ValueId b) {
    return std::pair(life(a).first, a) < std::pair(life(b).first, b);
  });
  std::vector<int> busy_until;  // of each slot
  graph.slots.clear();
  for (const ValueId id : owners) {
    Value& value = graph.values[static_cast<size_t>(id)];
    int best = -1;
    for (size_t slot = 0; slot < graph.slots.size(); ++slot) {
      if (busy_until[slot] >= life(id).first) continue;
      const int64_t width = graph.slots[slot];
      const int64_t now = best < 0 ? -1 : graph.slots[static_cast<size_t>(best)];
      const bool better = now < value.width ? width > now : width >= value.width && width < now;
      if (better) best = static_cast<int>(slot);
    }
    if (best < 0) {
      best = static_cast<int>(graph.slots.size());
      graph.slots.push_back(0);
      busy_until.push_back(-1);
    }
    value.slot = best;
    int64_t& width = graph.slots[static_cast<size_t>(best)];
    width = std::max(width, value.width);
    busy_until[static_cast<size_t>(best)] = life(id).last;
  }
  if (graph.source == kNoValue) return;
  // Keys and values of the source have more or fewer rows than the other values.
  graph.slots.push_back(0);
  for (Value& value : graph.values) {
    if (!value.of_source || value.whole != kNoValue) continue;
    value.slot = static_cast<int>(graph.slots.size()) - 1;
    if (&value != &graph.values[static_cast<size_t>(graph.source)])
      graph.slots.back() = value.width;
  }
}

}  // namespace

bool Graph::has(models::Site site) const {
  return std::any_of(values.begin(), values.end(),
                     [&](const Value& value) { return value.site == site; });
}

void plan(Graph& graph) {
  std::vector<Life> lives(graph.values.size());
  const auto count = static_cast<int>(graph.operations.size());
  for (int at = 0; at < count; ++at) {
    Operation& op = graph.operations[static_cast<size_t>(at)];
    for (const ValueId id : {op.in, op.in2, op.in3, op.out}) {
      if (id == kNoValue) continue;
      Life& life = lives[static_cast<size_t>(owner_of(graph, id))];
      life.first = std::min(life.first, at);
      life.last = std::max(life.last, at);
    }
    const bool reads_input =
        op.kind == Operation::Kind::kNorm || op.kind == Operation::Kind::kProject ||
        op.kind == Operation::Kind::kNormHeads || op.kind == Operation::Kind::kActivate ||
        op.kind == Operation::Kind::kClamp;
    for (const ValueId id : {op.in, op.in2, op.in3, op.out}) {
      if (id == kNoValue) continue;
      if (op.kind == Operation::Kind::kAttend || (reads_input && id != op.out)) {
        graph.values[static_cast<size_t>(id)].kept = true;
      }
    }
    for (size_t id = 0; id < graph.values.size(); ++id) {
      Value& value = graph.values[id];
      if (static_cast<ValueId>(id) == op.out || value.whole == op.out) value.writer = at;
    }
    if (op.kind != Operation::Kind::kAdd) continue;
    // The branch can read its gradient where the sum has it, unless an operation between the two
    // changes the sum's gradient first: one that reads the stream and is no sum.
    const int branch = graph.value(op.in2).writer;
    op.lends_gradient = owner_of(graph, op.in) < op.in2;
    for (int between = branch + 1; between < at; ++between) {
      const Operation& other = graph.operations[static_cast<size_t>(between)];
      const bool reads = owner_of(graph, other.in) == owner_of(graph, op.in);
      if (reads && other.kind != Operation::Kind::kAdd) op.lends_gradient = false;
    }
  }
  share_memory(graph, lives);
}

}  // namespace multihead::nn
