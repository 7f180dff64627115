// Products of a few rows with weights that are read once, in order, at the speed of memory. Rows of
// x are rounded to int8 for weights in blocks: a block's products are then integers, of which a
// vector holds four times as many, and each block is scaled once.
//
//   y = sum over blocks of scale(w) * scale(x) * (sum of (w + offset) * x)
//     - sum over blocks of scale(w) * (scale(x) * offset * sum of x)
//
// The second line, if there is an offset, is computed for a vector of blocks at a time. Types with
// leasts have them in the place of the second scale(w), and no offset.
//
// GB/s of weights in decoding, one thread of a Zen 5, whose memory gives 36 to 40: int8 and Q6_K
// 39, int4 35, Q4_K and Q5_K 40. In WebAssembly, decoding with SmolLM2-135M's shape in V8 12.4:
// relaxed SIMD bf16 18, int8 14, int4 10; simd128 14, 13 and 7. Q4_K takes the time of int8 with
// relaxed SIMD, 1.2 times that with simd128. -Os, with loops unrolled, is as fast as -O3.
#include "cpu/gemm/weight_blocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "rules/arena.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/few_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/gemm/block_dot-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

using VF = hn::Vec<DStep>;

// Distance of prefetches, which go on at the ends of rows and while sums are stored: one thread
// decodes 1.3 times as fast in int4, 1.22 in int8, 1.05 in bf16 (SmolLM2-135M's shape, Zen 5; 6 to
// 12 kB and the next level of cache are within 5 %).
constexpr size_t kAhead = 8192, kCacheLine = 64;

static_assert(kFewRowsOutputs % kSide<DStep> == 0);

// x in int8, in steps of whole vectors. Steps and scales beyond the last block are zero.
struct Activations {
  void* numbers;   // [row][padded * kBlock], of type Quant
  float* scales;   // [row][padded]
  float* offsets;  // [row][kScales][padded]: -kOffset * scale * sum of the block's numbers
  size_t padded;   // blocks of a row, in whole vectors of scales and whole steps
  RowParts parts;  // of a row of weights
  uint64_t bytes;

  template <WeightType kType>
  Quant<kType>* row(size_t index) const {
    return static_cast<Quant<kType>*>(numbers) + index * padded * kBlock;
  }
};

Activations lay_out(const FewRows& call, void* memory) {
  Activations a{};
  const auto rows = static_cast<uint64_t>(call.rows);
  a.padded = round_up(static_cast<size_t>(weight_blocks(call.weight.columns)), 16);
  a.parts = row_parts(call.weight.type, static_cast<size_t>(weight_blocks(call.weight.columns)));
  rules::Arena take(memory);
  int16_t* numbers = nullptr;  // or int8_t
  take(numbers, rows * a.padded * kBlock);
  take(a.scales, rows * a.padded);
  take(a.offsets, rows * a.padded * 2);
  a.numbers = numbers;
  a.bytes = take.bytes();
  return a;
}

uint64_t memory_of(const FewRows& call) {
  return has_blocks(call.weight.type) ? lay_out(call, nullptr).bytes : 0;
}

// Rounds a block of x. Returns the scale, NaN if the block is not finite.
HWY_INLINE float round_block(const float* HWY_RESTRICT x, int8_t* HWY_RESTRICT to) {
  const hn::CappedTag<float, kBlock> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const hn::RebindToSigned<decltype(d)> di;
  auto most = hn::Zero(di);
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::Load(d, x + i))));
  }
  const auto largest = hwy::BitCastScalar<float>(hn::ReduceMax(di, most));
  const bool finite = largest <= std::numeric_limits<float>::max();
  // Smaller blocks count as zeros: 127 / largest would be infinite.
  const float inverse = finite && largest >= 0x1p-120F ? 127.0F / largest : 0.0F;
  for (size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    // Zero, not NaN, for blocks that are not finite.
    const auto scaled = hn::Mul(hn::Load(d, x + i), hn::Set(d, inverse));
    const auto number = finite ? hn::NearestInt(scaled) : hn::Zero(di);
    hn::StoreU(hn::DemoteTo(d8, number), d8, to + i);
  }
  return finite ? largest / 127.0F : std::numeric_limits<float>::quiet_NaN();
}

