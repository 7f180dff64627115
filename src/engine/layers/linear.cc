#include "multihead/linear.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/gemm/gemm.h"
#include "engine/attention/overlap.h"
#include "engine/attention/validate.h"
#include "engine/error/enumerators.h"
#include "engine/error/error.h"
#include "engine/error/guard.h"
#include "engine/layers/gemm.h"
#include "engine/runtime/linear_choice.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "engine/runtime/threads.h"

namespace multihead {
namespace {

// True if `weight` has only the rows for the outputs of this member of a team.
bool is_share(const engine::Team* team, const ConstAnyTensor& weight, const Tensor& y) {
  if (team == nullptr || weight.shape.rank() != 2 || y.shape.rank() != 2) return false;
  const int64_t outputs = y.shape[1];
  return weight.shape[0] != outputs &&
         weight.shape[0] == team->end_output(outputs) - team->first_output(outputs);
}

}  // namespace

Status linear(const ConstTensor& x, const ConstAnyTensor& weight, const ConstTensor& bias,
              const Tensor& y, Context& context, Precision precision) {
  return engine::memory_guard([&]() -> Status {
    engine::Team* const team = engine::team_of(context);
    const bool shares = is_share(team, weight, y);
    ConstAnyTensor whole = weight;
    if (shares) whole.shape[0] = y.shape[1];
    MULTIHEAD_TRY(engine::validate_linear(x, whole, bias, y));
    MULTIHEAD_TRY(engine::validate_apart(x, weight, bias, y));
    MULTIHEAD_TRY(
        engine::validate_enumerator(engine::Name::kPrecision, precision, Precision::kBf16));
    // Operands without elements may be null: with strides of 0, every address stays null.
    const bool reads = x.shape[1] > 0;
    cpu::GemmParams product{.a = x.data,
                            .b = {.data = weight.data,
                                  .type = weight.dtype,
                                  .stride = {0, 0, reads ? weight.strides[0] : 0}},
                            .bias = bias.data,
                            .c = y.data,
                            .a_stride = reads ? x.strides[0] : 0,
                            .c_stride = y.strides[0],
                            .rows = x.shape[0],
                            .columns = whole.shape[0],
                            .depth = x.shape[1],
                            .b_transposed = true};
    if (product.rows == 0 || product.columns == 0) return {};
    const engine::LinearChoice choice =
        engine::choose_linear(precision, product.rows, weight.dtype);
    engine::last_linear_of(context) = choice;
    const double operations = product.operations();
    const bool divides = shares || (team != nullptr && team->is_worth(operations));
    const int64_t outputs = product.columns;
    if (divides) {
      const int64_t first = team->first_output(outputs);
      product.columns = team->end_output(outputs) - first;
      product.c += first;
      if (product.bias != nullptr) product.bias += first;
      if (!shares) {
        product.b.data = static_cast<const std::byte*>(weight.data) +
                         first * product.b.stride[2] * bytes_of(weight.dtype);
      }
    }
    if (product.columns > 0) {
      const int threads = engine::threads_for(operations, context.threads());
      MULTIHEAD_TRY(engine::run_gemm(product, choice.tiles(), threads, context));
    }
    if (!divides || !team->exchanges_outputs()) return {};
    std::vector<uint32_t> bounds;
    for (int member = 0; member <= team->members(); ++member) {
      bounds.push_back(static_cast<uint32_t>(team->first_output(outputs, member)) * sizeof(float));
    }
    return team->exchange(y.data, product.rows,
                          product.c_stride * static_cast<int64_t>(sizeof(float)), bounds);
  });
}

}  // namespace multihead
