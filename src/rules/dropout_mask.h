// Dropout masks. Whether a weight is kept is a pure function of (seed, b, h, i, j), so it is the
// same on every machine, build and number of threads. Any implementation of Philox can recompute
// it.
//
//   counter = (floor(j / 4), i, h, b),  key = (low, high 32 bits of seed)
//   word    = philox4x32(counter, key)[j mod 4]
//   kept    = word >= round(p * 2^32)
//
// Dropout of rows (embeddings, residuals, the output of a module) follows the same rule with
// another counter. `site` distinguishes the dropouts of a model. Counter word 3 never equals a
// batch entry b of attention, because no call has 2^32 - 1 - site batch entries:
//
//   counter = (floor(column / 4), low, high 32 bits of row, 2^32 - 1 - site)
//   word    = philox4x32(counter, key)[column mod 4]
//
// Philox 4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011; the generator of cuRAND, PyTorch's CUDA dropout and NumPy's Philox (there 4x64).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace multihead::rules {

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  constexpr uint64_t kMultiply0 = 0xD2511F53U, kMultiply1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U, kWeyl1 = 0xBB67AE85U;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiply0 * counter[0];
    const uint64_t product1 = kMultiply1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32U) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32U) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// A weight is kept if its word is at least this threshold; 0 <= p < 1.
constexpr uint64_t dropout_threshold(float probability) {
  // Rounds to nearest, because the number is never negative; std::llround is not constexpr.
  // NOLINTNEXTLINE(bugprone-incorrect-roundings)
  return static_cast<uint64_t>(static_cast<double>(probability) * 0x1p32 + 0.5);
}

// Returns the words of keys 4 * group .. 4 * group + 3.
constexpr std::array<uint32_t, 4> dropout_words(uint64_t seed, int64_t b, int64_t h, int64_t i,
                                                int64_t group) {
  return philox4x32({static_cast<uint32_t>(group), static_cast<uint32_t>(i),
                     static_cast<uint32_t>(h), static_cast<uint32_t>(b)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32U)});
}

// Returns the words of columns 4 * group .. 4 * group + 3 of a row.
constexpr std::array<uint32_t, 4> row_dropout_words(uint64_t seed, uint32_t site, int64_t row,
                                                    int64_t group) {
  const auto high = static_cast<uint32_t>(static_cast<uint64_t>(row) >> 32U);
  return philox4x32({static_cast<uint32_t>(group), static_cast<uint32_t>(row), high, ~site},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32U)});
}

// Returns dropout_keeps() of keys 4 * group .. 4 * group + 3.
constexpr std::array<bool, 4> dropout_keeps_four(uint64_t seed, int64_t b, int64_t h, int64_t i,
                                                 int64_t group, uint64_t threshold) {
  const std::array<uint32_t, 4> words = dropout_words(seed, b, h, i, group);
  return {words[0] >= threshold, words[1] >= threshold, words[2] >= threshold,
          words[3] >= threshold};
}

constexpr bool dropout_keeps(uint64_t seed, int64_t b, int64_t h, int64_t i, int64_t j,
                             uint64_t threshold) {
  const std::array<uint32_t, 4> words = dropout_words(seed, b, h, i, j / 4);
  // Selects without an index: on a GPU, an array with a variable index lies in memory, not in
  // registers.
  const bool odd = j % 2 != 0;
  const uint32_t low = odd ? words[1] : words[0], high = odd ? words[3] : words[2];
  return (j % 4 >= 2 ? high : low) >= threshold;
}

constexpr bool row_dropout_keeps(uint64_t seed, uint32_t site, int64_t row, int64_t column,
                                 uint64_t threshold) {
  return row_dropout_words(seed, site, row, column / 4)[static_cast<size_t>(column % 4)] >=
         threshold;
}

}  // namespace multihead::rules
