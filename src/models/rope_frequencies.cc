#include "models/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "rules/rope.h"

namespace multihead::models {
namespace {

// Writes the frequencies of the rotary / 2 pairs, without scaling.
void write_frequencies(double theta, int64_t rotary, double* to) {
  for (int64_t pair = 0; pair < rotary / 2; ++pair) {
    to[pair] = rules::rope_frequency(pair, theta, rotary);
  }
}

// Meta's scaling of Llama 3.1: long wavelengths are divided by the factor, short ones stay, and
// between them the two are mixed.
void scale_llama3(std::vector<double>& frequencies, double factor, double low, double high,
                  double original) {
  for (double& frequency : frequencies) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength > original / low) {
      frequency /= factor;
    } else if (wavelength >= original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      frequency = (1.0 - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

struct Yarn {
  double factor, fast, slow, original;
  bool truncate;
};

// YaRN (arXiv:2309.00071): frequencies with few rotations over the original length are divided by
// the factor, those with many stay, with a linear ramp between.
void scale_yarn(std::vector<double>& frequencies, double theta, int64_t rotary, const Yarn& yarn) {
  const auto dim = static_cast<double>(rotary);
  const auto correction = [&](double rotations) {
    return dim * std::log(yarn.original / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(theta));
  };
  double low = correction(yarn.fast), high = correction(yarn.slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t pair = 0; pair < frequencies.size(); ++pair) {
    const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
    frequencies[pair] = frequencies[pair] / yarn.factor * ramp + frequencies[pair] * (1.0 - ramp);
  }
}

// The factor on cosines and sines that YaRN's authors recommend.
double yarn_scale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

RopeFrequencies::RopeFrequencies(ConfigReader& config, const std::string& object,
                                 const Fallback& fallback) {
  // A name of the group of settings, wherever the configuration has it.
  const bool new_form = config.has_members(object);
  const std::string group = new_form ? object : "rope_scaling";
  const bool scaled = new_form || fallback.scaled;
  const auto in_group = [&](const char* name) { return group + "." + name; };
  const auto number = [&](const char* name, double absent) {
    if (!scaled || !config.has(in_group(name))) return absent;
    return config.number(in_group(name).c_str(), absent);
  };

  // Settings outside the group hold if the group lacks them.
  double outer_theta = config.number(fallback.theta_field, fallback.theta);
  const double outer_partial =
      config.number(fallback.partial_rotary_field, fallback.partial_rotary);
  theta_ = number("rope_theta", outer_theta);
  const double partial = number("partial_rotary_factor", outer_partial);
  if (!(theta_ > 0)) config.fail(fallback.theta_field, "more than 0", text_of(theta_));
  const auto rotary = static_cast<int64_t>(static_cast<double>(fallback.head_dim) * partial);
  if (rotary < 2 || rotary % 2 != 0 || rotary > fallback.head_dim) {
    config.fail(fallback.partial_rotary_field, "an even number of rotated elements of a head",
                std::to_string(rotary) + " of " + std::to_string(fallback.head_dim));
    return;
  }
  base_.resize(static_cast<size_t>(rotary / 2));
  write_frequencies(theta_, rotary, base_.data());

  std::string type = "default";
  if (scaled) {
    for (const char* name : {"type", "rope_type"}) {
      if (config.has(in_group(name))) type = config.text(in_group(name).c_str(), type);
    }
  }
  if (fallback.phi3 && (type == "su" || type == "yarn")) type = "longrope";
  if (type == "default" || type == "mrope") return;

  const auto positions = static_cast<double>(fallback.positions);
  // In transformers, the field outside the group has precedence over the field in the group.
  double original = number("original_max_position_embeddings", positions);
  if (config.has("original_max_position_embeddings")) {
    original = config.number("original_max_position_embeddings", original);
  }
  const double factor = number("factor", 0.0);
  const auto needs_factor = [&] {
    if (!(factor > 0)) config.fail(in_group("factor"), "more than 0", text_of(factor));
    return factor > 0;
  };
  if (type == "linear") {
    if (!needs_factor()) return;
    for (double& frequency : base_) frequency /= factor;
  } else if (type == "dynamic") {
    if (!needs_factor()) return;
    limit_ = fallback.positions;
    dynamic_factor_ = factor;
  } else if (type == "llama3") {
    if (!needs_factor()) return;
    const double low = number("low_freq_factor", 1.0), high = number("high_freq_factor", 4.0);
    if (!(high > low) || !(low > 0)) {
      config.fail(in_group("high_freq_factor"), "more than low_freq_factor", text_of(high));
      return;
    }
    scale_llama3(base_, factor, low, high, original);
  } else if (type == "yarn") {
    const double ratio = factor > 0 ? factor : positions / original;
    const double mscale = number("mscale", 0), all = number("mscale_all_dim", 0);
    const double inferred = mscale != 0 && all != 0
                                ? yarn_scale(ratio, mscale) / yarn_scale(ratio, all)
                                : yarn_scale(ratio, 1.0);
    factor_ = number("attention_factor", inferred);
    const double fast = number("beta_fast", 32.0), slow = number("beta_slow", 1.0);
    const std::string truncate = in_group("truncate");
    scale_yarn(base_, theta_, rotary,
               {ratio, fast != 0 ? fast : 32.0, slow != 0 ? slow : 1.0, original,
                config.flag(truncate.c_str(), true)});
  } else if (type == "longrope") {
    const double ratio = factor > 0 ? factor : positions / original;
    const double inferred =
        ratio <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(ratio) / std::log(original));
    factor_ = number("attention_factor", inferred);
    limit_ = static_cast<int64_t>(original);
    long_ = base_;
    for (const auto& [name, list] :
         {std::pair{"short_factor", &base_}, std::pair{"long_factor", &long_}}) {
      for (size_t pair = 0; pair < list->size(); ++pair) {
        const std::string element = in_group(name) + "." + std::to_string(pair);
        const double divisor = config.number(element.c_str(), 0.0);
        if (!(divisor > 0)) {
          config.fail(element, "more than 0", described(config.find(element)));
          return;
        }
        (*list)[pair] /= divisor;
      }
    }
  } else {
    config.fail(in_group("rope_type"), "default, linear, dynamic, yarn, longrope or llama3",
                '"' + type + '"');
  }
}

void RopeFrequencies::at(int64_t tokens, double* frequencies) const {
  const bool beyond = limit_ > 0 && tokens > limit_;
  if (!beyond || dynamic_factor_ == 0) {
    const std::vector<double>& from = beyond ? long_ : base_;
    std::copy(from.begin(), from.end(), frequencies);
    return;
  }
  const auto rotary = static_cast<double>(2 * pairs());
  const double stretched =
      dynamic_factor_ * static_cast<double>(tokens) / static_cast<double>(limit_) -
      (dynamic_factor_ - 1.0);
  const double theta = theta_ * std::pow(stretched, rotary / (rotary - 2.0));
  write_frequencies(theta, 2 * pairs(), frequencies);
}

bool RopeFrequencies::same(int64_t a, int64_t b) const {
  // Dynamic scaling changes with every token, and transformers keeps the keys as they are.
  return limit_ == 0 || dynamic_factor_ > 0 || (a <= limit_) == (b <= limit_);
}

}  // namespace multihead::models
