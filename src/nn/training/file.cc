// A trainer's state as a file.
#include <string>

#include "engine/error/guard.h"
#include "multihead/safetensors.h"
#include "multihead/training.h"
#include "nn/io/safetensors_format.h"

namespace multihead {

Status Trainer::save(const std::string& path) const {
  return engine::memory_guard([&]() -> Status {
    StateDict dict;
    if (Status status = state_dict(dict); !status.ok()) return status;
    return nn::replace_safetensors(dict, path);
  });
}

Status Trainer::load(const std::string& path) {
  return engine::memory_guard([&]() -> Status {
    Safetensors file;
    if (Status status = Safetensors::read(path, file); !status.ok()) return status;
    StateDict dict;
    if (Status status = file.state_dict(dict); !status.ok()) return status;
    return load_state_dict(dict);
  });
}

}  // namespace multihead
