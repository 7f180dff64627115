#include <algorithm>
#include <cstdint>

#include "cpu/elementwise/elementwise.h"
#include "cpu/gemm/gemm.h"
#include "engine/error/error.h"
#include "engine/layers/gradients.h"
#include "engine/layers/linear.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/kernel_choice.h"
#include "engine/runtime/scratch.h"
#include "rules/integers.h"

namespace multihead::engine {
namespace {

Status gradient_of_input(const LinearBackward& call, bool tiles, Context& context) {
  const cpu::GemmParams product{
      .a = call.d_y.data,
      .b = {.data = call.weight.data, .stride = {0, 0, call.weight.strides[0]}},
      .c = call.d_x.data,
      .a_stride = call.d_y.strides[0],
      .c_stride = call.d_x.strides[0],
      .rows = call.d_x.shape[0],
      .columns = call.d_x.shape[1],
      .depth = call.d_y.shape[1],
      .adds = call.adds_to_d_x};
  if (product.rows == 0 || product.columns == 0) return {};
  if (product.depth == 0) {  // the operands may be null
    for (int64_t row = 0; row < product.rows && !product.adds; ++row) {
      std::fill_n(product.c + row * product.c_stride, product.columns, 0.0F);
    }
    return {};
  }
  const int threads = threads_for(product.operations(), context.threads());
  return run_gemm(product, cpu::product_layout(product, threads, tiles), threads, context);
}

// Number of chunks of rows for d_y^T x. If d_weight has few blocks, the rows are cut into chunks
// that several threads sum; the chunks are added in order. Depends only on the shape.
int64_t chunks_of(int64_t rows, int64_t out, int64_t in) {
  constexpr int64_t kLeastRows = 1024, kBlockFloats = 64 * 64, kEnoughBlocks = 16;
  const int64_t blocks = std::max<int64_t>(1, out * in / kBlockFloats);
  return std::clamp<int64_t>(rows / kLeastRows, 1, std::max<int64_t>(1, kEnoughBlocks / blocks));
}

Status gradients_of_parameters(const LinearBackward& call, bool tiles, Context& context) {
  const int64_t rows = call.d_y.shape[0], out = call.d_y.shape[1];
  const int64_t in = call.d_weight.given() ? call.d_weight.shape[1] : 0;
  if (rows == 0 || out == 0 || (in == 0 && call.d_bias == nullptr)) return {};
  const int64_t chunks = chunks_of(rows, out, in);
  const int64_t chunk_rows = rules::ceil_div(rows, chunks);

  // Each chunk stores d_weight without gaps, then d_bias.
  Scratch& scratch = scratch_of(context);
  const int64_t chunk_floats = out * in + out;
  float* partial = nullptr;
  if (chunks > 1) {
    const uint64_t bytes = static_cast<uint64_t>(chunks * chunk_floats) * sizeof(float);
    if (!scratch.gradients().reserve(bytes)) return Status::out_of_memory(bytes);
    partial = static_cast<float*>(scratch.gradients().data());
  }
  const auto product_of = [&](int64_t chunk) {
    const int64_t first = chunk * chunk_rows;
    const bool whole = chunks == 1;
    return cpu::GemmParams{
        .a = call.d_y.data + first * call.d_y.strides[0],
        .b = {.data = in == 0 ? nullptr : call.x.data + first * call.x.strides[0],
              .stride = {0, 0, in == 0 ? 0 : call.x.strides[0]}},
        .c = whole ? call.d_weight.data : partial + chunk * chunk_floats,
        .a_stride = call.d_y.strides[0],
        .c_stride = whole && in > 0 ? call.d_weight.strides[0] : in,
        .rows = out,
        .columns = in,
        .depth = std::min(chunk_rows, rows - first),
        .a_transposed = true,
        .adds = whole};
  };
  const cpu::GemmParams first = product_of(0);
  const int threads =
      threads_for(first.operations() * static_cast<double>(chunks), context.threads());
  const auto threads_of_chunk = static_cast<int>(rules::ceil_div<int64_t>(threads, chunks));
  const GemmJobs jobs(first, cpu::product_layout(first, threads_of_chunk, tiles));
  MULTIHEAD_TRY(scratch.reserve(threads, jobs.layout.scratch_bytes));
  const int64_t chunk_jobs = jobs.row_jobs * std::max<int64_t>(1, jobs.column_jobs);
  MULTIHEAD_TRY(parallel_for_or_abort(
      context, "linear backward", threads, chunks * chunk_jobs, [&](int64_t job, int thread) {
        const int64_t chunk = job / chunk_jobs, block = job % chunk_jobs;
        const int64_t row = jobs.first_row(block), column = jobs.first_column(block);
        const cpu::GemmParams product = product_of(chunk);
        if (in > 0)
          cpu::gemm_block(product, jobs.layout, row, column, scratch.thread_memory(thread));
        // Jobs of the first columns also sum d_bias: they have just read these columns of d_y.
        if (column > 0 || call.d_bias == nullptr) return;
        const int64_t count = std::min(jobs.layout.job_rows, out - row);
        float* sums = call.d_bias + row;
        if (chunks > 1) {
          sums = partial + chunk * chunk_floats + out * in + row;
          std::fill_n(sums, count, 0.0F);
        }
        cpu::add_column_sums(product.a + row, product.a_stride, product.depth, count, sums);
      }));
  if (chunks == 1) return {};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* const sums = partial + chunk * chunk_floats;
    for (int64_t row = 0; row < out && in > 0; ++row) {
      float* const to = call.d_weight.data + row * call.d_weight.strides[0];
      cpu::add(to, sums + row * in, to, in);
    }
    if (call.d_bias != nullptr) cpu::add(call.d_bias, sums + out * in, call.d_bias, out);
  }
  return {};
}

}  // namespace

Status linear_backward(const LinearBackward& call, Context& context) {
  const LinearChoice choice = choose_linear(call.precision, call.d_y.shape[0], DType::kF32);
  last_linear_of(context) = choice;
  if (call.d_x.given()) {
    MULTIHEAD_TRY(gradient_of_input(call, choice.tiles(), context));
  }
  return gradients_of_parameters(call, choice.tiles(), context);
}

}  // namespace multihead::engine
