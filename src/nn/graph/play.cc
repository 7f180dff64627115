// Plays the operations of a layer in order, and in reverse.
#include <array>
#include <cstddef>

#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "nn/graph/call.h"
#include "nn/graph/probe.h"

namespace multihead::nn {
namespace {

// Calls visit(id) for the values that an operation writes.
template <class Visit>
Status over_written(const Graph& graph, size_t operation, const Visit& visit) {
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].writer != static_cast<int>(operation)) continue;
    MULTIHEAD_TRY(visit(static_cast<ValueId>(id)));
  }
  return {};
}

Status play(size_t first, const Graph& graph, const Frame& frame, const LayerCall& call,
            Context& context) {
  ForwardStep step{graph, frame, call, context};
  for (size_t at = first; at < graph.operations.size(); ++at) {
    step.op = &graph.operations[at];
    if (acts(*step.op, call)) MULTIHEAD_TRY(step.op->kind->forward(step));
    if (call.probe == nullptr) continue;
    MULTIHEAD_TRY(over_written(
        graph, at, [&](ValueId id) { return call.probe->visit(*call.probe, graph, frame, id); }));
  }
  return {};
}

}  // namespace

Status forward(const Graph& graph, const Frame& frame, const LayerCall& call, Context& context) {
  if (call.probe != nullptr) {
    MULTIHEAD_TRY(call.probe->visit(*call.probe, graph, frame, graph.input));
  }
  return play(0, graph, frame, call, context);
}

Status forward_after(models::Site site, const ConstTensor& rows, const Graph& graph,
                     const Frame& frame, const LayerCall& call, Context& context) {
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.site != site) continue;
    const Tensor to = frame.rows(static_cast<ValueId>(id));
    const Dims one{1, 1, to.shape[0], to.shape[1]};
    engine::copy_rows({rows.data, one}, {to.data, one, {0, 0, to.strides[0], 1}}, context);
    if (call.probe != nullptr) {
      MULTIHEAD_TRY(call.probe->visit(*call.probe, graph, frame, static_cast<ValueId>(id)));
    }
    return play(static_cast<size_t>(value.writer) + 1, graph, frame, call, context);
  }
  return {};
}

Status backward(const Graph& graph, const Frame& values, const Frame& gradients,
                const LayerCall& call, const GradientProbe* probe, Context& context) {
  BackwardStep step{graph, values, gradients, call, context, probe};
  // A place whose gradient has a part already gets the next one added.
  std::array<bool, kMostValues> has_part = {};
  has_part[static_cast<size_t>(graph.output)] = true;
  for (size_t at = graph.operations.size(); at-- > 0;) {
    const Operation& op = graph.operations[at];
    step.op = &op;
    // All operations that read this operation's output have been played.
    if (probe != nullptr) {
      MULTIHEAD_TRY(over_written(graph, at, [&](ValueId id) { return probe->visit(step, id); }));
    }
    if (!acts(op, call)) continue;
    step.adds = false;
    for (size_t id = 0; id < graph.values.size(); ++id) {
      if (has_part[id] && gradients.same_place(op.in, static_cast<ValueId>(id))) step.adds = true;
    }
    MULTIHEAD_TRY(op.kind->backward(step));
    for (const ValueId id : {op.in, op.in2, op.in3}) {
      if (id != kNoValue) has_part[static_cast<size_t>(id)] = true;
    }
  }
  return probe == nullptr ? Status() : probe->visit(step, graph.input);
}

}  // namespace multihead::nn
