// Golden cases in the "attention-conformance-1" format: NAME.json lists cases, NAME.safetensors
// holds their tensors. Shared by multihead-conformance and the tests.
#pragma once

#include <string>
#include <vector>

#include "multihead/context.h"

namespace multihead::conformance {

struct CaseResult {
  std::string file;    // "sdpa"
  std::string name;    // of the case
  std::string reason;  // why it failed; empty when it passed
  bool passed() const { return reason.empty(); }
};

// Every case of every manifest in `folder`, in the order of their names. A case that is
// malformed, uses what is not supported yet, or compares nothing has failed. A folder or
// manifest that cannot be read or holds no cases is one failed case named after it.
std::vector<CaseResult> run_folder(const std::string& folder, Context& context);

}  // namespace multihead::conformance
