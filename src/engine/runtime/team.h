// Divides the work of calls among several instances of the library that share no memory, such as
// WebAssembly workers. All members make the same calls with the same arguments, in the same order.
// Each member computes some columns of a product and some heads of attention; then the members
// exchange their results. So exactly one member computes each number, with the bits of a single
// instance, and all members hold all results. A member may store only its share of a module's
// matrices (the rows for the outputs that it computes, see nn/parameters.h) and of a cache (the
// heads that it computes, see engine/cache/cache_access.h).
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/context.h"
#include "multihead/status.h"
#include "rules/shared.h"

namespace multihead::engine {

struct ForwardPlan;
struct LinearCall;

// The team of a context, for calls that may divide their work. WorkerTeam implements
// the exchange of results, in WebAssembly and in tests; a native program never has a team.
class Team {
 public:
  // Exchanges `rows` rows, `stride` bytes apart. In each row, member m has set the bytes bounds[m]
  // to bounds[m + 1] - 1; afterwards every member has all bytes. Returns false if a member has
  // left.
  using Exchange = bool (*)(void* data, int64_t rows, int64_t stride, const uint32_t* bounds);

  Team(int rank, int members, Exchange how) : rank_(rank), members_(members), exchange_(how) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Runs a finished plan whose heads the members divide: computes this member's heads and receives
  // the heads of the others. q and k are transformed, and scratch memory is reserved.
  virtual Status run_attention(ForwardPlan& plan, Context& context) = 0;
  // Runs linear(), in a call that is not checked yet.
  virtual Status run_linear(const LinearCall& call, Context& context) = 0;

  int rank() const { return rank_; }
  int members() const { return members_; }
  // Divides `count` items: a member has the items first_of(count, member) to first_of(count, member
  // + 1) - 1, this member first_of(count) to end_of(count) - 1.
  int64_t first_of(int64_t count, int member) const { return count * member / members_; }
  int64_t first_of(int64_t count) const { return first_of(count, rank_); }
  int64_t end_of(int64_t count) const { return first_of(count, rank_ + 1); }

  // Divides the outputs of a product, in whole blocks of linear().
  MULTIHEAD_SHARED int64_t first_output(int64_t outputs, int member) const;
  int64_t first_output(int64_t outputs) const { return first_output(outputs, rank_); }
  int64_t end_output(int64_t outputs) const { return first_output(outputs, rank_ + 1); }

  // True if the outputs are more than one block, so that no member computes all of them.
  MULTIHEAD_SHARED static bool divides(int64_t outputs);

  // True if linear() gives each member exactly the outputs of its own items. The outputs consist of
  // `items` items side by side, for example heads.
  MULTIHEAD_SHARED bool computes_own(int64_t items, int64_t outputs) const;

  // An exchange takes some microseconds, even without data.
  bool is_worth(double operations) const {
    constexpr double kLeast = 5e5;  // per member
    return operations >= kLeast * members_;
  }

  Status exchange(void* data, int64_t rows, int64_t stride, const std::vector<uint32_t>& bounds) {
    if (exchange_(data, rows, stride, bounds.data())) return {};
    return member_left();
  }
  // Exchanges whole rows of `row_bytes` bytes: member m has set the rows first_of(m) to first_of(m
  // + 1) - 1.
  template <class FirstOf>
  Status exchange_rows(void* data, int64_t row_bytes, const FirstOf& first_of) {
    std::vector<uint32_t> bounds;
    for (int member = 0; member <= members_; ++member) {
      bounds.push_back(static_cast<uint32_t>(first_of(member) * row_bytes));
    }
    return exchange(data, 1, 0, bounds);
  }
  // Exchanges rows of the outputs of a product, `stride` floats apart. Each member has set its own.
  Status exchange_outputs(float* data, int64_t rows, int64_t stride, int64_t outputs) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
    std::vector<uint32_t> bounds;
    for (int member = 0; member <= members_; ++member) {
      bounds.push_back(static_cast<uint32_t>(first_output(outputs, member) * kBytes));
    }
    return exchange(data, rows, stride * kBytes, bounds);
  }
  // False while a KeepOwnOutputs object exists.
  bool exchanges_outputs() const { return exchanges_outputs_; }
  // Waits until every member has called agree(), so that all members change an object or none does.
  Status agree();

  // Returns the error of a call after another member has left.
  MULTIHEAD_SHARED static Status member_left();

 protected:
  ~Team() = default;

 private:
  friend class KeepOwnOutputs;
  int rank_, members_;
  Exchange exchange_;
  bool exchanges_outputs_ = true;
};

// The team of WebAssembly workers, and of threads in tests: divides attention() and linear() among
// its members and exchanges their results. See engine/team/worker_team.cc.
class WorkerTeam final : public Team {
 public:
  using Team::Team;

  Status run_attention(ForwardPlan& plan, Context& context) override;
  Status run_linear(const LinearCall& call, Context& context) override;
};

// While this object exists, linear() does not exchange its outputs: each member has only the
// outputs that it computes, and all others are unspecified. Does nothing if `team` is null.
class KeepOwnOutputs {
 public:
  explicit KeepOwnOutputs(Team* team) : team_(team) { set(false); }
  ~KeepOwnOutputs() { set(true); }
  KeepOwnOutputs(const KeepOwnOutputs&) = delete;
  KeepOwnOutputs& operator=(const KeepOwnOutputs&) = delete;

 private:
  void set(bool exchanges) {
    if (team_ != nullptr) team_->exchanges_outputs_ = exchanges;
  }
  Team* team_;
};

// Sets the team for later calls with this context; null removes it. The team must outlive these
// calls.
void set_team(Context& context, Team* team);
MULTIHEAD_SHARED Team* team_of(Context& context);

}  // namespace multihead::engine
