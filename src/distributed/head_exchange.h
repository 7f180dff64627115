// Exchanges rows for heads and back: from this rank's rows of all heads to all rows of this rank's
// heads.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/shard_memory.h"
#include "distributed/tiles.h"
#include "rules/arena.h"

namespace multihead::distributed {

// A tensor to exchange: (B, H, n, width), with query heads or key/value heads.
struct Exchanged {
  DType type = DType::kF32;
  bool query_heads = true;
  int64_t width = 0;
  // A pair of blocks for each rank: its heads of this rank's rows, and this rank's heads of its
  // rows.
  std::vector<char*> row_blocks = {}, head_blocks = {};
  char* whole = nullptr;  // this rank's heads of all rows
};

class HeadExchange {
 public:
  explicit HeadExchange(const Task& task) : task_(task) {}

  Heads heads_of(int rank) const;
  Heads heads() const { return heads_of(task_.rank()); }

  void take(rules::Arena& arena, Exchanged& tensor) const;

  // Sends `rows` to the ranks that compute their heads. After the transfers, to_heads() copies the
  // received blocks to whole().
  void send_heads(const Exchanged& tensor, const ConstAnyTensor& rows) const;
  void to_heads(const Exchanged& tensor) const;

  // Sends whole() to the ranks that hold its rows. After the transfers, to_rows() copies the
  // received blocks to `rows`.
  void send_rows(const Exchanged& tensor) const;
  void to_rows(const Exchanged& tensor, const AnyTensor& rows) const;

  AnyTensor whole(const Exchanged& tensor) const;
  Tensor whole_floats(const Exchanged& tensor) const;

 private:
  int64_t rows_of_rank(const Exchanged& tensor, int rank) const;
  std::vector<Chunk> chunks_of_rank(const Exchanged& tensor, int rank) const;
  AnyTensor block(const Exchanged& tensor, void* data, const Heads& heads, int64_t rows) const;
  AnyTensor row_block(const Exchanged& tensor, int rank) const;
  AnyTensor head_block(const Exchanged& tensor, int rank) const;
  void exchange(const Exchanged& tensor, bool to_heads) const;
  template <class View>
  View heads_of_view(const Exchanged& tensor, const View& rows, int rank) const;

  const Task& task_;
};

}  // namespace multihead::distributed
