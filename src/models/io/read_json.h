// Small JSON files as flat lists.
#pragma once

#include <string>

#include "multihead/models.h"

namespace multihead::models {

// As read_config(), for any JSON file that is an object.
Status read_flat_json(const std::string& path, Config& config);

}  // namespace multihead::models
