// mpirun -n 4 multihead-mpi --shape long-8k --method ring --check
//
// Divides a problem among the MPI processes. Prints for each process the bytes sent, the time of
// the call, and how much of that time it waited. --check compares all outputs with a single
// process.
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "delayed_transport.h"
#include "distributed/communicator.h"
#include "exit_code.h"
#include "multihead/distributed.h"
#include "problem.h"

namespace {

using multihead::Context;
using multihead::ExitCode;
using multihead::Status;
using multihead::Tensor;
using multihead::distributed::Communicator;
using multihead::distributed::Layout;
using multihead::distributed::Method;
using multihead::distributed::Sharding;
using multihead::mpi::Problem;
using multihead::mpi::RowList;
using multihead::mpi::Shape;

struct Arguments {
  std::string shape = "long-8k";
  Method method = Method::kRing;
  Layout layout = Layout::kContiguous;
  multihead::mpi::Visible visible;
  bool check = false;
  int threads = 1;
  int repeats = 3;
  double delay_ms = 0;
  double time_limit = 60;
};

// The results of a rank.
struct Report {
  double seconds, waited, exposed, difference;
  uint64_t sent, formula;
};

ExitCode refuse(int rank, const std::string& problem) {
  if (rank == 0) std::fprintf(stderr, "%s\n", problem.c_str());
  return multihead::kExitUsage;
}

ExitCode refuse(int rank, const Status& status) {
  if (status.code() == multihead::StatusCode::kExchange) {
    // MPI_Finalize() would wait for the rank that has failed, so abort.
    std::fprintf(stderr, "rank %d: %s\n", rank, status.message().c_str());
    MPI_Abort(MPI_COMM_WORLD, multihead::kExitFailed);
  }
  refuse(rank, status.message());
  return status.code() == multihead::StatusCode::kOption ||
                 status.code() == multihead::StatusCode::kShape
             ? multihead::kExitUsage
             : multihead::kExitFailed;
}

Status run(const Problem::Shard& shard, std::vector<float>& out, const Arguments& arguments,
           const Sharding& sharding, Communicator& communicator, Context& context) {
  using multihead::ConstTensor;
  return multihead::distributed::attention(
      ConstTensor(shard.q.data(), shard.q_shape), ConstTensor(shard.k.data(), shard.k_shape),
      ConstTensor(shard.v.data(), shard.k_shape), multihead::mpi::options_of(arguments.visible),
      {.out = Tensor(out.data(), shard.q_shape)}, sharding, communicator, context);
}

// Waits for a collective operation that has started. Returns an error if a rank does not take part
// within the time limit; MPI's own wait would never return.
Status finish(MPI_Request request, double time_limit) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) return {};
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > time_limit) {
      return {multihead::StatusCode::kExchange, "communicator",
              "every rank within the time limit, between and after calls",
              "none from at least one"};
    }
    std::this_thread::yield();
  }
}

Status barrier(double time_limit) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  return finish(request, time_limit);
}

// Gives every rank the reports of all ranks.
Status gather(const Report& own, std::vector<Report>& reports, double time_limit) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(&own, sizeof(Report), MPI_BYTE, reports.data(), sizeof(Report), MPI_BYTE,
                 MPI_COMM_WORLD, &request);
  return finish(request, time_limit);
}

// True if outputs differ by more than rounding, or if the traffic differs from the formula.
constexpr double kAllowed = 2e-6;
bool is_wrong(const Report& of, bool checked) {
  return (checked && !(of.difference <= kAllowed)) || of.sent != of.formula;
}

