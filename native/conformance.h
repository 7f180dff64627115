// Golden cases in the "attention-conformance-1" format: NAME.json lists cases, NAME.safetensors
// holds their tensors. Shared by multihead-conformance and the tests.
#pragma once

#include <string>
#include <vector>

#include "multihead/context.h"

namespace multihead::conformance {

struct CaseResult {
  std::string file;    // "sdpa"
  std::string name;    // the case's name
  std::string reason;  // why it failed; empty if it passed
  double worst = 0;    // cases of models: the largest error, as a part of its tolerance
  bool passed() const { return reason.empty(); }
};

// Runs every case of every manifest in `folder`, in the order of their names, and of every folder
// of a model in it; or of the model whose folder it is. A case fails if it has an attribute, an
// input or an output that the runner does not use, or compares nothing. A folder or manifest that
// cannot be read or has no cases is reported as one failed case with its name.
std::vector<CaseResult> run_folder(const std::string& folder, Context& context);

}  // namespace multihead::conformance