template <WeightType kType>
HWY_NOINLINE void round_row(const float* x, size_t columns, size_t row, const Activations& a,
                            int offset) {
  const size_t blocks = (columns + kBlock - 1) / kBlock;
  Quant<kType>* const numbers = a.row<kType>(row);
  float* const scales = a.scales + row * a.padded;
  float* const offsets = a.offsets + row * a.padded * kScales<kType>;
  HWY_ALIGN float block[kBlock];
  int8_t rounded[kBlock];
  constexpr size_t kStep = kStepBlocks<kType>;
  for (size_t b = 0; b < a.padded; ++b) {
    float scale = 0.0F;
    if (b < blocks) {
      const size_t count = HWY_MIN(kBlock, columns - b * kBlock);
      std::memcpy(block, x + b * kBlock, count * sizeof(float));
      std::fill(block + count, block + kBlock, 0.0F);
      scale = round_block(block, rounded);
    } else {
      std::fill_n(rounded, kBlock, int8_t{0});
    }
    int sums[2] = {};  // of halves with their own scales, or of all
    Quant<kType>* const step = numbers + b / kStep * kStep * kBlock;
    for (size_t i = 0; i < kBlock; ++i) {
      step[place_of<kType>(b % kStep * kBlock + i)] = rounded[i];
      sums[i / (kBlock / kScales<kType>)] += rounded[i];
    }
    scales[b] = scale;
    for (size_t i = 0; i < kScales<kType>; ++i)
      offsets[i * a.padded + b] = -static_cast<float>(offset * sums[i]) * scale;
  }
}

// Calls visit() with the constant of a type of blocks that has a kernel.
template <class Visit>
HWY_INLINE void with_kernel_type(WeightType type, const Visit& visit) {
  using enum WeightType;
  const auto visit_one_of = [&]<WeightType... kTypes>() {
    ((type == kTypes ? visit(std::integral_constant<WeightType, kTypes>()) : void()), ...);
  };
#if HWY_ARCH_WASM
  visit_one_of.template operator()<kInt8, kInt4, kQ4_1, kQ4_K>();
#else
  visit_one_of.template operator()<kInt8, kInt4, kQ5_0, kQ4_1, kQ5_1, kQ4_K, kQ5_K, kQ6_K>();
#endif
}

void prepare(const FewRows& call, void* memory) {
  if (!has_blocks(call.weight.type)) return;
  const Activations a = lay_out(call, memory);
  with_kernel_type(call.weight.type, [&](auto type) {
    // Types differ in the order of products and the number of scales.
    constexpr WeightType kType = decltype(type)::value;
    constexpr bool kLikeInt4 = kType != WeightType::kInt8 && kScales<kType> == 1;
    const int offset = has_leasts(call.weight.type) ? 1 : kOffset<kType>;
    for (int64_t row = 0; row < call.rows; ++row) {
      round_row<kLikeInt4 ? WeightType::kInt4 : kType>(call.x + row * call.x_stride,
                                                       static_cast<size_t>(call.weight.columns),
                                                       static_cast<size_t>(row), a, offset);
    }
  });
}

// The scales of a vector of blocks, and what belongs to the offsets of x.
struct BlockScales {
  VF scales, leasts;
};

class ScaleReader {
 public:
  HWY_INLINE ScaleReader(WeightType type, const std::byte* row, size_t blocks,
                         const RowParts& parts)
      : type_(type), row_(row), blocks_(blocks), parts_(parts) {}

