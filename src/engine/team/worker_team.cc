#include "engine/runtime/team.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/error/error.h"
#include "engine/layers/linear.h"

namespace multihead::engine {
namespace {

using rules::AttentionParams;

// Exchanges `rows` rows of each head of one batch entry. Before, each member has the rows of its
// query heads.
Status exchange_heads(Team& team, const AttentionParams& p, void* data,
                      const rules::RowStrides& stride, int64_t rows, int64_t width,
                      int64_t element_bytes) {
  if (data == nullptr) return {};
  const bool side_by_side = stride[1] < stride[2];
  const int64_t last = side_by_side ? width : (rows - 1) * stride[2] + width;
  std::vector<uint32_t> bounds;
  for (int member = 0; member <= team.members(); ++member) {
    const int64_t head = team.first_of(p.kv_heads, member) * p.group();
    const int64_t at = head < p.heads ? head * stride[1] : (p.heads - 1) * stride[1] + last;
    bounds.push_back(static_cast<uint32_t>(at * element_bytes));
  }
  return team.exchange(data, side_by_side ? rows : 1, side_by_side ? stride[2] * element_bytes : 0,
                       bounds);
}

// Exchanges the captured scores of one batch entry.
Status exchange_capture(Team& team, const AttentionParams& p, const ScoreCapture& capture,
                        int64_t batch) {
  const Tensor& out = capture.out;
  if (out.data == nullptr || out.shape.elements() == 0) return {};
  float* const data = out.data + batch * out.strides[0];
  const rules::RowStrides stride{out.strides[0], out.strides[1], out.strides[2]};
  const int64_t rows = out.shape[2], width = out.shape[3];
  if (capture.heads.empty()) {
    return exchange_heads(team, p, data, stride, rows, width, sizeof(float));
  }
  // One by one, because they may have any order.
  int64_t place = 0;
  for (const int32_t head : capture.heads) {
    MULTIHEAD_TRY(team.exchange_rows(
        data + place++ * stride[1],
        ((rows - 1) * stride[2] + width) * static_cast<int64_t>(sizeof(float)),
        [&](int member) { return team.first_of(p.kv_heads, member) > head / p.group() ? 1 : 0; }));
  }
  return {};
}

Status exchange_captures(Team& team, const AttentionParams& p, int64_t batch) {
  const rules::RowStrides& stride = p.dropout_mask.stride;
  uint8_t* const mask = p.dropout_mask.data == nullptr ? nullptr : p.dropout_mask.row(batch, 0, 0);
  MULTIHEAD_TRY(exchange_heads(team, p, mask, stride, p.queries, p.keys, 1));
  MULTIHEAD_TRY(exchange_capture(team, p, p.weights, batch));
  for (const ScoreCapture& capture : p.captures) {
    MULTIHEAD_TRY(exchange_capture(team, p, capture, batch));
  }
  return {};
}

}  // namespace

Status WorkerTeam::run_attention(ForwardPlan& plan, Context& context) {
  const AttentionParams& p = plan.params;
  const int64_t first = first_of(p.kv_heads), end = end_of(p.kv_heads);
  if (plan.stored_heads && (plan.stored_heads->first != first || plan.stored_heads->last != end)) {
    return member_left();
  }
  const int64_t bytes = bytes_of(p.out.type);
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const WorkRange own{.first_head = batch * p.kv_heads + first,
                        .end_head = batch * p.kv_heads + end,
                        .first_block = 0,
                        .end_block = plan.choice.blocks.row_parts};
    finish_plan(plan, context.threads(), nullptr, &own);
    MULTIHEAD_TRY(execute(plan, context));
    void* const out = p.out.data == nullptr
                          ? nullptr
                          : static_cast<char*>(p.out.data) + batch * p.out.stride[0] * bytes;
    MULTIHEAD_TRY(exchange_heads(*this, p, out, p.out.stride, p.queries, p.value_dim, bytes));
    if (p.lse.data != nullptr) {
      MULTIHEAD_TRY(exchange_heads(*this, p, p.lse.row(batch, 0, 0), p.lse.stride, p.queries, 1,
                                   sizeof(float)));
    }
    MULTIHEAD_TRY(exchange_captures(*this, p, batch));
  }
  return {};
}

Status WorkerTeam::run_linear(const LinearCall& call, Context& context) {
  const ConstAnyTensor& weight = call.weight;
  const bool is_matrix = weight.shape.rank() == 2;
  return linear_in_team(
      *this, call.x, is_matrix ? weight.shape[0] : 0, call.bias, call.y,
      [&](int64_t rows) {
        Dims shape = weight.shape;
        if (is_matrix) shape[0] = rows;
        return check_linear(call, shape);
      },
      [&](int64_t first, int64_t count, const ConstTensor& bias, const Tensor& y) {
        ConstAnyTensor rows = weight;
        rows.shape[0] = count;
        // Weights without columns may have a null address.
        if (weight.shape[1] > 0) {
          rows.data = static_cast<const std::byte*>(weight.data) +
                      first * weight.strides[0] * bytes_of(weight.dtype);
        }
        return compute_linear({call.x, rows, bias, y, call.precision}, context);
      });
}

}  // namespace multihead::engine
