// A member's side of a call that the workers of a team run together.

import type { TeamSocket } from '../../load/loader.js';
import type { Runtime } from '../../runtime/operands.js';
import { checkCount } from '../../runtime/options.js';
import { type TeamCall, TeamLink } from './team.js';

/** Runs `perform` as a member of a team. If it throws, the calls of the other members fail too. */
export function performInTeam<R>({ raw, heap }: Runtime, socket: TeamSocket, team: TeamCall, perform: () => R): R {
  const link = new TeamLink(team, () => heap.buffer);
  try {
    raw.setTeam(checkCount(team.rank, 'rank', 0), checkCount(team.members, 'members'));
    socket.link = link;
    const result = perform();
    link.finish();
    return result;
  } catch (error) {
    link.leave();
    throw error;
  } finally {
    socket.link = undefined;
    if (!raw.dead) raw.setTeam(0, 0);
  }
}
