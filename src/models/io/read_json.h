// Small JSON files as flat lists.
#pragma once

#include <string>

#include "multihead/models.h"

namespace multihead::models {

// Reads a JSON object as read_config() does.
Status read_flat_json(const std::string& path, Config& config);

}  // namespace multihead::models
