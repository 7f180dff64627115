/// \file
/// Attention over several processes: queries, keys and values are divided along the sequence, and
/// every process (rank) computes its own rows. Needs the library multihead_distributed (CMake:
/// multihead::distributed).
///
/// The methods, with R ranks. Each rank holds some rows of q, k and v:
///
/// - kRing: R steps; in each a rank computes its queries against one rank's keys while the keys and
///   values of the next step arrive (ring attention, arXiv:2310.01889). Any number of heads, memory
///   for two shards of K and V.
/// - kAllGather: every rank receives all keys and values first. Fewer and larger products, for
///   short keys.
/// - kHeads: ranks exchange rows so that each rank computes some heads over the whole sequence
///   (DeepSpeed-Ulysses, arXiv:2309.14509). Needs at least R key/value heads.
/// - kDecode: every rank has the same queries, and its own part of the keys (a sharded cache).
///   Partial results are exchanged once and merged by their log-sum-exp.
///
/// With kRing and kAllGather, keys that causal order, the window or kv_lengths hide from all
/// queries of a rank are not sent to it, unless a later rank of the ring sees them. A mask does not
/// change what is sent.
///
/// Partial outputs are f32. Results equal those of one process up to rounding. Every run with the
/// same number of ranks gives the same bits; with kDecode all ranks have the same bits. Partial
/// results are merged by their log-sum-exp in f32, so the relative error of their weights is the
/// rounding error of a log-sum-exp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead::distributed {

/// Methods of computing a call; see the head of this file.
enum class Method : uint8_t {
  kRing,       ///< keys and values are passed from rank to rank
  kAllGather,  ///< all ranks receive all keys and values
  kHeads,      ///< each rank computes some heads
  kDecode,     ///< all ranks have all queries
};

/// Distribution of the sequence's rows among the ranks.
enum class Layout : uint8_t {
  /// Rank after rank. Each rank may hold any number of rows, different for queries and keys.
  kContiguous,
  /// The sequence is cut into 2 R parts, and rank r holds parts r and 2 R - 1 - r, one after the
  /// other. With causal order, all ranks then have equal work. The rows must follow rows_of_rank().
  kZigzag,
};

/// Division of a call among ranks. It must be the same on every rank, except for the time limit.
struct Sharding {
  Method method = Method::kRing;        ///< see the head of this file
  Layout layout = Layout::kContiguous;  ///< kDecode: layout of the keys, kContiguous
  int64_t queries = 0;                  ///< whole problem, over all ranks
  int64_t keys = 0;                     ///< whole problem, over all ranks
  double time_limit = 60;               ///< longest wait for other ranks, in seconds
};

/// Rows first .. end - 1 of a sequence.
struct RowRange {
  int64_t first = 0;  ///< the first row
  int64_t end = 0;    ///< after the last row
  /// Number of rows.
  constexpr int64_t count() const { return end - first; }
};

/// The rows that a rank holds, in its order, if `rows` rows are divided evenly among `ranks`. With
/// kContiguous the second range is empty.
std::array<RowRange, 2> rows_of_rank(int64_t rows, Layout layout, int ranks, int rank);

/// A group of processes that make the same calls in the same order, one call at a time. After a
/// kExchange error it refuses further calls, because messages may still be on their way.
class Communicator {
 public:
  Communicator();  ///< An empty communicator: it refuses calls.
  ~Communicator();
  Communicator(Communicator&&) noexcept;             ///< Movable, not copyable.
  Communicator& operator=(Communicator&&) noexcept;  ///< Movable, not copyable.
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// All processes of MPI_COMM_WORLD; all of them must call this. MPI must be initialized, with
  /// MPI_THREAD_FUNNELED if a Context has several threads; only the thread that initialized MPI may
  /// make calls. Destroy the communicator before MPI_Finalize(). Errors: kOption, if the library
  /// was built without MPI or MPI is not initialized; kExchange.
  [[nodiscard]] static Status over_mpi(Communicator& communicator);
  /// The processes of an MPI communicator, given by its Fortran handle: MPI_Comm_c2f(comm). The
  /// communicator is duplicated, so the messages of calls never mix with your own messages.
  [[nodiscard]] static Status over_mpi(int fortran_handle, Communicator& communicator);

