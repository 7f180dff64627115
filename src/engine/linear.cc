#include "multihead/linear.h"

#include "cpu/kernels.h"
#include "engine/scratch.h"
#include "engine/threads.h"
#include "engine/validate.h"

namespace multihead {

Status linear(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
              const Tensor& y, Context& context) {
  if (Status status = engine::validate_linear(x, weight, bias, y); !status.ok()) return status;
  const cpu::LinearParams params{.x = x.data,
                                 .weight = weight.data,
                                 .bias = bias.data,
                                 .y = y.data,
                                 .x_stride = x.strides[0],
                                 .weight_stride = weight.strides[0],
                                 .y_stride = y.strides[0],
                                 .rows = x.shape[0],
                                 .in = x.shape[1],
                                 .out = weight.shape[0]};
  if (params.rows == 0 || params.out == 0) return {};
  const cpu::LinearLayout layout = cpu::linear_layout(params);
  engine::Scratch& scratch = context.scratch();
  if (Status status = scratch.reserve(context.threads(), layout.scratch_bytes); !status.ok()) {
    return status;
  }
  const int64_t panels = (params.out + layout.panel_columns - 1) / layout.panel_columns;
  engine::parallel_for(context.threads(), panels, [&](int64_t panel, int thread) {
    cpu::linear_panel(params, panel * layout.panel_columns, scratch.of_thread(thread));
  });
  return {};
}

}  // namespace multihead
