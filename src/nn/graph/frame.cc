// Where the values of a layer lie in memory.
#include <cstddef>
#include <cstdint>

#include "nn/call_memory.h"
#include "nn/graph/call.h"

namespace multihead::nn {

void Frame::lay_out(const Graph& graph, int64_t rows, int64_t source_rows, rules::Arena& take) {
  take(places_, graph.values.size());
  take(slots_, graph.slots.size());
  for (size_t slot = 0; slot < graph.slots.size(); ++slot) {
    float* data = nullptr;
    const bool of_source = graph.source != kNoValue && slot + 1 == graph.slots.size();
    take(data, saturated_elements({of_source ? source_rows : rows, graph.slots[slot]}));
    if (slots_ != nullptr) slots_[slot] = data;
  }
}

void Frame::bind(const Graph& graph, const LayerCall& call, float* x) {
  // Most layers are alike: a step of one token would notice the time of filling.
  uint64_t acting = 1;
  for (const Operation& op : graph.operations) acting = acting << 1U | (acts(op, call) ? 1U : 0U);
  if (acting == acting_) return;
  acting_ = acting;
  fill(graph, call, x, x, Memory::kShared, nullptr);
}

void Frame::lay_out_kept(const Graph& graph, const LayerCall& call, float* input, float* output,
                         rules::Arena& take) {
  take(places_, graph.values.size());
  for (const Operation& op : graph.operations) {
    if (op.kind != Operation::Kind::kAttend) continue;
    take(lse_, saturated_elements({call.batch, graph.value(op.in).heads, call.tokens}));
  }
  fill(graph, call, input, output, Memory::kKept, &take);
}

void Frame::lay_out_gradients(const Graph& graph, const LayerCall& call, float* gradient,
                              rules::Arena& take) {
  take(places_, graph.values.size());
  fill(graph, call, gradient, gradient, Memory::kGradients, &take);
}

void Frame::fill(const Graph& graph, const LayerCall& call, float* input, float* output,
                 Memory memory, rules::Arena* take) {
  graph_ = &graph;
  batch_ = call.batch;
  tokens_ = call.tokens;
  source_tokens_ = call.source.tokens;
  // The arena counts without memory first. Places are then of no use.
  const bool counts = places_ == nullptr;
  const auto at = [&](ValueId id) { return counts ? Place{} : place(id); };
  for (size_t index = 0; index < graph.values.size(); ++index) {
    const auto id = static_cast<ValueId>(index);
    const Value& value = graph.values[index];
    const Operation* const writer = value.writer < 0 || value.whole != kNoValue
                                        ? nullptr
                                        : &graph.operations[static_cast<size_t>(value.writer)];
    // The replaced value may lie where an earlier one is kept, if the operation between does
    // nothing.
    const auto is_kept = [&](ValueId from) {
      while (!graph.value(from).kept) {
        const Value& before = graph.value(from);
        if (before.replaces == kNoValue || before.whole != kNoValue ||
            acts(graph.operations[static_cast<size_t>(before.writer)], call)) {
          return false;
        }
        from = before.replaces;
      }
      return true;
    };
    const bool overwrites =
        value.replaces != kNoValue && (memory != Memory::kKept || !is_kept(value.replaces));
    // A gradient that is a sum's is read there.
    const Operation* const sum =
        memory != Memory::kGradients ? nullptr : [&]() -> const Operation* {
      for (const Operation& op : graph.operations) {
        if (op.kind == Operation::Kind::kAdd && op.in2 == id && op.lends_gradient) return &op;
      }
      return nullptr;
    }();
    Place to{nullptr, value.width};
    if (id == graph.input) {
      to.data = input;
    } else if (id == graph.source) {
      to.data = call.source.state.data;
    } else if (writer != nullptr && !acts(*writer, call)) {
      to = at(writer->in);
    } else if (value.whole != kNoValue) {
      to = at(value.whole);
      if (!counts) to.data += value.column;
    } else if (id == graph.output) {
      to.data = output;
    } else if (sum != nullptr) {
      ValueId stream = sum->in;
      while (stream > id) stream = graph.value(stream).replaces;  // in the same place
      to = at(stream);
    } else if (overwrites) {
      to = at(value.replaces);
    } else if (memory == Memory::kShared) {
      to.data = slots_[value.slot];
    } else {
      (*take)(to.data, saturated_elements({call.rows(), value.width}));
    }
    if (!counts) place(id) = to;
  }
}

Tensor Frame::rows(ValueId id) const {
  return {place(id).data, {batch_ * tokens_of(id), graph_->value(id).width}, {place(id).stride, 1}};
}

Tensor Frame::heads(ValueId id) const {
  const Value& value = graph_->value(id);
  // A value that has taken the place of columns has its heads where they were.
  int64_t width = value.width / value.heads, step = width;
  for (ValueId from = id; from != kNoValue; from = graph_->value(from).replaces) {
    const Value& origin = graph_->value(from);
    if (origin.whole != kNoValue && same_place(from, id)) step = origin.head_step;
  }
  return {place(id).data,
          {batch_, value.heads, tokens_of(id), width},
          {tokens_of(id) * place(id).stride, step, place(id).stride, 1}};
}

Tensor Frame::lse() const {
  if (lse_ == nullptr) return {};
  for (const Operation& op : graph_->operations) {
    if (op.kind == Operation::Kind::kAttend) {
      return {lse_, {batch_, graph_->value(op.in).heads, tokens_}};
    }
  }
  return {};
}

}  // namespace multihead::nn
