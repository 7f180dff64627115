// How the jobs of a call would fill many cores: multihead-bench --schedule.
#pragma once

#include <vector>

#include "cases.h"

namespace multihead::bench {

// For each case, runs its call with as many threads as each of `cores`, but the jobs one after the
// other, and times each of them. From that follows when each job would begin and end on that many
// equally fast cores, which take the jobs in their order, the next one whenever a core is free.
// What lies between the jobs (checks, planning) has one core. Prints the speed-up over one thread
// and the share of the cores' time that is idle, and, for no more cores than this machine has, the
// measured speed-up. Caches and memory that the cores share, and waiting for other jobs, are not
// simulated.
//
// Returns false if a call fails.
bool print_schedules(const std::vector<Case>& cases, const std::vector<int>& cores);

}  // namespace multihead::bench
