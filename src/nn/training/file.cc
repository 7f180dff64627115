// A trainer's state as a file.
#include <string>

#include "engine/error/error.h"
#include "multihead/safetensors.h"
#include "multihead/training.h"
#include "nn/io/safetensors_format.h"

namespace multihead {

Status Trainer::save(const std::string& path) const {
  return engine::memory_guard([&]() -> Status {
    StateDict dict;
    MULTIHEAD_TRY(state_dict(dict));
    return nn::replace_safetensors(dict, path);
  });
}

Status Trainer::load(const std::string& path) {
  return engine::memory_guard([&]() -> Status {
    Safetensors file;
    MULTIHEAD_TRY(Safetensors::read(path, file));
    StateDict dict;
    MULTIHEAD_TRY(file.state_dict(dict));
    return load_state_dict(dict);
  });
}

}  // namespace multihead
