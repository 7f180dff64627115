// The frequencies of rotary positions, with the scalings of transformers' modeling_rope_utils.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config_reader.h"

namespace multihead::models {

// RoPE of some layers: pair c of a head's first 2 * pairs() numbers is rotated by position *
// frequency c, and then multiplied by `factor`.
class RopeFrequencies {
 public:
  // Defaults and names of fields of a family.
  struct Fallback {
    double theta = 10000.0;
    const char* theta_field = "rope_theta";
    double partial_rotary = 1.0;
    const char* partial_rotary_field = "partial_rotary_factor";
    int64_t head_dim = 0;
    int64_t positions = 0;          // where max_position_embeddings is not there
    bool phi3 = false;              // "su" and "yarn" are older names of longrope
    double dynamic_factor = 0;      // more than 0: "dynamic", beyond
    int64_t dynamic_positions = 0;  // this length
    bool ntk = false;               // of GTE, whose "ntk" is fixed too
    bool alpha = false;             // "dynamic" with `alpha` is another base, whatever the length
    bool scaled = true;             // false: rope_scaling is for other layers
    bool base_only = false;         // no scaling, wherever it stands
  };

  // Reads `object`, such as "rope_parameters" or "rope_parameters.sliding_attention" of
  // transformers 5, or else rope_theta and rope_scaling of transformers 4. Errors stay in the
  // reader.
  RopeFrequencies() = default;
  RopeFrequencies(ConfigReader& config, const std::string& object, const Fallback& fallback);

  int64_t pairs() const { return static_cast<int64_t>(base_.size()); }
  // Writes the pairs() frequencies of a call whose last position is tokens - 1.
  void at(int64_t tokens, double* frequencies) const;
  // True if calls of `a` and `b` tokens have the same frequencies.
  bool same(int64_t a, int64_t b) const;
  // True if the frequencies change with every token of a long text.
  bool dynamic() const { return dynamic_factor_ > 0; }
  double factor() const { return factor_; }

 private:
  // Applies the scaling of `group`, if it has one.
  void scale(ConfigReader& config, ConfigReader& group, int64_t rotary, const Fallback& fallback);

  std::vector<double> base_;  // unless the call is longer than limit_
  std::vector<double> long_;  // longrope: if it is
  int64_t limit_ = 0;         // 0: the frequencies do not depend on the call
  double theta_ = 10000.0;
  double dynamic_factor_ = 0;  // dynamic: more than 0
  double factor_ = 1.0;
};

}  // namespace multihead::models
