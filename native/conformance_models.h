// Golden cases of whole models.
#pragma once

#include <string>
#include <vector>

#include "conformance.h"
#include "multihead/context.h"

namespace multihead::conformance {

// True if the folder is a model with cases: config.json and cases.json.
bool is_model_folder(const std::string& folder);

// Runs every case of a model. A case fails as in run_folder().
std::vector<CaseResult> run_model_folder(const std::string& folder, Context& context);

}  // namespace multihead::conformance
