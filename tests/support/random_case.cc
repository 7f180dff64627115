#include "support/random_case.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rules/element.h"

#ifdef __EMSCRIPTEN__
#include <emscripten.h>
#else
#include <cstdlib>
#endif

namespace multihead::testing {
namespace {

#ifdef __EMSCRIPTEN__
// Emscripten's getenv() does not read Node's environment.
EM_JS(double, number_in_environment, (const char* name, double otherwise),
      { return Number(process.env[UTF8ToString(name)] || otherwise); })

int64_t from_environment(const char* name, int64_t otherwise) {
  return static_cast<int64_t>(number_in_environment(name, static_cast<double>(otherwise)));
}
#else
int64_t from_environment(const char* name, int64_t otherwise) {
  const char* const asked = std::getenv(name);
  return asked != nullptr ? std::atoll(asked) : otherwise;
}
#endif

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

DType random_type(Random& random) {
  if (random.chance(0.7)) return DType::kF32;
  return random.pick({DType::kF16, DType::kBF16});
}

// Returns a (B, H, N, d) view in one of the usual memory layouts: (B, H, N, d), (B, N, H, d), or
// rows with a gap after each row, as in packed QKV.
ConstAnyTensor random_tensor(Random& random, const Dims& shape, DType type, RandomCase& result) {
  const int64_t b = shape[0], h = shape[1], n = shape[2], d = shape[3];
  const int64_t gap = random.chance(0.3) ? random.integer(1, 9) : 0;
  const int64_t row = d + gap;
  const bool heads_inside = random.chance(0.3);
  const Dims strides =
      heads_inside ? Dims{n * h * row, row, h * row, 1} : Dims{h * n * row, n * row, row, 1};
  // The memory ends with the last row, so that the sanitizers detect reads beyond it.
  const int64_t used = shape.elements() == 0 ? 0 : b * h * n * row - gap;
  return stored(result, random.floats(used), type, shape, strides);
}

Dims random_mask_shape(Random& random, const Dims& scores) {
  const auto keep = [&](int64_t extent) { return random.chance(0.6) ? extent : int64_t{1}; };
  const int64_t keys = random.chance(0.9) ? scores[3] : 1;
  if (random.chance(0.4)) return {scores[2], keys};
  return {keep(scores[0]), keep(scores[1]), keep(scores[2]), keys};
}

std::span<const float> stored_floats(RandomCase& result, std::vector<float> values) {
  result.storage.push_back(std::move(values));
  return result.storage.back();
}

std::span<const int32_t> random_integers(Random& random, int64_t count, int64_t low, int64_t high,
                                         RandomCase& result) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (int32_t& value : values) value = static_cast<int32_t>(random.integer(low, high));
  result.integers.push_back(std::move(values));
  return result.integers.back();
}

// Chooses lengths first, because alignments may depend on them.
void random_positions(Random& random, RandomCase& result) {
  AttentionOptions& options = result.options;
  const int64_t batch = result.weights_shape[0];
  const int64_t queries = result.weights_shape[2], keys = result.weights_shape[3];
  if (random.chance(0.25)) {
    options.kv_lengths = random_integers(random, batch, 0, keys, result);
  }
  const auto alignment = [&] {
    return random.pick(
        {Alignment::kTopLeft, Alignment::kBottomRight, Alignment::kOffset,
         options.kv_lengths.empty() ? Alignment::kBottomRight : Alignment::kBottomRightOfLength});
  };
  // Some offsets are far beyond all positions, to test that sums do not overflow.
  const auto far = [&] {
    const int64_t least = std::numeric_limits<int64_t>::min();
    const int64_t most = std::numeric_limits<int64_t>::max();
    return random.pick({least, least + 1, -(most / 2), most / 2, most - 1, most});
  };
  const auto offset = [&] {
    return random.chance(0.05) ? far() : random.integer(-queries - 2, keys + 2);
  };
  if (random.chance(0.5)) {
    options.causal.alignment = alignment();
    if (options.causal.alignment == Alignment::kOffset) options.causal.offset = offset();
  }
  if (!random.chance(0.3)) return;
  const auto side = [&] {
    if (random.chance(0.05)) return std::max(far(), int64_t{-1});
    return random.chance(0.3) ? -1 : random.integer(0, random.chance(0.5) ? 8 : keys + 2);
  };
  options.window.left = side();
  options.window.right = side();
  if (!options.window.given() || random.chance(0.3)) return;
  if (options.causal.alignment == Alignment::kNone) {
    options.window.alignment = alignment();
    if (options.window.alignment == Alignment::kOffset) options.window.offset = offset();
  } else if (random.chance(0.5)) {
    // The window may repeat the alignment of the causal order.
    options.window.alignment = options.causal.alignment;
    options.window.offset = options.causal.offset;
  }
}

void random_masks(Random& random, RandomCase& result) {
  AttentionOptions& options = result.options;
  if (random.chance(0.35)) {
    const Dims shape = random_mask_shape(random, result.weights_shape);
    std::vector<uint8_t> mask(static_cast<size_t>(shape.elements()));
    const double density = random.pick({0.0, 0.5, 0.9});
    for (uint8_t& allowed : mask) {
      allowed = random.chance(density) ? static_cast<uint8_t>(random.integer(1, 255)) : 0;
    }
    result.bytes.push_back(std::move(mask));
    options.mask = {result.bytes.back().data(), shape};
  }
  if (random.chance(0.35)) {
    const Dims shape = random_mask_shape(random, result.weights_shape);
    std::vector<float> bias = random.floats(shape.elements(), -2.0F, 2.0F);
    const double hidden = random.pick({0.0, 0.3, 1.0});
    for (float& value : bias) {
      if (random.chance(hidden)) value = random.chance(0.9) ? kNegInf : -3.4e38F;
    }
    options.bias = {stored_floats(result, std::move(bias)).data(), shape};
  }
}

void random_rotation(Random& random, RandomCase& result) {
  const int64_t batch = result.q.shape[0], width = result.q.shape[3];
  if (width < 2) return;
  Rope& rope = result.options.rope;
  rope.style = random.pick({Rope::Style::kInterleaved, Rope::Style::kHalf});
  rope.base = random.pick({10000.0, 500000.0, 100.0});
  if (width % 2 != 0 || random.chance(0.4)) rope.rotary_dim = 2 * random.integer(1, width / 2);
  const auto positions = [&](int64_t count) {
    const int64_t high = random.pick<int64_t>({20, 5000, 200000});
    return random_integers(random, random.chance(0.5) ? count : batch * count,
                           random.chance(0.2) ? -50 : 0, high, result);
  };
  if (random.chance(0.5)) rope.q_positions = positions(result.q.shape[2]);
  if (random.chance(0.5)) rope.k_positions = positions(result.k.shape[2]);
}

void random_captures(Random& random, RandomCase& result) {
  const int64_t heads = result.weights_shape[1], queries = result.weights_shape[2];
  while (random.chance(0.3)) {
    CaptureRequest request;
    request.stage = random.pick(
        {ScoreStage::kRaw, ScoreStage::kCapped, ScoreStage::kMasked, ScoreStage::kWeights});
    if (heads > 0 && random.chance(0.5)) {
      std::vector<int32_t> chosen(static_cast<size_t>(heads));
      std::iota(chosen.begin(), chosen.end(), 0);
      for (size_t at = chosen.size(); at > 1; --at) {
        std::swap(chosen[at - 1],
                  chosen[static_cast<size_t>(random.integer(0, static_cast<int64_t>(at) - 1))]);
      }
      chosen.resize(static_cast<size_t>(random.integer(1, heads)));
      request.heads = chosen;
    }
    request.first_row = random.chance(0.5) ? 0 : random.integer(0, queries);
    request.rows = random.chance(0.5) ? queries - request.first_row
                                      : random.integer(0, queries - request.first_row);
    result.captures.push_back(std::move(request));
  }
}

std::string described(const RandomCase& c, uint64_t seed) {
  const AttentionOptions& o = c.options;
  const auto tensor = [](const char* name, const ConstAnyTensor& t) {
    return std::string(", ") + name + " " + name_of(t.dtype) + " " + t.shape.to_string() +
           " strides " + t.strides.to_string();
  };
  const auto aligned = [](Alignment alignment, int64_t offset) {
    const char* const names[] = {"none", "top_left", "bottom_right", "bottom_right_of_length",
                                 "offset "};
    return names[static_cast<size_t>(alignment)] +
           (alignment == Alignment::kOffset ? std::to_string(offset) : "");
  };
  std::string text = "seed " + std::to_string(seed) + tensor("q", c.q) + tensor("k", c.k) +
                     tensor("v", c.v) + ", out " + name_of(c.out_type);
  if (o.scale) text += ", scale " + std::to_string(*o.scale);
  text += ", causal " + aligned(o.causal.alignment, o.causal.offset);
  if (o.window.given()) {
    text += ", window (" + std::to_string(o.window.left) + ", " + std::to_string(o.window.right) +
            ") " + aligned(o.window.alignment, o.window.offset);
  }
  if (o.mask.given()) text += ", mask " + o.mask.shape.to_string();
  if (o.bias.given()) text += ", bias " + o.bias.shape.to_string();
  for (size_t b = 0; b < o.kv_lengths.size(); ++b) {
    text += (b == 0 ? ", lengths " : " ") + std::to_string(o.kv_lengths[b]);
  }
  if (!o.alibi_slopes.empty()) text += ", alibi";
  if (o.softcap > 0) text += ", softcap " + std::to_string(o.softcap);
  if (!o.sinks.empty()) text += ", sinks";
  if (o.qk_norm.enabled) {
    text += ", qk_norm gains " + std::to_string(o.qk_norm.q_gain.size()) + " " +
            std::to_string(o.qk_norm.k_gain.size());
  }
  if (o.rope.style != Rope::Style::kNone) {
    text += std::string(", rope ") + (o.rope.style == Rope::Style::kHalf ? "half" : "interleaved") +
            " of " + std::to_string(o.rope.rotary_dim) + ", positions " +
            std::to_string(o.rope.q_positions.size()) + " " +
            std::to_string(o.rope.k_positions.size());
  }
  if (o.dropout.probability > 0) text += ", dropout " + std::to_string(o.dropout.probability);
  for (const CaptureRequest& capture : c.captures) {
    text += ", capture stage " + std::to_string(static_cast<int>(capture.stage)) + " heads " +
            std::to_string(capture.heads.size()) + " rows " + std::to_string(capture.first_row) +
            " + " + std::to_string(capture.rows);
  }
  return text;
}

}  // namespace