  // Reads those of blocks b and later ones, of which `left` are left; `part` is 0, or 1 for their
  // second scales. Lanes beyond the last are finite. WebAssembly reads `of_eight`, from share().
  HWY_INLINE BlockScales operator()(size_t b, size_t left, size_t part,
                                    [[maybe_unused]] const float (*of_eight)[8] = nullptr) const {
    BlockScales read;
    if (shares_scales(type_)) {
#if HWY_ARCH_WASM
      const auto of = [&](size_t which) { return hn::Set(DStep(), of_eight[which][b / 8 % 8]); };
#else
      const auto of = [&](size_t which) HWY_ATTR { return shared(half_at(which, b / 8), left); };
#endif
      read.scales = hn::Mul(of(0), factors(b, part));
      if (has_leasts(type_)) read.leasts = hn::Mul(of(1), factors(b, 1));
    } else {
      read.scales = halves(DStep(), half_at(0, b), left);
      if (has_leasts(type_)) read.leasts = hn::Neg(halves(DStep(), half_at(1, b), left));
    }
    if (!has_leasts(type_)) read.leasts = read.scales;
    return read;
  }
  // Writes both scales that blocks b to b + 63 share.
  HWY_INLINE void share(size_t b, float (*of_eight)[8]) const {
    const hn::CappedTag<float, 4> d;
    for (size_t i = 0; i < 16; i += 4)
      hn::StoreU(halves(d, half_at(i / 8, b / 8 + i % 8), 4), d, of_eight[i / 8] + i % 8);
  }

 private:
  const hwy::float16_t* half_at(size_t which, size_t index) const {
    return reinterpret_cast<const hwy::float16_t*>(row_ + which * parts_.leasts) + index;
  }
  static constexpr size_t kLanes = kStepBytes / sizeof(float);

  // Reads halves, which are finite, with half of the instructions of FloatReader. The kernels of
  // WebAssembly may read beyond them, into the numbers.
  template <class D>
  static HWY_INLINE hn::Vec<D> halves(D d, const hwy::float16_t* from, size_t left) {
    const bool whole = HWY_ARCH_WASM || HWY_LIKELY(left >= hn::Lanes(d));
    if constexpr (kConvertsF16) {
      const FloatReader<hwy::float16_t, D> read(d);
      return whole ? read(from) : read(from, left);
    } else {
      const hn::RebindToSigned<D> di;
      const hn::Rebind<int16_t, D> d16;
      const auto* const stored = reinterpret_cast<const int16_t*>(from);
      const F16Constants& constants = *kHiddenF16Constants;
      const auto wide =
          hn::PromoteTo(di, whole ? hn::LoadU(d16, stored) : hn::LoadN(d16, stored, left));
      const auto moved = hn::And(hn::ShiftLeft<13>(wide), hn::Set(di, constants.kept));
      return hn::Mul(hn::BitCast(d, moved), hn::Set(d, constants.scale));
    }
  }
  // The half of eight blocks in the lanes of each. It may be the last; four may be read of a row.
  static HWY_INLINE VF shared(const hwy::float16_t* from, size_t left) {
    const hn::CappedTag<float, 4> d;
    if constexpr (kLanes > 8) {
      const auto both = hn::ResizeBitCast(DStep(), halves(d, from, left > 8 ? 2 : 1));
      const DI32 di;
      return hn::TableLookupLanes(both,
                                  hn::IndicesFromVec(DStep(), hn::ShiftRight<3>(hn::Iota(di, 0))));
    } else {
      return hn::Set(DStep(), hn::GetLane(halves(d, from, 4)));
    }
  }
  HWY_INLINE VF factors(size_t b, size_t which) const {
    const hn::Rebind<int8_t, DStep> d8;
    const auto* const bytes = reinterpret_cast<const int8_t*>(row_ + parts_.factors);
    return hn::ConvertTo(DStep(),
                         hn::PromoteTo(DI32(), hn::LoadU(d8, bytes + which * blocks_ + b)));
  }

  WeightType type_;
  const std::byte* row_;
  size_t blocks_;
  RowParts parts_;
};

template <WeightType kType>
HWY_INLINE VF offsets_of(const Activations& a, size_t row, size_t part, size_t b) {
  return hn::Load(DStep(), a.offsets + (row * kScales<kType> + part) * a.padded + b);
}

