// The command convert of multihead-model.
#pragma once

namespace multihead {

// argv[0] is the name of the command. Returns an exit code.
int run_convert(int argc, char** argv);

}  // namespace multihead
