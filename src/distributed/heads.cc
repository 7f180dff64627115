// Rows for heads: each rank computes some heads over the whole sequence.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/forward.h"
#include "distributed/rectangles.h"
#include "distributed/reserve.h"
#include "distributed/shard_memory.h"
#include "rules/arena.h"

namespace multihead::distributed {

// Each rank gets some heads of all rows, computes them, and returns to each rank its rows.
Status heads_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                       Context& context, PartialResult& total) {
  Transport& transport = *ranks.transport;
  const int size = transport.size(), rank = transport.rank();
  const Layouts layouts(call, shards);
  const int64_t group = call.shape.heads / call.shape.kv_heads, batch = call.shape.batch;
  const auto heads_of_rank = [&](int r) -> Heads {
    const int64_t first = call.shape.kv_heads * r / size,
                  end = call.shape.kv_heads * (r + 1) / size;
    return {first * group, first, (end - first) * group, end - first};
  };
  const Heads own = heads_of_rank(rank);
  // Operands 0, 1 and 2 are q, k and v; 3 and 4 are out and the log-sum-exp, which go back.
  struct Operand {
    DType type;
    bool of_queries;
    int64_t width;
  };
  const Operand operands[] = {{layouts.q_type(), true, call.shape.key_width},
                              {layouts.k_type(), false, call.shape.key_width},
                              {layouts.v_type(), false, call.shape.value_width},
                              {DType::kF32, true, call.shape.value_width},
                              {DType::kF32, true, 1}};
  constexpr size_t kInputs = 3, kOperands = 5;
  const auto rows_of_rank = [&](size_t operand, int r) {
    return (operands[operand].of_queries ? shards.queries : shards.keys)[static_cast<size_t>(r)];
  };
  // The block of an operand with the heads of one rank and the rows of one.
  const auto block = [&](size_t operand, void* data, const Heads& heads, int64_t rows) {
    const Operand& of = operands[operand];
    return Layouts::view(data, of.type,
                         {batch, of.of_queries ? heads.count : heads.kv_count, rows, of.width});
  };
  struct Exchange {
    std::vector<char*> there, here;  // of each rank: its heads of my rows, my heads of its rows
    char* whole = nullptr;           // my heads of all rows
  };
  std::array<Exchange, kOperands> memory;
  KeyMemory moved;
  PartialResult part;
  float* moved_q = nullptr;
  Status status = reserve(call, ranks, [&](rules::Arena& arena) {
    for (size_t i = 0; i < kOperands; ++i) {
      Exchange& of = memory[i];
      of.there.resize(static_cast<size_t>(size));
      of.here.resize(static_cast<size_t>(size));
      const auto take = [&](char*& to, const Heads& heads, int64_t rows) {
        const AnyTensor view = block(i, nullptr, heads, rows);
        arena(to, Layouts::bytes(view.shape, view.dtype));
      };
      int64_t rows = 0;
      for (int r = 0; r < size; ++r) {
        take(of.there[static_cast<size_t>(r)], heads_of_rank(r), rows_of_rank(i, rank));
        take(of.here[static_cast<size_t>(r)], own, rows_of_rank(i, r));
        rows += rows_of_rank(i, r);
      }
      take(of.whole, own, rows);
    }
    layouts.take(arena, total, call.shape.queries);
    const Dims whole_rows{batch, own.count, call.sharding.queries};
    part.lse.shape = whole_rows;
    part.out.shape = {batch, own.count, call.sharding.queries, call.shape.value_width};
    arena(part.out.data, static_cast<uint64_t>(part.out.shape.elements()));
    arena(part.lse.data, static_cast<uint64_t>(part.lse.shape.elements()));
    part.out.strides = contiguous_strides(part.out.shape);
    part.lse.strides = contiguous_strides(part.lse.shape);
    if (call.transforms()) layouts.take(arena, moved, call.shape.keys);
    arena(moved_q, transformed_queries(call, layouts));
  });
  if (!status.ok()) return status;

  const std::vector<Chunk> own_chunks = shards.query_chunks(call, rank);
  ConstAnyTensor q, k = call.k;
  status = pack_queries(call, segments_of(own_chunks, call.cu_q), layouts, moved_q, q, context);
  if (status.ok() && call.transforms()) {
    status = pack(call, shards, rank, layouts, moved, context);
    k = layouts.k(moved, call.shape.keys);
  }
  if (!status.ok()) return status;

  // Rows for heads.
  const std::array<ConstAnyTensor, kInputs> inputs{q, k, call.v};
  const auto exchange = [&](size_t operand, bool forth) {
    Exchange& of = memory[operand];
    for (int other = 0; other < size; ++other) {
      const auto at = static_cast<size_t>(other);
      const AnyTensor there =
          block(operand, of.there[at], heads_of_rank(other), rows_of_rank(operand, rank));
      const AnyTensor here = block(operand, of.here[at], own, rows_of_rank(operand, other));
      const AnyTensor &out = forth ? there : here, &in = forth ? here : there;
      if (other == rank) {
        copy(out, in, context);
        continue;
      }
      transport.receive(other, in.data, Layouts::bytes(in.shape, in.dtype));
      transport.send(other, out.data, Layouts::bytes(out.shape, out.dtype));
    }
  };
  for (size_t i = 0; i < kInputs; ++i) {
    for (int other = 0; other < size; ++other) {
      const Heads heads = heads_of_rank(other);
      const bool of_queries = operands[i].of_queries;
      copy(heads_of(inputs[i], of_queries ? heads.first : heads.kv_first,
                    of_queries ? heads.count : heads.kv_count),
           block(i, memory[i].there[static_cast<size_t>(other)], heads, rows_of_rank(i, rank)),
           context);
    }
    exchange(i, /*forth=*/true);
  }
  status = ranks.finish(call.sharding.time_limit);
  if (!status.ok()) return status;
  const auto chunks_of_rank = [&](size_t operand, int r) {
    return operands[operand].of_queries ? shards.query_chunks(call, r) : shards.key_chunks(call, r);
  };
  const auto whole = [&](size_t operand) {
    return block(operand, memory[operand].whole, own,
                 operands[operand].of_queries ? call.sharding.queries : call.sharding.keys);
  };
  for (size_t i = 0; i < kInputs; ++i) {
    for (int r = 0; r < size; ++r) {
      scatter(chunks_of_rank(i, r),
              block(i, memory[i].here[static_cast<size_t>(r)], own, rows_of_rank(i, r)), whole(i),
              context);
    }
  }

  const AnyTensor out = whole(3), lse = whole(4);
  const PartialResult result{Tensor(static_cast<float*>(out.data), out.shape),
                             Tensor(static_cast<float*>(lse.data), part.lse.shape)};
  clear(result);
  const std::vector<Segment> all_rows =
      segments_of(Chunk{.first = 0, .count = call.sharding.queries, .local = 0}, call.cu_q);
  status = add_attention(call, own, options_of_heads(call, own),
                         {whole(0),
                          whole(1),
                          whole(2),
                          all_rows,
                          {.first = 0, .count = call.sharding.keys, .local = 0}},
                         part, result, transport, context);
  if (!status.ok()) return status;

  // Heads for rows.
  for (size_t i = kInputs; i < kOperands; ++i) {
    for (int r = 0; r < size; ++r) {
      gather(chunks_of_rank(i, r), whole(i),
             block(i, memory[i].here[static_cast<size_t>(r)], own, rows_of_rank(i, r)), context);
    }
    exchange(i, /*forth=*/false);
  }
  status = ranks.finish(call.sharding.time_limit);
  if (!status.ok()) return status;
  const std::array<AnyTensor, 2> to{AnyTensor(total.out), AnyTensor(as_columns(total.lse))};
  for (size_t i = kInputs; i < kOperands; ++i) {
    for (int other = 0; other < size; ++other) {
      const Heads heads = heads_of_rank(other);
      copy(block(i, memory[i].there[static_cast<size_t>(other)], heads, rows_of_rank(i, rank)),
           heads_of(to[i - kInputs], heads.first, heads.count), context);
    }
  }
  return {};
}

}  // namespace multihead::distributed
