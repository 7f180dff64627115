#include "engine/layers/linear.h"

#include "cpu/gemm/gemm.h"
#include "engine/attention/overlap.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/runtime/kernel_choice.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "engine/runtime/threads.h"

namespace multihead {
namespace engine {

Status check_linear(const LinearCall& call, const Dims& weight_shape) {
  const auto& [x, weight, bias, y, precision] = call;
  ConstAnyTensor whole = weight;
  whole.shape = weight_shape;
  MULTIHEAD_TRY(validate_linear(x, whole, bias, y));
  MULTIHEAD_TRY(validate_apart({{Name::kX, x}, {Name::kWeight, weight}, {Name::kBias, bias}},
                               {{Name::kY, y}}));
  return validate_enumerator(Name::kPrecision, precision, Precision::kBf16);
}

Status compute_linear(const LinearCall& call, Context& context) {
  const auto& [x, weight, bias, y, precision] = call;
  // Operands without elements may be null: with strides of 0, every address stays null.
  const bool reads = x.shape[1] > 0;
  const cpu::GemmParams product{.a = x.data,
                                .b = {.data = weight.data,
                                      .type = weight.dtype,
                                      .stride = {0, 0, reads ? weight.strides[0] : 0}},
                                .bias = bias.data,
                                .c = y.data,
                                .a_stride = reads ? x.strides[0] : 0,
                                .c_stride = y.strides[0],
                                .rows = x.shape[0],
                                .columns = weight.shape[0],
                                .depth = x.shape[1],
                                .b_transposed = true};
  if (product.rows == 0 || product.columns == 0) return {};
  const LinearChoice choice = choose_linear(precision, product.rows, weight.dtype);
  last_linear_of(context) = choice;
  const int threads = threads_for(product.operations(), context.threads());
  return run_gemm(product, cpu::projection_layout(product, threads, choice.tiles()), threads,
                  context);
}

}  // namespace engine

Status linear(const ConstTensor& x, const ConstAnyTensor& weight, const ConstTensor& bias,
              const Tensor& y, Context& context, Precision precision) {
  return engine::memory_guard([&]() -> Status {
    const engine::LinearCall call{x, weight, bias, y, precision};
    if (engine::Team* const team = engine::team_of(context); team != nullptr) {
      return team->run_linear(call, context);
    }
    MULTIHEAD_TRY(engine::check_linear(call, weight.shape));
    return engine::compute_linear(call, context);
  });
}

}  // namespace multihead