  int rank() const;  ///< Rank of this process, from 0.
  int size() const;  ///< Number of processes; 0 for an empty communicator.

  /// Totals over all calls so far.
  struct Traffic {
    uint64_t bytes_sent = 0;      ///< bytes sent to other ranks
    uint64_t bytes_received = 0;  ///< bytes received from other ranks
    double seconds_waited = 0;    ///< seconds of waiting without computing
  };
  /// Totals over all calls so far, including the comparison of options.
  Traffic traffic() const;

  struct Internals;  ///< for the library's own use
  /// For the library's own use.
  explicit Communicator(std::unique_ptr<Internals> internals);
  /// For the library's own use.
  Internals* internals() const { return internals_.get(); }

 private:
  std::unique_ptr<Internals> internals_;
};

/// attention() of a divided sequence. q (B, H_q, n_q, d_k), k (B, H_kv, n_k, d_k), v (B, H_kv, n_k,
/// d_v), out (B, H_q, n_q, d_v) and lse (B, H_q, n_q) are the rank's own rows.
///
/// `options` describe the whole problem: alignments, window, ALiBi, dropout, kv_lengths and default
/// positions of RoPE refer to whole sequences. mask and bias cover the rank's own queries and all
/// keys, (n_q, N_k) or (B, H_q, n_q, N_k), where any extent may be 1; with kHeads the extent of
/// queries must be 1. Positions in options.rope belong to the rank's own rows. Outputs other than
/// out and lse are refused.
///
/// All ranks must call this with the same options, and compare them before they compute. If one
/// rank has an error, every rank returns an error and nothing is written. Errors: as attention();
/// kOption for options that differ between ranks, shards that do not add up to the whole problem,
/// or too few heads; kExchange if a rank does not answer within the time limit. With one rank, this
/// is attention().
[[nodiscard]] Status attention(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionOptions& options,
                               const AttentionOutputs& outputs, const Sharding& sharding,
                               Communicator& communicator, Context& context);

/// attention_varlen() of packed sequences divided among the ranks. A sequence may continue on the
/// next rank. q (n_q, H_q, d_k), k (n_k, H_kv, d_k), v (n_k, H_kv, d_v), out (n_q, H_q, d_v) and
/// lse (H_q, n_q) are the rank's own rows; cu_q and cu_k describe the whole problem. Otherwise as
/// attention() above.
[[nodiscard]] Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                      const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                      std::span<const int32_t> cu_k,
                                      const AttentionOptions& options,
                                      const AttentionOutputs& outputs, const Sharding& sharding,
                                      Communicator& communicator, Context& context);

/// attention_backward() of a divided sequence, with any method except kDecode. All tensors hold the
/// rank's own rows; `results` come from attention() above; d_k and d_v include the contributions of
/// all ranks' queries. d_sinks, d_q_gain, d_k_gain, and d_bias along the axes that the bias shares,
/// are partial sums: the caller adds the sums of all ranks, as for any parameter in data-parallel
/// training. Every run with the same number of ranks gives the same bits. Unlike with one process,
/// lse is not checked.
[[nodiscard]] Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                        const ConstAnyTensor& v, const AttentionOptions& options,
                                        const AttentionResults& results,
                                        const ConstAnyTensor& d_out,
                                        const AttentionGradients& gradients,
                                        const Sharding& sharding, Communicator& communicator,
                                        Context& context);

/// attention_backward() above for packed sequences. Rows are as for attention_varlen() above.
[[nodiscard]] Status attention_varlen_backward(
    const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
    std::span<const int32_t> cu_q, std::span<const int32_t> cu_k, const AttentionOptions& options,
    const AttentionResults& results, const ConstAnyTensor& d_out,
    const AttentionGradients& gradients, const Sharding& sharding, Communicator& communicator,
    Context& context);

}  // namespace multihead::distributed
MULTIHEAD_PUBLIC_END