void print(const Arguments& arguments, const std::vector<Report>& reports) {
  std::printf("%-5s %12s %12s %9s %9s", "rank", "bytes sent", "formula", "ms", "waited");
  std::printf(arguments.check ? " %10s\n" : "\n", "difference");
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const Report& of = reports[rank];
    std::printf("%-5zu %12llu %12llu %9.2f %9.2f", rank, static_cast<unsigned long long>(of.sent),
                static_cast<unsigned long long>(of.formula), 1e3 * of.seconds, 1e3 * of.waited);
    if (arguments.check) std::printf(" %10.1e", of.difference);
    std::printf("\n");
  }
  const auto ranks = static_cast<double>(reports.size());
  if (arguments.delay_ms == 0 || arguments.method != Method::kRing || reports.size() < 2) return;
  double exposed = 0;
  for (const Report& of : reports) exposed += of.exposed / ranks;
  const double delayed = (ranks - 1) * arguments.delay_ms / 1e3;
  std::printf("%.0f %% of the delay of %.0f %s hidden behind computation\n",
              100 * std::clamp(1 - exposed / delayed, 0.0, 1.0), ranks - 1,
              ranks == 2 ? "transfer" : "transfers");
}

ExitCode run(const Arguments& arguments, const Shape& shape, int rank) {
  Communicator communicator;
  if (Status status = Communicator::over_mpi(communicator); !status.ok()) {
    return refuse(rank, status);
  }
  const int ranks = communicator.size();
  const Sharding sharding{.method = arguments.method,
                          .layout = arguments.layout,
                          .queries = shape.queries,
                          .keys = shape.keys,
                          .time_limit = arguments.time_limit};
  const Problem problem(shape);
  const RowList queries =
      arguments.method == Method::kDecode
          ? multihead::mpi::all_rows(shape.queries)
          : multihead::mpi::rows_of(shape.queries, arguments.layout, ranks, rank);
  Problem::Shard shard =
      problem.shard(queries, multihead::mpi::rows_of(shape.keys, arguments.layout, ranks, rank));
  multihead::mpi::DelayedTransport* delayed = nullptr;
  if (arguments.delay_ms > 0) {
    auto& transport = communicator.internals()->transport;
    auto owner = std::make_unique<multihead::mpi::DelayedTransport>(
        std::move(transport), std::chrono::duration<double>(arguments.delay_ms / 1e3));
    delayed = owner.get();
    transport = std::move(owner);
  }
  const auto exposed_seconds = [&] { return delayed == nullptr ? 0 : delayed->exposed_seconds(); };
  Context context(arguments.threads);

  // Run a call without rows, to measure the traffic and waiting that every call has.
  Communicator::Traffic before = communicator.traffic();
  Sharding nothing = sharding;
  nothing.queries = nothing.keys = 0;
  const Problem::Shard empty = problem.shard({}, {});
  std::vector<float> no_rows;
  if (Status status = run(empty, no_rows, arguments, nothing, communicator, context);
      !status.ok()) {
    return refuse(rank, status);
  }
  Communicator::Traffic after = communicator.traffic();
  const double agreement_exposed = exposed_seconds();
  const uint64_t agreement = after.bytes_sent - before.bytes_sent;
  const double agreement_waited = after.seconds_waited - before.seconds_waited;

  Report report{.seconds = 0, .waited = 0, .exposed = 0, .difference = 0, .sent = 0, .formula = 0};
  for (int repeat = 0; repeat < arguments.repeats; ++repeat) {
    if (Status status = barrier(arguments.time_limit); !status.ok()) return refuse(rank, status);
    before = communicator.traffic();
    const double exposed_before = exposed_seconds();
    const auto start = std::chrono::steady_clock::now();
    if (Status status = run(shard, shard.out, arguments, sharding, communicator, context);
        !status.ok()) {
      return refuse(rank, status);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    after = communicator.traffic();
    // Keep the fastest call; the first one also reserves memory.
    if (repeat > 0 && seconds.count() >= report.seconds) continue;
    report.seconds = seconds.count();
    report.exposed = std::max(0.0, exposed_seconds() - exposed_before - agreement_exposed);
    report.waited = std::max(0.0, after.seconds_waited - before.seconds_waited - agreement_waited);
    report.sent = after.bytes_sent - before.bytes_sent - agreement;
  }
  report.formula = multihead::mpi::bytes_sent(shape, arguments.visible, sharding, ranks, rank);
  if (arguments.check) {
    Problem::Shard whole = problem.shard(multihead::mpi::all_rows(shape.queries),
                                         multihead::mpi::all_rows(shape.keys));
    Communicator alone;
    Sharding of_one = sharding;
    of_one.method = Method::kRing;
    Status status = Communicator::over_mpi(MPI_Comm_c2f(MPI_COMM_SELF), alone);
    if (status.ok()) status = run(whole, whole.out, arguments, of_one, alone, context);
    if (!status.ok()) return refuse(rank, status);
    report.difference = multihead::mpi::largest_difference(shape, queries, shard.out, whole.out);
  }
  std::vector<Report> reports(static_cast<size_t>(ranks));
  if (Status status = gather(report, reports, arguments.time_limit); !status.ok()) {
    return refuse(rank, status);
  }
  const bool any_wrong = std::any_of(reports.begin(), reports.end(), [&](const Report& of) {
    return is_wrong(of, arguments.check);
  });
  if (rank == 0) print(arguments, reports);
  if (any_wrong && rank == 0) {
    std::fprintf(stderr,
                 "a rank's outputs differ by more than %g, or it sent other bytes than the "
                 "formula says\n",
                 kAllowed);
  }
  return any_wrong ? multihead::kExitFailed : multihead::kExitOk;
}

ExitCode run(int argc, char** argv, int rank) {
  Arguments arguments;
  CLI::App app{"Attention over several processes: mpirun -n 4 multihead-mpi --method ring --check"};
  app.get_formatter()->column_width(34);
  std::string shape_names;
  for (const Shape& shape : multihead::mpi::shapes()) {
    shape_names += (shape_names.empty() ? "" : ", ") + std::string(shape.name);
  }
  app.add_option("--shape", arguments.shape, shape_names)->capture_default_str();
  const std::map<std::string, Method> methods{{"ring", Method::kRing},
                                              {"all_gather", Method::kAllGather},
                                              {"heads", Method::kHeads},
                                              {"decode", Method::kDecode}};
  std::string method = "ring", layout = "contiguous";
  app.add_option("--method", method, "How the ranks share the work")
      ->check(CLI::IsMember({"ring", "all_gather", "heads", "decode"}))
      ->capture_default_str();
  app.add_option("--layout", layout, "Which rows a rank holds")
      ->check(CLI::IsMember({"contiguous", "zigzag"}))
      ->capture_default_str();
  app.add_flag("--causal", arguments.visible.causal, "Causal, aligned at the last query and key");
  app.add_option("--window", arguments.visible.left, "Tokens back that a query sees; -1: all")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 31))
      ->capture_default_str();
  app.add_flag("--check", arguments.check, "Compare with one process; 1 if outputs differ");
  app.add_option("--threads", arguments.threads, "Of each rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--repeats", arguments.repeats, "Calls, of which the fastest is printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--delay", arguments.delay_ms, "Milliseconds that every transfer takes at least")
      ->check(CLI::Range(0.0, 60000.0))
      ->capture_default_str();
  app.add_option("--time-limit", arguments.time_limit, "Seconds to wait for other ranks")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    if (rank == 0) std::fputs(app.help().c_str(), stdout);
    return multihead::kExitOk;
  } catch (const CLI::ParseError& error) {
    return refuse(rank, error.what());
  }
  arguments.method = methods.at(method);
  arguments.layout = layout == "zigzag" ? Layout::kZigzag : Layout::kContiguous;
  for (const Shape& shape : multihead::mpi::shapes()) {
    if (arguments.shape == shape.name) return run(arguments, shape, rank);
  }
  return refuse(rank, "--shape: expected one of " + shape_names + ", got " + arguments.shape);
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0, rank = 0;
  // MPI_THREAD_FUNNELED suffices, because the computation's threads make no MPI calls.
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    std::fprintf(stderr, "MPI cannot be initialized\n");
    return multihead::kExitFailed;
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int code = multihead::kExitFailed;
  try {
    code = run(argc, argv, rank);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "rank %d: memory is exhausted\n", rank);
    MPI_Abort(MPI_COMM_WORLD, multihead::kExitFailed);
  }
  code = multihead::finished(code);
  MPI_Finalize();
  return code;
}
