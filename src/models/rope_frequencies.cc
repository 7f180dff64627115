#include "models/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>
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
  for (const std::string& name :
       {std::string("rope_scaling"), std::string("rope_parameters"), object}) {
    if (config.has(name)) config.fail(name, "an object", described(config.find(name)));
  }
  ConfigReader inner(config, group);
  const auto has = [&](const char* name) { return scaled && inner.has(name); };

  // Settings outside the group hold if the group lacks them. null is the same as none.
  const auto outer = [&](const char* name, const char* field, double absent) {
    if (has(name)) return inner.number(name, absent, {});
    return field != nullptr && config.has(field) ? config.number(field, absent, {}) : absent;
  };
  theta_ = outer("rope_theta", fallback.theta_field, fallback.theta);
  const double partial =
      outer("partial_rotary_factor", fallback.partial_rotary_field, fallback.partial_rotary);
  const double rotated = std::floor(static_cast<double>(fallback.head_dim) * partial);
  const auto fail = [&](const char* name, const char* field, std::string_view expected,
                        const std::string& got) {
    if (has(name)) {
      inner.fail(name, expected, got);
    } else {
      config.fail(field, expected, got);
    }
  };
  if (rotated < 2 || std::fmod(rotated, 2.0) != 0 ||
      rotated > static_cast<double>(fallback.head_dim)) {
    fail("partial_rotary_factor", fallback.partial_rotary_field,
         "an even number of rotated elements of a head",
         text_of(rotated) + " of " + std::to_string(fallback.head_dim));
  }
  if (!config.status().ok()) return;
  const auto rotary = static_cast<int64_t>(rotated);
  base_.resize(static_cast<size_t>(rotary / 2));
  write_frequencies(theta_, rotary, base_.data());
  if (scaled && !fallback.base_only) scale(config, inner, rotary, fallback);
  if (fallback.dynamic_factor > 0) {
    dynamic_factor_ = fallback.dynamic_factor;
    limit_ = fallback.dynamic_positions;
  }
  const auto usable = [](double frequency) { return frequency <= kMostNumber; };
  if (!std::all_of(base_.begin(), base_.end(), usable) ||
      !std::all_of(long_.begin(), long_.end(), usable)) {
    fail("rope_theta", fallback.theta_field, "a base that gives finite frequencies",
         text_of(theta_));
  }
}