#if HWY_ARCH_WASM
// Computes sums[r * kSide], the products of one row of weights with row first + r of x, lane by
// lane.
//
// First come the scales of up to 64 blocks. Then each round of a loop multiplies one block or two.
// V8 moves all loads of a round before its arithmetic, so four blocks in a round need more than its
// 16 registers: decoding in int8 then takes 1.25 times as long in V8 12.4, in int4 1.3 times; in
// Chromium 156 and Firefox 153 1.05 times in int8 and 1.0 in int4 (Zen 4).
template <WeightType kType, size_t kRows>
HWY_NOINLINE void dot_blocks(const FewRows& call, const Activations& a, size_t first,
                             const std::byte* HWY_RESTRICT weights, VF* HWY_RESTRICT sums) {
  const DStep d;
  const auto blocks = static_cast<size_t>(weight_blocks(call.weight.columns));
  constexpr size_t kBytes = kBlockBytes<kType>, kSums = kWidens<kType> ? 1 : 2, kMost = 64;
  static_assert(kStepBlocks<kType> == 1);
  const ScaleReader read(kType, weights, blocks, a.parts);
  const auto* numbers = reinterpret_cast<const uint8_t*>(weights + a.parts.numbers);
  const Quant<kType>* x = a.row<kType>(first);
  VF sum[kSums][kRows];
  for (auto& part : sum) {
    for (VF& s : part) s = hn::Zero(d);
  }
  HWY_ALIGN float scales[kRows][kMost], of_eight[2][8];
  for (size_t begin = 0; begin < blocks; begin += kMost) {
    const size_t count = HWY_MIN(kMost, blocks - begin);
    if constexpr (shares_scales(kType)) read.share(begin, of_eight);
    // The last vector of scales may reach into the numbers; the scales of x are zero there.
    for (size_t b = 0; b < count; b += hn::Lanes(d)) {
      const BlockScales given = read(begin + b, count, 0, of_eight);
      for (size_t r = 0; r < kRows; ++r) {
        const size_t row = first + r, at = begin + b;
        const VF own = hn::Load(d, a.scales + row * a.padded + at);
        hn::Store(hn::Mul(given.scales, own), d, scales[r] + b);
        if constexpr (kOffset<kType> != 0)
          sum[0][r] = mul_add(given.leasts, offsets_of<kType>(a, row, 0, at), sum[0][r]);
      }
    }
    const auto add = [&](size_t b, size_t i) HWY_ATTR MULTIHEAD_INLINED {
      const StepWeights<kType> w(numbers + i * kBytes, 1, nullptr, 0);
      for (size_t r = 0; r < kRows; ++r) {
        const auto products = hn::ConvertTo(d, w.dot(x + (r * a.padded + i) * kBlock, 0));
        sum[i][r] = mul_add(products, hn::Set(d, scales[r][b + i]), sum[i][r]);
      }
    };
    size_t b = 0;
    for (; b < count / kSums * kSums; b += kSums) {
      for (size_t i = 0; i < kSums; ++i) add(b, i);
      numbers += kSums * kBytes;
      x += kSums * kBlock;
    }
    if constexpr (kSums > 1) {
      if (b < count) add(b, 0);  // the last block of all: kMost is even
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    VF total = sum[0][r];
    for (size_t i = 1; i < kSums; ++i) total = hn::Add(total, sum[i][r]);
    sums[r * kSide<DStep>] = total;
  }
}
#else
// Computes sums[r * kSide], the products of one row of weights with row first + r of x, lane by
// lane.
template <WeightType kType, size_t kRows>
HWY_NOINLINE void dot_blocks(const FewRows& call, const Activations& a, size_t first,
                             const std::byte* HWY_RESTRICT weights, VF* HWY_RESTRICT sums) {
  const DStep d;
  const auto blocks = static_cast<size_t>(weight_blocks(call.weight.columns));
  constexpr size_t kStep = kStepBlocks<kType>, kSteps = StepScales<kType>::kSteps;
  constexpr size_t kBlocks = kSteps * kStep;
  const ScaleReader read(kType, weights, blocks, a.parts);
  const auto* const numbers = reinterpret_cast<const uint8_t*>(weights + a.parts.numbers);
  const auto* const bits = reinterpret_cast<const uint8_t*>(weights + a.parts.bits);
  const Quant<kType>* const x = a.row<kType>(first);
  VF even[kRows], odd[kRows];
  for (size_t r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(d);
  StepScales<kType> scales[kScales<kType>][kRows];
  // Scales of weights and activations of a vector of blocks, of which `left` are left.
  const auto multiply_scales = [&](size_t b, size_t left) HWY_ATTR MULTIHEAD_INLINED {
    constexpr size_t kBytes = weight_row_bytes(kType, kBlocks * kBlock);
    for (size_t at = 0; at < kBytes * HWY_MIN(left, kBlocks) / kBlocks; at += kCacheLine)
      hwy::Prefetch(weights + kAhead + kBytes * b / kBlocks + at);
    for (size_t part = 0; part < kScales<kType>; ++part) {
      const BlockScales given = read(b, left, part);
      for (size_t r = 0; r < kRows; ++r) {
        const size_t row = first + r;
        scales[part][r].set(hn::Mul(given.scales, hn::Load(d, a.scales + row * a.padded + b)));
        if constexpr (kOffset<kType> != 0)
          even[r] = mul_add(given.leasts, offsets_of<kType>(a, row, part, b), even[r]);
      }
    }
  };
  const auto add = [&](size_t b, size_t step, size_t count,
                       VF(&sum)[kRows]) HWY_ATTR MULTIHEAD_INLINED {
    b += step * kStep;
    const StepWeights<kType> w(numbers + b * kBlockBytes<kType>, count, bits + b * 2, blocks * 2);
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t part = 0; part < kScales<kType>; ++part) {
        const auto products = hn::ConvertTo(d, w.dot(x + (r * a.padded + b) * kBlock, part));
        sum[r] = mul_add(products, scales[part][r].of_step(step), sum[r]);
      }
    }
  };
  size_t b = 0;
  for (; b + kBlocks <= blocks; b += kBlocks) {
    multiply_scales(b, kBlocks);
    for (size_t step = 0; step < kSteps; step += 2) {
      add(b, step, kStep, even);
      add(b, step + 1, kStep, odd);
    }
  }
  if (b < blocks) {
    multiply_scales(b, blocks - b);
    size_t step = 0;
    for (; b + (step + 1) * kStep <= blocks; ++step) add(b, step, kStep, odd);
    if (kStep > 1 && b + step * kStep < blocks) add(b, step, blocks - b - step * kStep, even);
  }
  for (size_t r = 0; r < kRows; ++r) sums[r * kSide<DStep>] = hn::Add(even[r], odd[r]);
}
#endif  // HWY_ARCH_WASM

