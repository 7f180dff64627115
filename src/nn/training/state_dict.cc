// The named tensors that continue a training.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "nn/training/trainer.h"

namespace multihead {
namespace {

constexpr const char* kState = "trainer.state";
constexpr int kDigits = 4;  // digits of a 64-bit number, 16 bits each

const char* moment_prefix(const Trainer::Internals& t, int which) {
  if (t.options.optimizer == Optimizer::kSgd) return "optimizer.momentum.";
  return which == 0 ? "optimizer.mean." : "optimizer.variance.";
}

void write_digits(uint64_t number, float* digits) {
  for (int i = 0; i < kDigits; ++i) digits[i] = static_cast<float>(number >> (16 * i) & 0xFFFFU);
}

// Returns false if a float is not a digit: an integer from 0 to 65535.
bool read_digits(const float* digits, uint64_t& number) {
  number = 0;
  for (int i = 0; i < kDigits; ++i) {
    if (!(digits[i] >= 0.0F && digits[i] <= 65535.0F)) return false;
    const auto digit = static_cast<uint64_t>(digits[i]);
    if (static_cast<float>(digit) != digits[i]) return false;
    number |= digit << (16 * i);
  }
  return true;
}

// Lists all tensors of state_dict(): their names, and one block for their values.
nn::ParameterList list_state(const Trainer::Internals& t) {
  nn::ParameterList list;
  for (const nn::Parameter& parameter : t.parameters.list())
    list.add_like(parameter.name, parameter);
  for (int which = 0; which < t.moment_count(); ++which) {
    for (const nn::Parameter& parameter : t.parameters.list()) {
      list.add_like(moment_prefix(t, which) + parameter.name, parameter);
    }
  }
  list.add_like(kState, {.name = kState,
                         .shape = {2 * kDigits},
                         .role = nn::ParameterRole::kBias,
                         .layout = nn::DictLayout::kAsInMemory,
                         .offset = 0});
  return list;
}

}  // namespace

void Trainer::Internals::write_state() {
  write_digits(static_cast<uint64_t>(steps), state);
  write_digits(options.seed, state + kDigits);
}

Status Trainer::state_dict(StateDict& dict) const {
  return engine::memory_guard([&]() -> Status {
    if (internals_ == nullptr) return option_error(Name::kTrainer, Message::kCreated);
    const Trainer::Internals& t = *internals_;
    if (t.parts > 0) return option_error(Name::kTrainer, Message::kNoPendingGradients, t.parts);
    StateDict all = t.parameters.state_dict();
    for (int which = 0; which < t.moment_count(); ++which) {
      for (auto& [name, tensor] : t.parameters.state_dict(t.moment(which))) {
        all.emplace(moment_prefix(t, which) + name, tensor);
      }
    }
    all.emplace(kState, ConstTensor(t.state, {2 * kDigits}));
    dict = std::move(all);
    return {};
  });
}

Status Trainer::load_state_dict(const StateDict& dict) {
  return engine::memory_guard([&]() -> Status {
    if (internals_ == nullptr) return option_error(Name::kTrainer, Message::kCreated);
    Trainer::Internals& t = *internals_;
    if (t.parts > 0) return option_error(Name::kTrainer, Message::kNoPendingGradients, t.parts);
    nn::Parameters loaded;
    // Programs may store tensors of their own under names that begin with "run.".
    const auto ignored = [](std::string_view name) { return name.starts_with("run."); };
    MULTIHEAD_TRY(loaded.load(list_state(t), dict, {}, ignored));
    const int64_t elements = t.parameters.elements();
    const float* from = loaded.values();
    uint64_t steps = 0, seed = 0;
    const float* const state = from + (1 + t.moment_count()) * elements;
    if (!read_digits(state, steps) || !read_digits(state + kDigits, seed) || steps >> 62U != 0) {
      return engine::text_error(StatusCode::kShape, Name::kStateDict, Message::kTrainerState,
                                kState);
    }
    std::copy_n(from, elements, t.parameters.values());
    for (int which = 0; which < t.moment_count(); ++which) {
      from += elements;
      std::copy_n(from, elements, t.moment(which));
    }
    t.steps = static_cast<int64_t>(steps);
    t.options.seed = seed;
    t.write_state();
    t.trainee->parameters_changed();
    return {};
  });
}

}  // namespace multihead
