// Random words of rules/dropout_mask.h, with queries in the lanes.
#if defined(MULTIHEAD_CPU_SIMD_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_PHILOX_INL_H_
#undef MULTIHEAD_CPU_SIMD_PHILOX_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_PHILOX_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/simd/file_namespace.h"
#include "hwy/base.h"
#include "hwy/highway.h"
#include "rules/dropout_mask.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

struct PhiloxKeys {
  static constexpr size_t kRounds = 10;
  uint32_t multiply0 = 0xD2511F53U, multiply1 = 0xCD9E8D57U;
  uint32_t key0[kRounds], key1[kRounds];

  explicit PhiloxKeys(uint64_t seed) {
    for (size_t round = 0; round < kRounds; ++round) {
      const auto times = static_cast<uint32_t>(round);
      key0[round] = static_cast<uint32_t>(seed) + times * 0x9E3779B9U;
      key1[round] = static_cast<uint32_t>(seed >> 32U) + times * 0xBB67AE85U;
    }
    // V8 would rebuild vectors of known constants at every use.
    hwy::PreventElision(multiply0);
    hwy::PreventElision(multiply1);
  }
};

// Runs rounds first .. kRounds - 1 of rules::philox4x32().
template <class DU, class V = hn::Vec<DU>>
HWY_INLINE void philox_rounds(DU du, const PhiloxKeys& keys, size_t first, V multiply0, V multiply1,
                              V (&c)[4]) {
  for (size_t round = first; round < PhiloxKeys::kRounds; ++round) {
    const V high0 = hn::MulHigh(c[0], multiply0);
    const V high1 = hn::MulHigh(c[2], multiply1);
    const V low0 = hn::Mul(c[0], multiply0);
    const V low1 = hn::Mul(c[2], multiply1);
    c[0] = hn::Xor3(high1, c[1], hn::Set(du, keys.key0[round]));
    c[1] = low1;
    c[2] = hn::Xor3(high0, c[3], hn::Set(du, keys.key1[round]));
    c[3] = low0;
  }
}

// The counter of rules::philox4x32() is (key group, query, head, batch). Only query and head vary
// with the lane. Each product of the first two rounds is therefore the same in all lanes or for all
// key groups, and is computed once; eight rounds remain.
template <class DU>
class DropoutWords {
  using V = hn::Vec<DU>;

 public:
  HWY_INLINE DropoutWords(DU du, const PhiloxKeys& keys, uint32_t batch, V head, V query)
      : du_(du),
        keys_(keys),
        multiply0_(hn::Set(du, keys.multiply0)),
        multiply1_(hn::Set(du, keys.multiply1)),
        batch_(batch),
        first1_(hn::Mul(head, multiply1_)) {
    const V first0 = hn::Xor3(hn::MulHigh(head, multiply1_), query, hn::Set(du, keys.key0[0]));
    second2_ = hn::MulHigh(first0, multiply0_);
    second3_ = hn::Mul(first0, multiply0_);
  }

  // Computes the words of keys 4 * group .. 4 * group + 3.
  HWY_INLINE void set_words(uint32_t group, V (&words)[4]) const {
    const uint64_t product0 = uint64_t{keys_.multiply0} * group;
    const uint32_t first2 = static_cast<uint32_t>(product0 >> 32U) ^ batch_ ^ keys_.key1[0];
    const uint64_t product1 = uint64_t{keys_.multiply1} * first2;
    const auto first3 = static_cast<uint32_t>(product0);
    words[0] =
        hn::Xor(first1_, hn::Set(du_, static_cast<uint32_t>(product1 >> 32U) ^ keys_.key0[1]));
    words[1] = hn::Set(du_, static_cast<uint32_t>(product1));
    words[2] = hn::Xor(second2_, hn::Set(du_, first3 ^ keys_.key1[1]));
    words[3] = second3_;
    philox_rounds(du_, keys_, 2, multiply0_, multiply1_, words);
  }

 private:
  const DU du_;
  const PhiloxKeys& keys_;
  const V multiply0_, multiply1_;
  const uint32_t batch_;
  const V first1_;       // word 1 after the first round
  V second2_, second3_;  // words 2 and 3 after round two, without the part equal in all lanes
};

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_PHILOX_INL_H_
