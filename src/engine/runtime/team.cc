#include "engine/runtime/team.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/gemm/gemm.h"
#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "rules/integers.h"

namespace multihead::engine {
namespace {

// Returns the number of columns in a block of linear(); members' shares are multiples of it.
int64_t outputs_of_unit() {
  const cpu::GemmParams product{.rows = 1, .columns = 1, .b_transposed = true};
  return cpu::projection_layout(product, 1, false).job_columns;
}

}  // namespace

Status Team::member_left() { return option_error(Name::kTeam, Message::kTeamMembers); }

bool Team::divides(int64_t outputs) { return outputs > outputs_of_unit(); }

int64_t Team::first_output(int64_t outputs, int member) const {
  const int64_t unit = outputs_of_unit();
  return std::min(outputs, first_of(rules::ceil_div(outputs, unit), member) * unit);
}

bool Team::computes_own(int64_t items, int64_t outputs) const {
  for (int member = 1; member < members_; ++member) {
    if (first_output(outputs, member) != first_of(items, member) * (outputs / items)) return false;
  }
  return true;
}

Status Team::agree() {
  std::vector<char> here(static_cast<size_t>(members_));
  return exchange_rows(here.data(), 1, [](int member) { return member; });
}

void set_team(Context& context, Team* team) { Context::Internals::team_of(context) = team; }

Team* team_of(Context& context) { return Context::Internals::team_of(context); }

}  // namespace multihead::engine
