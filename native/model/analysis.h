// The commands lens, patch, ablate and attribute of multihead-model.
#pragma once

namespace multihead {

// True if this is the name of one of the commands.
bool is_analysis(const char* name);
// Runs the command argv[0]. Returns an exit code.
int run_analysis(int argc, char** argv);

}  // namespace multihead
