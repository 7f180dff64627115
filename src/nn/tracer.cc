#include "nn/tracer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/scratch.h"

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
                                       "head_shares",
                                       "output"};

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
    std::string all;
    for (const std::string_view known : kNames) {
      all += (all.empty() ? "" : ", ") + std::string(known);
    }
    return {StatusCode::kOption, "trace.wanted", "names out of " + all, name};
  }
  return {};
}

Status Tracer::begin(int64_t floats) {
  if (trace_ == nullptr) return {};
  engine::Buffer probe;
  const uint64_t bytes = static_cast<uint64_t>(floats) * sizeof(float) + 4096;
  if (!probe.reserve(bytes)) return Status::out_of_memory(bytes);
  trace_->steps.clear();
  return {};
}

Tensor Tracer::add(const char* name, const Dims& shape) {
  trace_->steps.push_back({name, shape, std::vector<float>(static_cast<size_t>(shape.elements()))});
  return {trace_->steps.back().values.data(), shape};
}

void Tracer::add_sequence(const char* name, const Sequence<const float>& x) {
  if (!wants(name)) return;
  float* to = add(name, {x.batch, x.tokens, x.width}).data;
  for (int64_t b = 0; b < x.batch; ++b) {
    for (int64_t n = 0; n < x.tokens; ++n) to = std::copy_n(x.token(b, n), x.width, to);
  }
}

void Tracer::add_heads(const char* name, const ConstTensor& x) {
  if (!wants(name)) return;
  float* to = add(name, x.shape).data;
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      for (int64_t n = 0; n < x.shape[2]; ++n) {
        to = std::copy_n(x.data + b * x.strides[0] + h * x.strides[1] + n * x.strides[2],
                         x.shape[3], to);
      }
    }
  }
}

}  // namespace nn
}  // namespace multihead
