// Divides the work of calls among several instances of the library that share no memory, such as
// WebAssembly workers. All members make the same calls with the same arguments, in the same order.
// Of a product each computes some columns, of attention some heads, and the members then exchange
// them. So every number is computed by one member, with the bits that a single instance gives, and
// all members hold all results. Of a module's matrices each may hold its share alone: the rows for
// the outputs that it computes (see nn/parameters.h); and of a cache the heads that it computes
// (see engine/cache/cache_access.h).
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/context.h"
#include "multihead/status.h"

namespace multihead::engine {

class Team {
 public:
  // Exchanges `rows` rows, `stride` bytes apart, of which member m has set the bytes bounds[m] to
  // bounds[m + 1] - 1; afterwards all have all. False if a member has left the call.
  using Exchange = bool (*)(void* data, int64_t rows, int64_t stride, const uint32_t* bounds);

  Team(int rank, int members, Exchange how) : rank_(rank), members_(members), exchange_(how) {}

  int rank() const { return rank_; }
  int members() const { return members_; }
  // The first of `count` items that belong to a member; those of this one are first_of(count) to
  // end_of(count) - 1.
  int64_t first_of(int64_t count, int member) const { return count * member / members_; }
  int64_t first_of(int64_t count) const { return first_of(count, rank_); }
  int64_t end_of(int64_t count) const { return first_of(count, rank_ + 1); }

  // The same for the outputs of a product, in the units in which linear() computes them.
  int64_t first_output(int64_t outputs, int member) const;
  int64_t first_output(int64_t outputs) const { return first_output(outputs, rank_); }
  int64_t end_output(int64_t outputs) const { return first_output(outputs, rank_ + 1); }

  // Whether there is more than one such unit, so that no member computes all outputs.
  static bool divides(int64_t outputs);

  // Whether linear() gives each member the outputs of its own items, if `outputs` are those of
  // `items` items side by side, such as heads.
  bool computes_own(int64_t items, int64_t outputs) const;

  // An exchange takes some microseconds, even without data.
  bool is_worth(double operations) const {
    constexpr double kLeast = 5e5;  // for each member
    return operations >= kLeast * members_;
  }

  Status exchange(void* data, int64_t rows, int64_t stride, const std::vector<uint32_t>& bounds) {
    if (exchange_(data, rows, stride, bounds.data())) return {};
    return member_left();
  }
  // Exchanges whole rows of a matrix, `row_bytes` each: member m has set the rows first_of(m) to
  // first_of(m + 1) - 1.
  template <class FirstOf>
  Status exchange_rows(void* data, int64_t row_bytes, const FirstOf& first_of) {
    std::vector<uint32_t> bounds;
    for (int member = 0; member <= members_; ++member) {
      bounds.push_back(static_cast<uint32_t>(first_of(member) * row_bytes));
    }
    return exchange(data, 1, 0, bounds);
  }
  // False while a KeepOwnOutputs lives.
  bool exchanges_outputs() const { return exchanges_outputs_; }
  // Waits until every member has come here, so that either all members change an object or none
  // does.
  Status agree();

  // The error of a call that cannot go on without the others.
  static Status member_left();

 private:
  friend class KeepOwnOutputs;
  int rank_, members_;
  Exchange exchange_;
  bool exchanges_outputs_ = true;
};

// While it lives, linear() leaves each member with the outputs that it computes, without an
// exchange; the others are unspecified. For no team it does nothing.
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

// Calls with this context are those of a team from now on; null ends that. The team must live as
// long.
void set_team(Context& context, Team* team);
Team* team_of(Context& context);

}  // namespace multihead::engine
