#include "engine/team.h"

#include "engine/error.h"
#include "engine/scratch.h"

namespace multihead::engine {

Status Team::member_left() { return option_error(Name::kTeam, Message::kTeamMembers); }

void set_team(Context& context, Team* team) { Context::Internals::team_of(context) = team; }

Team* team_of(Context& context) { return Context::Internals::team_of(context); }

}  // namespace multihead::engine
