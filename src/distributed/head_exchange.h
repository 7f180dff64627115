// Exchanges rows for heads and back: from this rank's rows of all heads to all rows of this rank's
// heads.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/call.h"
#include "distributed/rectangles.h"
#include "distributed/transport.h"
#include "rules/arena.h"

namespace multihead::distributed {

// A tensor to exchange: (B, H, n, width), with query heads or key/value heads.
struct Exchanged {
  DType type = DType::kF32;
  bool of_queries = true;
  int64_t width = 0;
  // A pair of blocks for each rank: its heads of this rank's rows, and this rank's heads of its
  // rows.
  std::vector<char*> there = {}, here = {};
  char* whole = nullptr;  // this rank's heads of all rows
};

class HeadExchange {
 public:
  HeadExchange(const Call& call, const Shards& shards, Transport& transport, Context& context)
      : call_(call), shards_(shards), transport_(transport), context_(context) {}

  Heads heads_of(int rank) const;
  Heads heads() const { return heads_of(transport_.rank()); }

  void take(rules::Arena& arena, Exchanged& of) const;

  // Sends `rows` to the ranks that compute their heads. After the transfers, to_heads() copies the
  // received blocks to whole().
  void send_heads(const Exchanged& of, const ConstAnyTensor& rows) const;
  void to_heads(const Exchanged& of) const;

  // Sends whole() to the ranks that hold its rows. After the transfers, to_rows() copies the
  // received blocks to `rows`.
  void send_rows(const Exchanged& of) const;
  void to_rows(const Exchanged& of, const AnyTensor& rows) const;

  AnyTensor whole(const Exchanged& of) const;
  Tensor whole_floats(const Exchanged& of) const;

 private:
  int64_t rows_of_rank(const Exchanged& of, int rank) const;
  std::vector<Chunk> chunks_of_rank(const Exchanged& of, int rank) const;
  AnyTensor block(const Exchanged& of, void* data, const Heads& heads, int64_t rows) const;
  AnyTensor there(const Exchanged& of, int rank) const;
  AnyTensor here(const Exchanged& of, int rank) const;
  void exchange(const Exchanged& of, bool forth) const;
  template <class View>
  View heads_of_view(const Exchanged& of, const View& rows, int rank) const;

  const Call& call_;
  const Shards& shards_;
  Transport& transport_;
  Context& context_;
};

}  // namespace multihead::distributed
