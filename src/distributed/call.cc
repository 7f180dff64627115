#include "distributed/call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "engine/attention/transform.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/threads.h"
#include "rules/element.h"
#include "rules/visibility.h"

namespace multihead::distributed {
namespace {

// Calls visit(offset in from, offset in to) for every row, in elements.
template <class From, class To, class Visit>
void for_rows(const From& from, const To& to, Context& context, const Visit& visit) {
  const Dims& shape = from.shape;
  if (shape.elements() == 0) return;
  const int64_t heads = shape[1];
  const int threads = engine::threads_for(static_cast<double>(shape.elements()), context.threads());
  engine::parallel_for(context, "copy", threads, shape[0] * heads, [&](int64_t index, int) {
    const int64_t b = index / heads, h = index % heads;
    for (int64_t row = 0; row < shape[2]; ++row) {
      visit(b * from.strides[0] + h * from.strides[1] + row * from.strides[2],
            b * to.strides[0] + h * to.strides[1] + row * to.strides[2]);
    }
  });
}

std::span<const int32_t> positions_of(std::span<const int32_t> given, int64_t rows, int64_t batch,
                                      const Segment& segment) {
  if (given.empty()) return {};
  const int64_t before = static_cast<int64_t>(given.size()) == rows ? 0 : batch * rows;
  return given.subspan(static_cast<size_t>(before + segment.local),
                       static_cast<size_t>(segment.count));
}

engine::Transform transform_of(const Call& call, Operand operand, const Segment& segment,
                               int64_t batch, rules::Visibility& rule, int32_t& length) {
  const AttentionOptions& options = call.options;
  const bool queries = operand == Operand::kQueries;
  const auto s = static_cast<size_t>(segment.sequence);
  const int64_t sequence_queries = call.cu_q[s + 1] - call.cu_q[s];
  const int64_t sequence_keys = call.cu_k[s + 1] - call.cu_k[s];
  // Positions of keys are their indices, as for queries without an alignment.
  rule = rules::make_visibility(queries ? options : AttentionOptions{}, sequence_queries,
                                sequence_keys);
  rule.first_query = segment.first;
  if (rule.lengths != nullptr) rule.lengths += batch;
  engine::Transform result{
      .normalize = options.qk_norm.given(),
      .gain = queries ? options.qk_norm.q_gain : options.qk_norm.k_gain,
      .eps = options.qk_norm.eps,
      .rope = options.rope,
      .positions = queries
                       ? positions_of(options.rope.q_positions, call.shape.queries, batch, segment)
                       : positions_of(options.rope.k_positions, call.shape.keys, batch, segment),
      .query_positions = &rule};
  if (!queries && !options.kv_lengths.empty()) {
    const int64_t whole = options.kv_lengths[static_cast<size_t>(batch)];
    length = static_cast<int32_t>(std::clamp<int64_t>(whole - segment.first, 0, segment.count));
    result.lengths = {&length, 1};
  }
  return result;
}

// Calls visit(rule, part) for every segment and batch entry, with the transformation of its rows
// and a function that returns these rows of a tensor.
template <class Visit>
Status for_segments(const Call& call, Operand operand, std::span<const Segment> segments,
                    const Visit& visit) {
  for (const Segment& segment : segments) {
    for (int64_t batch = 0; batch < call.shape.batch; ++batch) {
      rules::Visibility positions;
      int32_t length = 0;
      const engine::Transform rule = transform_of(call, operand, segment, batch, positions, length);
      MULTIHEAD_TRY(visit(rule, [&](const auto& view) {
        return rows_of(part_of(view, 0, batch, 1), segment.local, segment.count);
      }));
    }
  }
  return {};
}

}  // namespace

void copy(const ConstAnyTensor& from, const AnyTensor& to, Context& context) {
  const int64_t bytes = bytes_of(from.dtype);
  for_rows(from, to, context, [&](int64_t at, int64_t put) {
    std::memcpy(static_cast<char*>(to.data) + put * bytes,
                static_cast<const char*>(from.data) + at * bytes,
                static_cast<size_t>(from.shape[3] * bytes));
  });
}

void convert(const ConstTensor& from, const AnyTensor& to, Context& context) {
  for_rows(from, to, context, [&](int64_t at, int64_t put) {
    rules::write_floats(from.data + at, from.shape[3], to.data, to.dtype, put);
  });
}

void add(const Tensor& from, const Tensor& to, Context& context) {
  for_rows(from, to, context, [&](int64_t at, int64_t put) {
    for (int64_t c = 0; c < from.shape[3]; ++c) to.data[put + c] += from.data[at + c];
  });
}

Status transform(const Call& call, Operand operand, std::span<const Segment> segments,
                 const Tensor& to, Context& context) {
  const ConstAnyTensor& x = operand == Operand::kQueries ? call.q : call.k;
  return for_segments(call, operand, segments,
                      [&](const engine::Transform& rule, const auto& part) {
                        return engine::transform_rows(part(x), rule, part(to), context);
                      });
}

Status transform_back(const Call& call, Operand operand, std::span<const Segment> segments,
                      const Tensor& gradient, std::span<float> d_gain, Context& context) {
  std::fill(d_gain.begin(), d_gain.end(), 0.0F);
  std::vector<float> sums(d_gain.size());
  const ConstAnyTensor& x = operand == Operand::kQueries ? call.q : call.k;
  return for_segments(
      call, operand, segments, [&](const engine::Transform& rule, const auto& part) -> Status {
        MULTIHEAD_TRY(engine::transform_back(part(x), rule, part(gradient), sums, context));
        for (size_t i = 0; i < sums.size(); ++i) d_gain[i] += sums[i];
        return {};
      });
}

}  // namespace multihead::distributed
