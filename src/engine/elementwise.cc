#include "multihead/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "cpu/elementwise.h"
#include "engine/enumerators.h"
#include "engine/guard.h"
#include "engine/threads.h"
#include "engine/validate.h"

namespace multihead {
namespace {

using engine::Axes;
using engine::Message;
using engine::Name;
using engine::validate_exact;
using engine::validate_rank;

// A job of some thousand elements: a thread's turn costs less than its work then.
template <class Run>
void over_rows(int64_t rows, int64_t width, Context& context, Run&& run) {
  const int64_t chunk = std::max<int64_t>(1, 16384 / std::max<int64_t>(width, 1));
  engine::parallel_for(context.threads(), (rows + chunk - 1) / chunk, [&](int64_t job, int) {
    run(job * chunk, std::min(rows, (job + 1) * chunk));
  });
}

Status normalise(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                 float epsilon, bool centred, const Tensor& y, Context& context) {
  if (Status status = validate_rank(Name::kX, Axes::kRows, x, 2); !status.ok()) return status;
  const int64_t width = x.shape[1];
  for (const Status& status : {validate_exact(Name::kX, Axes::kRows, x, x.shape),
                               validate_exact(Name::kY, Axes::kRows, y, x.shape)}) {
    if (!status.ok()) return status;
  }
  for (const auto& [name, tensor] : {std::pair{Name::kWeight, &weight}, {Name::kBias, &bias}}) {
    if (!tensor->given()) continue;
    if (Status status = validate_exact(name, Axes::kWidth, *tensor, {width}); !status.ok()) {
      return status;
    }
  }
  if (!(epsilon >= 0.0F) || std::isinf(epsilon)) {
    return engine::real_error(Name::kEpsilon, Message::kFiniteNotNegative, epsilon);
  }
  if (width == 0) return {};
  const cpu::NormParams params{.x = x.data,
                               .y = y.data,
                               .x_stride = x.strides[0],
                               .y_stride = y.strides[0],
                               .width = width,
                               .weight = weight.data,
                               .bias = bias.data,
                               .epsilon = epsilon,
                               .centred = centred};
  over_rows(x.shape[0], width, context,
            [&](int64_t first, int64_t end) { cpu::norm_rows(params, first, end); });
  return {};
}

Status activated(const ConstTensor& gate, const ConstTensor& x, Activation activation,
                 const Tensor& y, Context& context) {
  if (Status status = engine::validate_enumerator(Name::kActivation, activation, Activation::kSilu);
      !status.ok()) {
    return status;
  }
  // Rows of nothing need no memory, and no address is computed from none.
  if (gate.shape[1] == 0) return {};
  const cpu::ActivationParams params{.gate = gate.data,
                                     .x = x.data,
                                     .y = y.data,
                                     .gate_stride = gate.strides[0],
                                     .x_stride = x.strides[0],
                                     .y_stride = y.strides[0],
                                     .width = gate.shape[1],
                                     .activation = activation};
  over_rows(gate.shape[0], params.width, context,
            [&](int64_t first, int64_t end) { cpu::activation_rows(params, first, end); });
  return {};
}

}  // namespace

Status layer_norm(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                  float epsilon, const Tensor& y, Context& context) {
  return engine::memory_guard(
      [&]() -> Status { return normalise(x, weight, bias, epsilon, true, y, context); });
}

Status rms_norm(const ConstTensor& x, const ConstTensor& weight, float epsilon, const Tensor& y,
                Context& context) {
  return engine::memory_guard(
      [&]() -> Status { return normalise(x, weight, {}, epsilon, false, y, context); });
}

Status activate(const ConstTensor& x, Activation activation, const Tensor& y, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (Status status = validate_rank(Name::kX, Axes::kRows, x, 2); !status.ok()) return status;
    for (const Status& status : {validate_exact(Name::kX, Axes::kRows, x, x.shape),
                                 validate_exact(Name::kY, Axes::kRows, y, x.shape)}) {
      if (!status.ok()) return status;
    }
    return activated(x, {}, activation, y, context);
  });
}

Status activate_gated(const ConstTensor& gate, const ConstTensor& x, Activation activation,
                      const Tensor& y, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (Status status = validate_rank(Name::kGate, Axes::kRows, gate, 2); !status.ok())
      return status;
    for (const Status& status : {validate_exact(Name::kGate, Axes::kRows, gate, gate.shape),
                                 validate_exact(Name::kX, Axes::kRows, x, gate.shape),
                                 validate_exact(Name::kY, Axes::kRows, y, gate.shape)}) {
      if (!status.ok()) return status;
    }
    return activated(gate, x, activation, y, context);
  });
}

}  // namespace multihead
