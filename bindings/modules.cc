// Modules, blocks and transformers as JavaScript calls them: parameters, calls, caches, and listed
// tensors.
#include <emscripten/em_js.h>
#include <emscripten/emscripten.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "functions.h"
#include "handles.h"
#include "lab.h"
#include "listed.h"
#include "memory.h"
#include "multihead/multihead.h"
#include "nn/parameters.h"
#include "nn/transformer/module_access.h"
#include "results.h"
#include "training.h"

// Copies elements of a parameter to an address during a load; `key` identifies the parameter. Calls
// the function that loader.ts gave to the glue; returns 0 if it fails.
EM_JS(int32_t, multihead_read_parameter,
      (uint32_t key, double first, int32_t count, uint32_t address),
      { return Module['readParameter'](key >>> 0, first, count, address >>> 0); });

namespace multihead::bindings {
namespace {

// Data of the tensors that the last call has listed, except parameters.
Trace last_trace;
std::vector<Trace> last_traces;  // one per layer of a transformer
engine::Buffer last_gradients;
// Parameters of a module, gathered from the members of a team.
engine::Buffer last_parameters;

// Returns the trace to record; null if no step is requested.
Trace* trace_of(uint32_t steps) {
  last_trace.wanted.clear();
  for (const std::string_view name : trace_names()) {
    if ((steps & 1U) != 0) last_trace.wanted.emplace_back(name);
    steps >>= 1U;
  }
  return last_trace.wanted.empty() ? nullptr : &last_trace;
}

void list_steps(const Trace& trace, const std::string& prefix) {
  for (const TraceStep& step : trace.steps) {
    last_list.push_back({prefix + step.name, step.shape, step.values.data()});
  }
}

// Runs a call that records steps, and lists them.
template <class Work>
int32_t run_traced(const Arguments& from, Work work) {
  return run(from, [&] {
    Status status = work();
    if (!status.ok()) release_listed();
    list_steps(last_trace, "");
    for (size_t layer = 0; layer < last_traces.size(); ++layer) {
      list_steps(last_traces[layer], std::to_string(layer) + ".");
    }
    return status;
  });
}

// Calls `work` with a handle's module, by its own type.
template <class Work>
auto with_module(int32_t handle, Work work) {
  return std::visit([&](auto* module) { return work(*module); }, at<AnyModule>(handle));
}

template <class Module, class Call>
int32_t create_module() {
  const Call call;
  return make<AnyModule>(call.from, [&](AnyModule& made) {
    auto module = std::make_unique<Module>();
    Status status = Module::create(call.config, *module);
    if (status.ok()) made = module.release();
    return status;
  });
}

// Lists the parameters. `shares_alone`: lists nothing if this instance stores all parameters.
template <class Module>
int32_t list_parameters(const Module& module, int32_t shares_alone) {
  const nn::Parameters* const own = nn::parameters_of(module);
  const bool shares = own != nullptr && own->is_share();
  if (!shares && shares_alone != 0) return 0;
  return run_listing([&](StateDict& dict) {
    if (!shares) return module.state_dict(dict);
    return own->gather(*engine::team_of(context()), last_parameters, dict);
  });
}

// Buffer that JavaScript fills. Pushed tensors have keys instead of addresses.
engine::Buffer last_read;

const void* read_parameter(const ConstAnyTensor& tensor, int64_t first, int64_t count) {
  const bool read =
      multihead_read_parameter(address_of(tensor.data), static_cast<double>(first),
                               static_cast<int32_t>(count), address_of(last_read.data())) != 0;
  return read ? last_read.data() : nullptr;
}

// Loads parameters. In a call of a team, the module loads only the member's share, unless `whole`
// is 1: then it loads all, with the values that its share already has.
template <class Module>
int32_t load(Module& module, int32_t names, int32_t whole) {
  const StateDict dict = take_pushed();
  const int32_t status = run([&]() -> Status {
    constexpr uint64_t kBytes = nn::Loading::kMostRead * sizeof(float);
    if (!last_read.reserve(kBytes)) return Status::out_of_memory(kBytes);
    engine::Team* const team = whole == 0 ? engine::team_of(context()) : nullptr;
    return nn::load_parameters(module, dict, static_cast<ParameterNames>(names),
                               {.team = team, .read = read_parameter, .same_values = whole != 0});
  });
  last_read = {};
  return status;
}

// Runs work that adds to the gradients of all parameters, and stores the named gradients in `dict`.
template <class Module, class Work>
Status with_gradients(const Module& module, StateDict& dict, Work work) {
  const auto count = static_cast<size_t>(module.num_parameters());
  const uint64_t bytes = (static_cast<uint64_t>(count) + 1) * sizeof(float);
  if (!last_gradients.reserve(bytes)) return Status::out_of_memory(bytes);
  std::memset(last_gradients.data(), 0, static_cast<size_t>(bytes));
  const std::span<float> block(static_cast<float*>(last_gradients.data()), count);
  Status status = work(block);
  if (status.ok()) return module.named(block, dict);
  last_gradients = {};
  return status;
}

// A cache of a module or block, or of a transformer.
using ModuleCache = std::variant<MultiHeadAttentionCache, TransformerCache>;

template <class Cache, class Module>
int32_t cache_for(const Module& module) {
  const CacheConfigCall call;
  return make<ModuleCache>(call.from, [&](ModuleCache& made) {
    return nn::create_cache(module, call.config, engine::team_of(context()), made.emplace<Cache>());
  });
}

// Returns a handle's cache. For a cache of the other kind, returns one that was not created, which
// every module rejects.
template <class Cache>
Cache& cache_at(int32_t handle) {
  static Cache none;
  Cache* const cache = std::get_if<Cache>(&at<ModuleCache>(handle));
  return cache == nullptr ? none : *cache;
}

bool is_of_transformer(int32_t handle) {
  return std::holds_alternative<TransformerCache>(at<ModuleCache>(handle));
}

int32_t create_cache(const MultiHeadAttention& module) {
  return cache_for<MultiHeadAttentionCache>(module);
}
int32_t create_cache(const TransformerBlock& block) { return create_cache(block.attention()); }
int32_t create_cache(const Transformer& model) { return cache_for<TransformerCache>(model); }

int32_t forward(const MultiHeadAttention& module) {
  ForwardCall call;
  return run_traced(call.from, [&] {
    std::optional<MultiHeadAttention> changed;
    return apply_lab(module, call.options, changed)
        .forward(call.inputs, call.options, call.outputs, trace_of(call.steps), context());
  });
}
int32_t step(const MultiHeadAttention& module, int32_t cache) {
  StepCall call;
  return run_traced(call.from, [&] {
    std::optional<MultiHeadAttention> changed;
    return apply_lab(module, call.options, changed)
        .step(call.x, call.options, call.outputs, cache_at<MultiHeadAttentionCache>(cache),
              trace_of(call.steps), context());
  });
}
int32_t backward(const MultiHeadAttention& given) {
  ModuleBackwardCall call;
  std::optional<MultiHeadAttention> changed;
  const MultiHeadAttention& module = apply_lab(given, call.options, changed);
  return run_listing(call.from, [&](StateDict& dict) {
    return with_gradients(module, dict, [&](std::span<float> block) {
      MultiHeadAttentionGradients gradients = call.gradients;
      Status status = module.gradients_in(block, gradients.weights);
      if (!status.ok()) return status;
      return module.backward(call.inputs, call.options, call.d_out, nullptr, gradients, context());
    });
  });
}

int32_t forward(const TransformerBlock& block) {
  BlockCall call;
  return run_traced(call.from, [&] {
    MULTIHEAD_TRY(apply_lab(block.config(), call.options));
    return block.forward(call.x, call.options, call.outputs, trace_of(call.steps), context());
  });
}
int32_t step(const TransformerBlock& block, int32_t cache) {
  BlockCall call;
  return run_traced(call.from, [&] {
    MULTIHEAD_TRY(apply_lab(block.config(), call.options));
    return block.step(call.x, call.options, call.outputs, cache_at<MultiHeadAttentionCache>(cache),
                      trace_of(call.steps), context());
  });
}
int32_t backward(const TransformerBlock& block) {
  BlockBackwardCall call;
  return run_listing(call.from, [&](StateDict& dict) {
    MULTIHEAD_TRY(apply_lab(block.config(), call.options));
    return with_gradients(block, dict, [&](std::span<float> gradients) {
      TransformerBlockActivations activations;
      // The output is not needed: write it to d_x, which backward() then overwrites.
      Status status = block.forward(
          call.x, call.options, {.out = call.d_x, .activations = &activations}, nullptr, context());
      if (!status.ok()) return status;
      return block.backward(call.x, call.options, call.d_out, activations, call.d_x, gradients,
                            context());
    });
  });
}

// Calls forward() without a cache, step() with one.
int32_t call_transformer(const Transformer& model, TransformerCache* cache) {
  TransformerCall call;
  return run_traced(call.from, [&] {
    MULTIHEAD_TRY(apply_lab(model.config().block, call.options));
    if (const Trace* const wanted = trace_of(call.steps); wanted != nullptr) {
      last_traces.assign(static_cast<size_t>(model.config().num_layers), *wanted);
      call.outputs.traces = last_traces;
    }
    return cache == nullptr
               ? model.forward(call.tokens, call.batch, call.options, call.outputs, context())
               : model.step(call.tokens, call.options, call.outputs, *cache, context());
  });
}
int32_t forward(const Transformer& model) { return call_transformer(model, nullptr); }
int32_t step(const Transformer& model, int32_t cache) {
  return call_transformer(model, &cache_at<TransformerCache>(cache));
}

}  // namespace

void release_listed() {
  last_list.clear();
  last_trace = {};
  last_traces.clear();
  last_gradients = {};
  last_parameters = {};
  last_evaluation = {};
  last_held_out = {};
}

int32_t module_create(int32_t kind) {
  switch (static_cast<ModuleKind>(kind)) {
    case ModuleKind::kAttention:
      return create_module<MultiHeadAttention, ModuleConfigCall>();
    case ModuleKind::kBlock:
      return create_module<TransformerBlock, BlockConfigCall>();
    case ModuleKind::kTransformer:
      break;
  }
  return create_module<Transformer, TransformerConfigCall>();
}
void module_release(int32_t handle) {
  with_module(handle, [](auto& module) { delete &module; });
  release_object<AnyModule>(handle);
}
int32_t module_load(int32_t handle, int32_t names, int32_t whole) {
  return with_module(handle, [&](auto& module) { return load(module, names, whole); });
}
int32_t transformer_initialize(int32_t handle) {
  const InitializeCall call;
  return run(call.from, [&] {
    return nn::initialize_parameters(transformer_at(handle), call.initialization, call.names,
                                     {.team = engine::team_of(context())});
  });
}
double module_parameters(int32_t handle) {
  return with_module(
      handle, [](const auto& module) { return static_cast<double>(module.num_parameters()); });
}
int32_t module_state(int32_t handle, int32_t shares_alone) {
  return with_module(handle,
                     [&](const auto& module) { return list_parameters(module, shares_alone); });
}
int32_t module_forward(int32_t handle) {
  return with_module(handle, [](const auto& module) { return forward(module); });
}
int32_t module_step(int32_t handle, int32_t cache) {
  return with_module(handle, [&](const auto& module) { return step(module, cache); });
}
int32_t module_backward(int32_t handle) {
  const AnyModule& module = at<AnyModule>(handle);
  if (const auto* const attention = std::get_if<MultiHeadAttention*>(&module)) {
    return backward(**attention);
  }
  return backward(*std::get<TransformerBlock*>(module));
}

int32_t module_cache_create(int32_t handle) {
  return with_module(handle, [](const auto& module) { return create_cache(module); });
}
void module_cache_release(int32_t handle) { release_object<ModuleCache>(handle); }
int32_t module_cache_truncate(int32_t handle, int32_t length) {
  return run([&] {
    return agreed([&] {
      return is_of_transformer(handle) ? cache_at<TransformerCache>(handle).truncate(length)
                                       : cache_at<MultiHeadAttentionCache>(handle).truncate(length);
    });
  });
}
int32_t module_cache_length(int32_t handle) {
  return static_cast<int32_t>(is_of_transformer(handle)
                                  ? cache_at<TransformerCache>(handle).length()
                                  : cache_at<MultiHeadAttentionCache>(handle).length());
}
double module_cache_bytes(int32_t handle) {
  return static_cast<double>(is_of_transformer(handle)
                                 ? cache_at<TransformerCache>(handle).bytes()
                                 : cache_at<MultiHeadAttentionCache>(handle).kv().bytes());
}

int32_t trainer_create(int32_t model) {
  const TrainerOptionsCall call;
  return make<Trainer>(call.from, [&](Trainer& trainer) {
    return Trainer::create(transformer_at(model), call.options, trainer);
  });
}

extern "C" EMSCRIPTEN_KEEPALIVE int32_t multihead_train(int32_t handle, bool updates) {
  TrainingCall call;
  return run(call.from, [&] {
    MULTIHEAD_TRY(apply_lab(at<Trainer>(handle).model().config().block, call.options));
    return train(handle, call, call.options, updates);
  });
}

}  // namespace multihead::bindings
