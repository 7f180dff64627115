// A trainer's state as a file.
#include <filesystem>
#include <string>
#include <system_error>

#include "engine/guard.h"
#include "multihead/safetensors.h"
#include "multihead/training.h"
#include "nn/io/safetensors_format.h"

namespace multihead {

Status Trainer::save(const std::string& path) const {
  return engine::memory_guard([&]() -> Status {
    StateDict dict;
    if (Status status = state_dict(dict); !status.ok()) return status;
    std::error_code error;
    // Renaming would put a file in the place of a device.
    const std::filesystem::file_status there = std::filesystem::status(path, error);
    if (std::filesystem::is_other(there)) {
      return nn::format_error(path, "a file that can be written", "something else");
    }
    const std::string beside = path + ".part";
    Status status = write_safetensors(dict, SafetensorsType::kAsGiven, beside);
    if (status.ok()) {
      std::filesystem::rename(beside, path, error);
      if (!error) return {};
      status = nn::format_error(path, "a file that can be written", error.message());
    }
    std::filesystem::remove(beside, error);
    return status;
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
