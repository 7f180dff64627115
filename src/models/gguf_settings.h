// The settings and the names of tensors in a GGUF file, changed to the names of a Hugging Face
// folder.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "multihead/models.h"

namespace multihead::models {

// True for the settings of a GGUF file, by their names there.
bool is_gguf(const Config& settings);

// Changes them. Two settings tell how GGUF stores weights differently. "gguf": norms hold 1 +
// weight where the family adds 1, as Gemma does; matrices are (out, in), also GPT-2's; and q, k and
// v in one matrix are all of q, then k, then v, also BLOOM's. "gguf/neighbour_pairs": in q and k,
// two rows that are rotated together are neighbours. Errors: kFormat (an architecture or a setting
// that is not supported, one of several files).
Status from_gguf(Config& settings, std::vector<StoredTensor>& tensors);

// A tensor whose numbers are settings: factors of rotary frequencies. from_gguf() writes ones for
// them. The later of two tensors for a list counts.
struct RopeFactors {
  std::string_view tensor;
  bool short_factor, long_factor;  // the lists of rope_scaling that it is
};
inline constexpr RopeFactors kRopeFactors[] = {{"rope_freqs.weight", true, true},
                                               {"rope_factors_short.weight", true, false},
                                               {"rope_factors_long.weight", false, true}};

// Writes a number of these lists.
void set_rope_factor(Config& config, const RopeFactors& factors, int64_t at, double number);

}  // namespace multihead::models
