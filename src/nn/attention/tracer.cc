#include "nn/attention/tracer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "engine/layers/elementwise.h"
#include "engine/runtime/scratch.h"
#include "rules/integers.h"

namespace multihead {
namespace {

constexpr std::string_view kNames[] = {"x",
                                       "x_key",
                                       "x_value",
                                       "q_latent",
                                       "kv_latent",
                                       "k_rope",
                                       "q",
                                       "k",
                                       "v",
                                       "q_heads",
                                       "k_heads",
                                       "v_heads",
                                       "scores",
                                       "scaled_scores",
                                       "masked_scores",
                                       "weights",
                                       "latent_out",
                                       "heads_out",
                                       "merged",
                                       "per_head_output",
                                       "output"};

constexpr size_t kAlignment = 16;  // in floats

}  // namespace

std::span<const std::string_view> trace_names() { return kNames; }

bool Trace::wants(std::string_view name) const {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
}

const TraceStep* Trace::find(std::string_view name) const {
  for (const TraceStep& step : steps) {
    if (step.name == name) return &step;
  }
  return nullptr;
}

namespace nn {

Status validate_trace(const Trace* trace) {
  if (trace == nullptr) return {};
  for (const std::string& name : trace->wanted) {
    if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames)) continue;
    return engine::text_error(StatusCode::kOption, engine::Name::kTraceWanted,
                              engine::Message::kTraceName, engine::printable(name));
  }
  return {};
}

Status Tracer::begin(double floats) {
  if (trace_ == nullptr) return {};
  auto memory = std::make_shared<engine::Buffer>();
  // Each step begins at a multiple of 64 bytes.
  constexpr auto kSteps = static_cast<double>(std::size(kNames));
  const double needed = (floats + kSteps * kAlignment) * sizeof(float);
  const auto bytes = needed < 0x1p62 ? static_cast<uint64_t>(needed) : uint64_t{1} << 62U;
  if (!memory->reserve(bytes)) return Status::out_of_memory(bytes);
  auto* const first = static_cast<float*>(memory->data());
  next_ = {std::move(memory), first};
  steps_.reserve(std::size(kNames));
  return {};
}

Tensor Tracer::add(const char* name, const Dims& shape) {
  const auto floats = static_cast<size_t>(shape.elements());
  const std::shared_ptr<float> values = next_;
  next_ = {values, values.get() + rules::round_up(floats, kAlignment)};
  std::fill_n(values.get(), floats, 0.0F);
  steps_.push_back({name, shape, {values, floats}});
  return {values.get(), shape};
}

void Tracer::end() {
  if (trace_ != nullptr) trace_->steps = std::move(steps_);
}

void Tracer::add_sequence(const char* name, const Sequence<const float>& x) {
  if (!wants(name)) return;
  const Tensor to = add(name, {x.batch, x.tokens, x.width});
  engine::copy_rows(x.heads(1), {to.data, {x.batch, 1, x.tokens, x.width}}, context_);
}

void Tracer::add_heads(const char* name, const ConstTensor& x) {
  if (wants(name)) engine::copy_rows(x, add(name, x.shape), context_);
}

}  // namespace nn
}  // namespace multihead
