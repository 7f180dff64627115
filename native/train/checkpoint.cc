#include "checkpoint.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "multihead/safetensors.h"
#include "nn/io/safetensors_format.h"
#include "run_options.h"

namespace multihead::train {
namespace {

constexpr const char* kCurve = "run.curve";

[[noreturn]] void refuse_option(const std::string& option, const std::string& path,
                                const std::string& of_file, const std::string& given) {
  throw Failure(kExitUsage,
                option + ": expected " + of_file + ", as in " + path + ", got " + given);
}

}  // namespace

void save_checkpoint(const Trainer& trainer, const std::vector<KeptOption>& options,
                     const Curve& curve, const std::string& path) {
  StateDict dict;
  check(trainer.state_dict(dict), kExitFailed);
  std::vector<float> values;
  values.reserve(options.size());  // never reallocate: the dict has views of the values
  for (const KeptOption& option : options) {
    values.push_back(static_cast<float>(option.value));
    dict.emplace(option.name, ConstTensor(&values.back(), {1}));
  }
  const std::vector<float> rows = packed(curve);
  const auto count = static_cast<int64_t>(curve.points.size());
  dict.emplace(kCurve, ConstTensor(rows.data(), {count, packed_width(curve)}));
  check(nn::replace_safetensors(dict, path), kExitIo);
}

void load_checkpoint(Trainer& trainer, const std::vector<KeptOption>& options, Curve& curve,
                     const std::string& path) {
  Safetensors file;
  check(Safetensors::read(path, file), kExitIo);
  StateDict dict;
  check(file.state_dict(dict), kExitIo);
  const uint64_t seed = trainer.options().seed;
  for (const KeptOption& option : options) {
    const auto found = dict.find(option.name);
    if (found == dict.end() || found->second.dtype != DType::kF32 ||
        !(found->second.shape == Dims{1})) {
      throw Failure(kExitUsage, "--resume: expected a checkpoint of this command, got " + path +
                                    ", which has no " + option.name);
    }
    const auto value = static_cast<int64_t>(*static_cast<const float*>(found->second.data));
    if (value != option.value) {
      refuse_option(option.option, path, option.shown(value), option.shown(option.value));
    }
    dict.erase(found);
  }
  const auto found = dict.find(kCurve);
  const bool has_curve = found != dict.end();
  const ConstAnyTensor rows = has_curve ? found->second : ConstAnyTensor();
  if (has_curve) dict.erase(found);
  check(trainer.load_state_dict(dict));
  if (trainer.options().seed != seed) {
    refuse_option("--seed", path, std::to_string(trainer.options().seed), std::to_string(seed));
  }
  if (!has_curve) return;
  const int64_t width = packed_width(curve);
  if (rows.dtype != DType::kF32 || rows.shape.rank() != 2 || rows.shape[1] != width ||
      rows.shape[0] > trainer.steps()) {
    throw Failure(kExitUsage, "--resume: expected the numbers of at most " +
                                  std::to_string(trainer.steps()) + " steps, " +
                                  std::to_string(width) + " of each, for " + kCurve + ", got " +
                                  rows.shape.to_string() + " in " + path);
  }
  unpack({static_cast<const float*>(rows.data), static_cast<size_t>(rows.shape.elements())},
         trainer.steps(), curve);
}

}  // namespace multihead::train
