// mpirun -n 2 consumer-distributed
//
// Causal attention of a sequence that the processes of MPI divide: forward and backward, compared
// with one process.
#include <mpi.h>
#include <multihead/distributed.h>
#include <multihead/multihead.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace mh = multihead;
namespace mhd = multihead::distributed;

namespace {

constexpr int64_t kHeads = 2, kTokens = 96, kWidth = 16;

using Rows = std::vector<float>;  // (1, kHeads, tokens, kWidth)

int64_t tokens_of(const Rows& rows) {
  return static_cast<int64_t>(rows.size()) / (kHeads * kWidth);
}
mh::Dims shape_of(const Rows& rows) { return {1, kHeads, tokens_of(rows), kWidth}; }
mh::ConstTensor view(const Rows& rows) { return {rows.data(), shape_of(rows)}; }
mh::Tensor view(Rows& rows) { return {rows.data(), shape_of(rows)}; }

Rows numbers(double step) {
  Rows rows(kHeads * kTokens * kWidth);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(std::sin(step * static_cast<double>(i)));
  }
  return rows;
}

Rows part(const Rows& whole, mhd::RowRange range) {
  Rows rows;
  for (int64_t head = 0; head < kHeads; ++head) {
    const auto first = whole.begin() + (head * kTokens + range.first) * kWidth;
    rows.insert(rows.end(), first, first + range.count() * kWidth);
  }
  return rows;
}

// Inputs, results and gradients of one process, or of all together.
struct Problem {
  Rows q, k, v, d_out;
  Rows out = Rows(q.size()), d_q = out, d_k = out, d_v = out;
  std::vector<float> lse = std::vector<float>(q.size() / kWidth);

  mh::Tensor lse_view() { return {lse.data(), {1, kHeads, tokens_of(q)}}; }
  mh::AttentionOutputs outputs() { return {.out = view(out), .lse = lse_view()}; }
  mh::AttentionResults results() { return {.out = view(out), .lse = lse_view()}; }
  mh::AttentionGradients gradients() {
    return {.d_q = view(d_q), .d_k = view(d_k), .d_v = view(d_v)};
  }
};

float difference(const Rows& a, const Rows& b) {
  float most = a.size() == b.size() ? 0.0F : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    most = std::max(most, std::fabs(a[i] - b[i]));
  }
  return most;
}

mh::Status run(mhd::Communicator& communicator, float& most) {
  const mh::AttentionOptions options{.causal = mh::Causal::top_left()};
  mh::Context context(1);
  Problem whole{numbers(0.7), numbers(1.3), numbers(2.1), numbers(0.3)};
  mh::Status status =
      mh::attention(view(whole.q), view(whole.k), view(whole.v), options, whole.outputs(), context);
  if (status.ok()) {
    status = mh::attention_backward(view(whole.q), view(whole.k), view(whole.v), options,
                                    whole.results(), view(whole.d_out), whole.gradients(), context);
  }

  const mhd::RowRange rows = mhd::rows_of_rank(kTokens, mhd::Layout::kContiguous,
                                               communicator.size(), communicator.rank())[0];
  Problem own{part(whole.q, rows), part(whole.k, rows), part(whole.v, rows),
              part(whole.d_out, rows)};
  for (const mhd::Method method : {mhd::Method::kRing, mhd::Method::kAllGather}) {
    const mhd::Sharding sharding{.method = method, .queries = kTokens, .keys = kTokens};
    if (status.ok()) {
      status = mhd::attention(view(own.q), view(own.k), view(own.v), options, own.outputs(),
                              sharding, communicator, context);
    }
    if (status.ok()) {
      status = mhd::attention_backward(view(own.q), view(own.k), view(own.v), options,
                                       own.results(), view(own.d_out), own.gradients(), sharding,
                                       communicator, context);
    }
    for (Rows Problem::*member : {&Problem::out, &Problem::d_q, &Problem::d_k, &Problem::d_v}) {
      most = std::max(most, difference(own.*member, part(whole.*member, rows)));
    }
  }
  return status;
}

}  // namespace

int main(int count, char** words) {
  MPI_Init(&count, &words);
  int exit_code = 1;
  {
    mhd::Communicator communicator;
    mh::Status status = mhd::Communicator::over_mpi(communicator);
    float most = 0;
    if (status.ok()) status = run(communicator, most);
    if (status.ok()) {
      std::printf("rank %d of %d: %s\n", communicator.rank(), communicator.size(),
                  most < 2e-5F ? "as one process" : "wrong");
      exit_code = most < 2e-5F ? 0 : 1;
    } else {
      std::fprintf(stderr, "%s\n", status.message().c_str());
    }
  }  // the communicator ends before MPI
  MPI_Finalize();
  return exit_code;
}