std::vector<uint64_t> random_seeds(int64_t cases) {
  const int64_t usual = std::min(cases, from_environment("MULTIHEAD_RANDOM_MOST", cases));
  std::vector<uint64_t> seeds(
      static_cast<size_t>(from_environment("MULTIHEAD_RANDOM_CASES", usual)));
  std::iota(seeds.begin(), seeds.end(),
            static_cast<uint64_t>(from_environment("MULTIHEAD_RANDOM_FIRST", 1)));
  return seeds;
}

std::vector<float> Random::floats(int64_t count, float low, float high) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(low, high);
  return values;
}

uint16_t half_bits(float value, DType type) {
  return type == DType::kF16 ? rules::to_float16(value).bits : rules::to_bfloat16(value).bits;
}

ConstAnyTensor stored(RandomCase& result, std::vector<float> values, DType type, const Dims& shape,
                      const Dims& strides) {
  if (type == DType::kF32) {
    result.storage.push_back(std::move(values));
    return {static_cast<const void*>(result.storage.back().data()), type, shape, strides};
  }
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) halves[i] = half_bits(values[i], type);
  result.halves.push_back(std::move(halves));
  return {static_cast<const void*>(result.halves.back().data()), type, shape, strides};
}

float element(const ConstAnyTensor& tensor, int64_t index) {
  float value = 0.0F;
  rules::read_floats(tensor.data, tensor.dtype, index, 1, &value);
  return value;
}

