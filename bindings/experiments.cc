// Experiments and statistics of heads as JavaScript calls them.
#include <emscripten/emscripten.h>

#include <algorithm>
#include <cstdint>

#include "arguments.h"
#include "call.h"
#include "engine/runtime/scratch.h"
#include "functions.h"
#include "handles.h"
#include "listed.h"
#include "multihead/lab.h"
#include "multihead/multihead.h"
#include "results.h"

namespace multihead::bindings {
namespace {

// An experiment, and handles to its model and trainer for the functions of models and trainers.
struct HeldExperiment {
  Experiment experiment;
  AnyModule module;
  int32_t model = 0, trainer = 0;
  bool has_batch = false;  // memory for the sequences of a step
};

// Checks that `bytes` can be allocated. An experiment stores sequences in vectors, which would trap
// when memory is exhausted: see memory.cc. Errors: kMemory.
Status room_for(uint64_t bytes) {
  engine::Buffer buffer;
  return buffer.reserve(bytes) ? Status() : Status::out_of_memory(bytes);
}

constexpr uint64_t kLength = 32;  // tokens per sequence

// Bytes of the tokens and targets of `count` sequences.
uint64_t bytes_of_sequences(const Experiment& experiment, int64_t count) {
  const uint64_t jobs = Experiment::jobs(experiment.options().kind).size();
  return static_cast<uint64_t>(count) * kLength * (1 + jobs) * sizeof(int32_t);
}

// Upper limit for the memory of evaluate(), which processes up to 64 sequences at a time.
uint64_t bytes_to_evaluate(const Experiment& experiment, int64_t sequences) {
  constexpr uint64_t kBytesOfHead = 512;  // measurements of a head, with and without ablation
  const int64_t count = std::clamp(sequences, int64_t{0}, int64_t{64});
  const TransformerConfig& config = experiment.model().config();
  const auto heads = static_cast<uint64_t>(config.num_layers * config.block.attention.num_heads);
  const auto logits = static_cast<uint64_t>(config.num_readouts * config.vocab_size);
  return bytes_of_sequences(experiment, count) +
         static_cast<uint64_t>(count) * kLength * logits * sizeof(float) + heads * kBytesOfHead;
}

}  // namespace

int32_t head_statistics() {
  const HeadStatisticsCall call;
  return run(call.from,
             [&] { return multihead::head_statistics(call.weights, call.tokens, call.outputs); });
}

int32_t experiment_create() {
  const ExperimentCall call;
  return make<HeldExperiment>(call.from, [&](HeldExperiment& held) {
    Status status = Experiment::create(call.options, held.experiment);
    if (!status.ok()) return status;
    // TypeScript prevents changes of the model through this handle.
    held.module = &const_cast<Transformer&>(held.experiment.model());
    held.model = handles.add(&held.module);
    held.trainer = handles.add(&held.experiment.trainer());
    return status;
  });
}
void experiment_release(int32_t handle) {
  const HeldExperiment& held = at<HeldExperiment>(handle);
  handles.clear(held.model);
  handles.clear(held.trainer);
  release_object<HeldExperiment>(handle);
}

void experiment_facts(int32_t handle) {
  const HeldExperiment& held = at<HeldExperiment>(handle);
  const ExperimentOptions& options = held.experiment.options();
  const TransformerConfig& config = held.experiment.model().config();
  write(ExperimentFacts{.model = held.model,
                        .trainer = held.trainer,
                        .num_heads = options.num_heads,
                        .num_layers = options.num_layers,
                        .steps = options.steps,
                        .batch = options.batch,
                        .embed_dim = config.block.attention.embed_dim,
                        .vocab_size = config.vocab_size,
                        .max_positions = config.max_positions,
                        .parameters = held.experiment.model().num_parameters(),
                        .jobs = Experiment::jobs(options.kind),
                        .patterns = Experiment::patterns(options.kind)});
}

extern "C" EMSCRIPTEN_KEEPALIVE int32_t multihead_experiment_step(int32_t handle) {
  return run([&] {
    HeldExperiment& held = at<HeldExperiment>(handle);
    Experiment& experiment = held.experiment;
    if (!held.has_batch) {
      const uint64_t bytes = bytes_of_sequences(experiment, experiment.options().batch);
      if (Status status = room_for(bytes); !status.ok()) return status;
      held.has_batch = true;
    }
    TrainingStep result;
    Status status = experiment.step(result, context());
    if (status.ok()) write(result);
    return status;
  });
}

int32_t experiment_evaluate(int32_t handle) {
  const EvaluationCall call;
  return run(call.from, [&] {
    const Experiment& experiment = at<HeldExperiment>(handle).experiment;
    Status status = room_for(bytes_to_evaluate(experiment, call.options.sequences));
    if (status.ok()) status = experiment.evaluate(call.options, last_evaluation, context());
    if (status.ok()) write(last_evaluation);
    return status;
  });
}
int32_t experiment_held_out(int32_t handle, int32_t first, int32_t count) {
  return run([&] {
    const Experiment& experiment = at<HeldExperiment>(handle).experiment;
    // held_out() refuses more sequences than there are.
    const int32_t needed = count > 1 << 20 ? 0 : count;
    Status status = room_for(bytes_of_sequences(experiment, needed));
    auto& [tokens, targets] = last_held_out;
    if (status.ok()) status = experiment.held_out(first, count, tokens, targets);
    if (status.ok()) write(last_held_out);
    return status;
  });
}

}  // namespace multihead::bindings