// dot_blocks() for weights in f16 or bf16.
template <class T, size_t kRows>
HWY_NOINLINE void dot_halves(const FewRows& call, const Activations&, size_t first,
                             const std::byte* HWY_RESTRICT row, VF* HWY_RESTRICT sums) {
  const auto columns = static_cast<size_t>(call.weight.columns);
  const auto* const HWY_RESTRICT weights = reinterpret_cast<const T*>(row);
  const auto x_stride = static_cast<ptrdiff_t>(call.x_stride);
  const float* const HWY_RESTRICT x = call.x + static_cast<ptrdiff_t>(first) * x_stride;
  constexpr size_t kSums = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;  // hides the addition's latency
  const DStep d;
  const FloatReader<T, DStep> read(d);
  const size_t lanes = hn::Lanes(d);
  VF sum[kSums][kRows];
  for (auto& some : sum) {
    for (VF& s : some) s = hn::Zero(d);
  }
  const auto add = [&](VF w, size_t c, VF(&some)[kRows]) HWY_ATTR MULTIHEAD_INLINED {
    for (size_t r = 0; r < kRows; ++r) {
      some[r] = mul_add(hn::LoadU(d, x + static_cast<ptrdiff_t>(r) * x_stride + c), w, some[r]);
    }
  };
  size_t c = 0;
  for (; c + kSums * lanes <= columns; c += kSums * lanes) {
    for (size_t at = 0; at < kSums * lanes; at += kCacheLine / sizeof(T))
      hwy::Prefetch(weights + c + at + kAhead / sizeof(T));
    for (size_t i = 0; i < kSums; ++i) add(read(weights + c + i * lanes), c + i * lanes, sum[i]);
  }
  for (; c + lanes <= columns; c += lanes) add(read(weights + c), c, sum[0]);
  if (c < columns) {
    const VF w = read(weights + c, columns - c);
    for (size_t r = 0; r < kRows; ++r) {
      const float* const from = x + static_cast<ptrdiff_t>(r) * x_stride + c;
      sum[0][r] = mul_add(load_up_to(d, from, columns - c), w, sum[0][r]);
    }
  }
  for (size_t i = 1; i < kSums; ++i) {
    for (size_t r = 0; r < kRows; ++r) sum[0][r] = hn::Add(sum[0][r], sum[i][r]);
  }
  for (size_t r = 0; r < kRows; ++r) sums[r * kSide<DStep>] = sum[0][r];
}