RandomCase random_case(uint64_t seed, const CaseLimits& limits) {
  Random random(seed);
  RandomCase result;
  const auto size = [&](int64_t largest) {
    // Chooses sizes near a lane count, a tile or a block, and any other sizes.
    const int64_t near = random.pick<int64_t>({1, 4, 8, 16, 32, 48, 64, 96, 192, 384});
    const int64_t value = random.chance(0.5) ? near + random.integer(-1, 1)
                                             : random.integer(1, std::max<int64_t>(largest, 1));
    return std::clamp<int64_t>(value, 1, largest);
  };
  const int64_t batch = random.chance(0.01) ? 0 : random.integer(1, 3);
  const int64_t kv_heads = random.integer(1, 3);
  const int64_t heads = random.chance(0.01) ? 0 : kv_heads * random.pick<int64_t>({1, 1, 2, 3, 4});
  const int64_t queries = random.chance(0.02) ? 0 : size(limits.max_queries);
  const int64_t keys = random.chance(0.02) ? 0 : size(limits.max_keys);
  const int64_t width = size(limits.max_width);
  const int64_t value_dim = random.chance(0.02)  ? 0
                            : random.chance(0.5) ? width
                                                 : size(limits.max_width);

  const DType type = random_type(random);
  const bool mixed = random.chance(0.1);
  const auto own = [&] { return mixed ? random_type(random) : type; };
  const DType kv_type = own();  // k and v have the same type, as in a cache
  result.q = random_tensor(random, {batch, heads, queries, width}, own(), result);
  result.k = random_tensor(random, {batch, kv_heads, keys, width}, kv_type, result);
  result.v = random_tensor(random, {batch, kv_heads, keys, value_dim}, kv_type, result);
  result.out_type = random.chance(0.3) ? random_type(random) : type;
  result.out_shape = {batch, heads, queries, value_dim};
  result.lse_shape = {batch, heads, queries};
  result.weights_shape = {batch, heads, queries, keys};

  AttentionOptions& options = result.options;
  if (random.chance(0.3)) options.scale = random.pick({0.0F, -0.7F, 0.25F, 2.0F});
  random_positions(random, result);
  random_masks(random, result);
  if (random.chance(0.2)) {
    std::vector<float> slopes = random.floats(heads, 0.0F, 0.5F);
    if (random.chance(0.5)) alibi_slopes(slopes);
    options.alibi_slopes = stored_floats(result, std::move(slopes));
  }
  if (random.chance(0.2)) options.softcap = random.pick({0.5F, 3.0F, 30.0F});
  if (random.chance(0.2)) {
    options.sinks = stored_floats(result, random.floats(heads, -3.0F, 3.0F));
  }
  if (random.chance(0.15)) {
    options.qk_norm.enabled = true;
    if (random.chance(0.3)) options.qk_norm.eps = 1e-3F;
    const auto gain = [&] { return stored_floats(result, random.floats(width, 0.5F, 1.5F)); };
    if (random.chance(0.5)) options.qk_norm.q_gain = gain();
    if (random.chance(0.5)) options.qk_norm.k_gain = gain();
  }
  if (random.chance(0.2)) random_rotation(random, result);
  if (random.chance(0.15)) {
    options.dropout.probability = random.pick({0.1F, 0.5F, 0.9F});
    options.dropout.seed = static_cast<uint64_t>(random.integer(0, INT64_MAX));
  }
  random_captures(random, result);
  result.description = described(result, seed);
  return result;
}

}  // namespace multihead::testing
