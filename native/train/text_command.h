// multihead-train text FILE
#pragma once

#include "exit_code.h"
#include "run_options.h"
#include "text_model.h"

namespace multihead::train {

// Trains a model on a text, then prints its held-out loss and a sample. Throws a Failure.
ExitCode run_text(const TextOptions& options, const RunOptions& run);

}  // namespace multihead::train