using Dot = decltype(dot_blocks<WeightType::kInt8, 1>);

// Computes outputs first to end - 1 of rows row to row + kRows - 1. The sums of a row are in every
// kSide-th vector. One function for all types: a call by pointer costs less than their sizes.
template <size_t kRows>
HWY_NOINLINE void outputs_of_rows(const FewRows& call, const Activations& a, int64_t row,
                                  int64_t first, int64_t end, Dot* dot) {
  const DStep d;
  constexpr size_t kSums = kSide<DStep>;
  const int64_t row_bytes = weight_row_bytes(call.weight.type, call.weight.columns);
  const auto* weights = static_cast<const std::byte*>(call.weight.data) + first * row_bytes;
  for (int64_t output = first; output < end; output += static_cast<int64_t>(kSums)) {
    const auto given = static_cast<size_t>(std::min<int64_t>(kSums, end - output));
    Square<DStep> squares[kRows];
    VF* const sums = squares[0].row;
    for (size_t o = 0; o < given; ++o, weights += row_bytes)
      dot(call, a, static_cast<size_t>(row), weights, sums + o);
    for (size_t o = given; o < kSums; ++o) {
      for (size_t r = 0; r < kRows; ++r) squares[r].row[o] = hn::Zero(d);
    }
    for (size_t r = 0; r < kRows; ++r) {
      VF sum = sum_of_lanes(d, squares[r]);
      if (call.bias != nullptr) sum = hn::Add(sum, load_up_to(d, call.bias + output, given));
      store_up_to(d, sum, call.y + (row + static_cast<int64_t>(r)) * call.y_stride + output, given);
    }
  }
}

// Computes all rows, at most 4 at a time, which share each read of a weight.
void outputs_by(Dot* one, Dot* two, Dot* four, const FewRows& call, const Activations& a,
                int64_t first, int64_t end) {
  int64_t row = 0;
  for (; row + 4 <= call.rows; row += 4) outputs_of_rows<4>(call, a, row, first, end, four);
  if (row + 2 <= call.rows) {
    outputs_of_rows<2>(call, a, row, first, end, two);
    row += 2;
  }
  if (row < call.rows) outputs_of_rows<1>(call, a, row, first, end, one);
}

void outputs(const FewRows& call, const void* memory, int64_t first, int64_t end) {
  const auto of_halves = [&]<class T>(std::type_identity<T>) {
    outputs_by(dot_halves<T, 1>, dot_halves<T, 2>, dot_halves<T, 4>, call, {}, first, end);
  };
  const WeightType weights = call.weight.type;
  if (weights == WeightType::kF16) return of_halves(std::type_identity<hwy::float16_t>());
  if (weights == WeightType::kBF16) return of_halves(std::type_identity<hwy::bfloat16_t>());
  // The memory of the call is only read.
  const Activations a = lay_out(call, const_cast<void*>(memory));
  with_kernel_type(weights, [&](auto type) {
    constexpr WeightType kType = decltype(type)::value;
    outputs_by(dot_blocks<kType, 1>, dot_blocks<kType, 2>, dot_blocks<kType, 4>, call, a, first,
               end);
  });
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(memory_of);
HWY_EXPORT(prepare);
HWY_EXPORT(outputs);

uint64_t few_rows_memory(const FewRows& call) { return HWY_DYNAMIC_DISPATCH(memory_of)(call); }

void prepare_few_rows(const FewRows& call, void* memory) {
  HWY_DYNAMIC_DISPATCH(prepare)(call, memory);
}

void few_rows_outputs(const FewRows& call, const void* memory, int64_t first, int64_t end) {
  HWY_DYNAMIC_DISPATCH(outputs)(call, memory, first, end);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