void RopeFrequencies::scale(ConfigReader& config, ConfigReader& group, int64_t rotary,
                            const Fallback& fallback) {
  const auto number = [&](const char* name, double absent, const Numbers& range = {}) {
    return group.has(name) ? group.number(name, absent, range) : absent;
  };
  std::string type;
  for (const char* name : {"type", "rope_type"}) {
    if (group.has(name)) type = group.text(name, type);
  }
  if (type.empty()) {
    // Settings of a scaling whose type is missing.
    constexpr std::string_view kOfEveryType[] = {"rope_theta", "partial_rotary_factor"};
    const std::string other = group.other_field(kOfEveryType);
    if (!other.empty()) group.fail("rope_type", "a type beside " + other, "nothing");
    return;
  }
  if (fallback.phi3 && (type == "su" || type == "yarn")) type = "longrope";
  if (type == "default" || type == "mrope") return;

  const auto length = [](ConfigReader& from, const char* name, int64_t absent) {
    return from.has(name) ? from.integer(name, absent, {.most = kMostRows}) : absent;
  };
  const int64_t positions = length(config, "max_position_embeddings", fallback.positions);
  // In transformers, the field outside the group has precedence over the field in the group.
  const char* const original_field = "original_max_position_embeddings";
  const int64_t original = length(config, original_field, length(group, original_field, positions));
  const double stretch = static_cast<double>(positions) / static_cast<double>(original);
  const double factor = number("factor", 0.0);
  const auto needs_factor = [&] {
    if (!group.has("factor")) group.fail("factor", "more than 0", "nothing");
    return config.status().ok();
  };
  if (type == "linear") {
    if (!needs_factor()) return;
    for (double& frequency : base_) frequency /= factor;
  } else if (type == "ntk" && fallback.ntk) {
    if (!needs_factor() || factor <= 1) return;
    // kexue.fm/archives/9706: by a larger base, or by a factor that grows with the pair's number.
    const auto dim = static_cast<double>(rotary);
    if (!group.has("mixed_b")) {
      theta_ *= factor;
      write_frequencies(theta_, rotary, base_.data());
      for (double& frequency : base_) frequency /= std::pow(factor, 2.0 / dim);
      return;
    }
    const double power = number("mixed_b", 0.0), rate = std::log(factor) / std::pow(dim / 2, power);
    for (size_t pair = 0; pair < base_.size(); ++pair) {
      base_[pair] /= std::exp(rate * std::pow(static_cast<double>(pair + 1), power));
    }
  } else if (type == "dynamic" && fallback.alpha && group.has("alpha")) {
    const auto dim = static_cast<double>(rotary);
    if (rotary < 4) config.fail("head_dim", "4 or more for alpha", std::to_string(rotary));
    theta_ *= std::pow(number("alpha", 1.0), dim / (dim - 2.0));
    write_frequencies(theta_, rotary, base_.data());
  } else if (type == "dynamic") {
    if (!needs_factor()) return;
    limit_ = positions;
    dynamic_factor_ = factor;
  } else if (type == "llama3") {
    if (!needs_factor()) return;
    const double low = number("low_freq_factor", 1.0), high = number("high_freq_factor", 4.0);
    if (!(high > low)) {
      group.fail("high_freq_factor", "more than low_freq_factor", text_of(high));
      return;
    }
    scale_llama3(base_, factor, low, high, static_cast<double>(original));
  } else if (type == "yarn") {
    const double ratio = factor > 0 ? factor : stretch;
    const Numbers any{.least = 0};
    const double mscale = number("mscale", 0, any), all = number("mscale_all_dim", 0, any);
    const double inferred = mscale != 0 && all != 0
                                ? yarn_scale(ratio, mscale) / yarn_scale(ratio, all)
                                : yarn_scale(ratio, 1.0);
    factor_ = number("attention_factor", inferred);
    const double fast = number("beta_fast", 0, any), slow = number("beta_slow", 0, any);
    // The ramp is a quotient of logarithms to this base.
    if (!(theta_ > 1)) config.fail(fallback.theta_field, "more than 1 for yarn", text_of(theta_));
    scale_yarn(base_, theta_, rotary,
               {ratio, fast != 0 ? fast : 32.0, slow != 0 ? slow : 1.0,
                static_cast<double>(original), group.flag("truncate", true)});
  } else if (type == "longrope") {
    const double ratio = factor > 0 ? factor : stretch;
    if (ratio > 1.0 && original < 2) config.fail(original_field, "2 or more", "1");
    const double inferred =
        ratio <= 1.0 ? 1.0
                     : std::sqrt(1.0 + std::log(ratio) / std::log(static_cast<double>(original)));
    factor_ = number("attention_factor", inferred);
    limit_ = original;
    long_ = base_;
    for (const auto& [name, list] :
         {std::pair{"short_factor", &base_}, std::pair{"long_factor", &long_}}) {
      for (size_t pair = 0; pair < list->size() && config.status().ok(); ++pair) {
        const std::string element = name + ("." + std::to_string(pair));
        if (group.find(element) == nullptr) group.fail(element, "a number", "nothing");
        (*list)[pair] /= group.number(element.c_str(), 1.0, {});
      }
    }
  } else {
    group.fail("rope_type", "default, linear, dynamic, yarn, longrope or llama3", '"' + type + '"');
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
  if (limit_ == 0 || a == b) return true;
  return (a <= limit_) == (b <= limit_) && (a <= limit_ || !dynamic());
}

}  // namespace multihead::models
