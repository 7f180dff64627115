// Products of a few rows with weights that are read once, in order, at the speed of memory. Rows of
// x are rounded to int8 for weights in int8 and int4: a block's products are then integers, of
// which a vector holds four times as many, and each block is scaled once.
//
//   y = sum over blocks of scale(w) * scale(x) * (sum of (w + offset) * x)
//     - sum over blocks of scale(w) * (scale(x) * offset * sum of x)
//
// The second line, if there is an offset, is computed for a vector of blocks at a time.
//
// GB/s of weights, one row of x, 1024x3072 on a Zen 4, whose memory gives 28 to 30: bf16 27 to 30,
// int8 25, int4 21; with AVX2 30, 22 and 21. In WebAssembly, decoding with SmolLM2-135M's shape in
// V8 12.4: relaxed SIMD bf16 18, int8 14, int4 10; simd128 14, 13 and 7. -Os, with loops unrolled,
// is as fast as -O3.
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
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

using VF = hn::Vec<DStep>;

static_assert(kFewRowsOutputs % kSide<DStep> == 0);

// x in int8, in steps of whole vectors. Steps and scales beyond the last block are zero.
struct Activations {
  void* numbers;   // [row][padded * kBlock], of type Quant
  float* scales;   // [row][padded]
  float* offsets;  // [row][padded]: -kOffset * scale * sum of the block's numbers
  size_t padded;   // blocks of a row, in whole vectors of scales and whole steps
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
  rules::Arena take(memory);
  int16_t* numbers = nullptr;  // or int8_t
  take(numbers, rows * a.padded * kBlock);
  take(a.scales, rows * a.padded);
  take(a.offsets, rows * a.padded);
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
HWY_NOINLINE void round_row(const float* x, size_t columns, size_t row, const Activations& a) {
  const size_t blocks = (columns + kBlock - 1) / kBlock;
  Quant<kType>* const numbers = a.row<kType>(row);
  float* const scales = a.scales + row * a.padded;
  float* const offsets = a.offsets + row * a.padded;
  HWY_ALIGN float block[kBlock];
  int8_t rounded[kBlock];
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
    int sum = 0;
    Quant<kType>* const step = numbers + b / kStepBlocks * kStepBlocks * kBlock;
    for (size_t i = 0; i < kBlock; ++i) {
      step[place_of<kType>(b % kStepBlocks * kBlock + i)] = rounded[i];
      sum += rounded[i];
    }
    scales[b] = scale;
    offsets[b] = -static_cast<float>(kOffset<kType> * sum) * scale;
  }
}

void prepare(const FewRows& call, void* memory) {
  if (!has_blocks(call.weight.type)) return;
  const Activations a = lay_out(call, memory);
  const auto round = call.weight.type == WeightType::kInt8 ? round_row<WeightType::kInt8>
                                                           : round_row<WeightType::kInt4>;
  for (int64_t row = 0; row < call.rows; ++row) {
    round(call.x + row * call.x_stride, static_cast<size_t>(call.weight.columns),
          static_cast<size_t>(row), a);
  }
}

// Reads scales, which are finite, with half of the instructions of FloatReader.
class ScaleReader {
 public:
  HWY_INLINE VF operator()(const hwy::float16_t* from) const {
    return widened(hn::LoadU(d16_, reinterpret_cast<const int16_t*>(from)));
  }
  HWY_INLINE VF operator()(const hwy::float16_t* from, size_t count) const {
    return widened(hn::LoadN(d16_, reinterpret_cast<const int16_t*>(from), count));
  }

 private:
  HWY_INLINE VF widened(hn::Vec<hn::Rebind<int16_t, DStep>> stored) const {
    const hn::RebindToSigned<DStep> di;
    const F16Constants& constants = *kHiddenF16Constants;
    const auto moved =
        hn::And(hn::ShiftLeft<13>(hn::PromoteTo(di, stored)), hn::Set(di, constants.kept));
    return hn::Mul(hn::BitCast(DStep(), moved), hn::Set(DStep(), constants.scale));
  }
  hn::Rebind<int16_t, DStep> d16_;
};

#if HWY_ARCH_WASM
// Blocks of a round.
template <WeightType kType>
constexpr size_t kAtOnce = (MULTIHEAD_DOT_RELAXED && kType == WeightType::kInt4) ? 2 : 1;

// Computes sums[r * stride], the products of one row of weights with row first + r of x, lane by
// lane.
//
// First come the scales of up to 64 blocks. Then each round of a loop multiplies one block or two.
// V8 moves all loads of a round before its arithmetic, so four blocks in a round need more than its
// 16 registers: decoding in int8 then takes 1.25 times as long in V8 12.4, in int4 1.3 times; in
// Chromium 156 and Firefox 153 1.05 times in int8 and 1.0 in int4 (Zen 4).
template <WeightType kType, size_t kRows>
HWY_NOINLINE void dot_blocks(const std::byte* HWY_RESTRICT weights, size_t blocks,
                             const Activations& a, size_t first, VF* HWY_RESTRICT sums,
                             size_t stride) {
  const DStep d;
  constexpr size_t kBytes = kType == WeightType::kInt8 ? kBlock : kBlock / 2;
  constexpr size_t kMost = 64, kLanes = kStepBytes / sizeof(float), kSums = kAtOnce<kType>;
  static_assert(kStepBlocks == 1);
  const ScaleReader read;
  const auto* const stored = reinterpret_cast<const hwy::float16_t*>(weights);
  const auto* numbers = reinterpret_cast<const uint8_t*>(weights + blocks * sizeof(Float16));
  const Quant<kType>* x = a.row<kType>(first);
  VF sum[kSums][kRows];
  for (auto& part : sum) {
    for (VF& s : part) s = hn::Zero(d);
  }
  HWY_ALIGN float scales[kRows][kMost];
  for (size_t begin = 0; begin < blocks; begin += kMost) {
    const size_t count = HWY_MIN(kMost, blocks - begin);
    // The last vector of scales may reach into the numbers; the scales of x are zero there.
    for (size_t b = 0; b < count; b += kLanes) {
      const VF scale = read(stored + begin + b);
      for (size_t r = 0; r < kRows; ++r) {
        const size_t at = (first + r) * a.padded + begin + b;
        hn::Store(hn::Mul(scale, hn::Load(d, a.scales + at)), d, scales[r] + b);
        if constexpr (kOffset<kType> != 0) {
          sum[0][r] = mul_add(scale, hn::Load(d, a.offsets + at), sum[0][r]);
        }
      }
    }
    const auto add = [&](size_t b, size_t i) HWY_ATTR MULTIHEAD_INLINED {
      const StepWeights<kType> w(numbers + i * kBytes, 1);
      for (size_t r = 0; r < kRows; ++r) {
        const VI32 products = w.dot(x + (r * a.padded + i) * kBlock);
        sum[i][r] = mul_add(hn::ConvertTo(d, products), hn::Set(d, scales[r][b + i]), sum[i][r]);
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
    sums[r * stride] = total;
  }
}
#else
// Computes sum[r], the products of one row of weights with row first + r of x, lane by lane.
template <WeightType kType, size_t kRows>
HWY_NOINLINE void dot_blocks(const std::byte* HWY_RESTRICT weights, size_t blocks,
                             const Activations& a, size_t first, VF* HWY_RESTRICT sums,
                             size_t stride) {
  const DStep d;
  constexpr size_t kBytes = kType == WeightType::kInt8 ? kBlock : kBlock / 2;
  using Scales = StepScales<kType>;
  constexpr size_t kSteps = Scales::kSteps, kBlocks = kSteps * kStepBlocks;
  const auto read = [&] {
    if constexpr (kConvertsF16) {
      return FloatReader<hwy::float16_t, DStep>(d);
    } else {
      return ScaleReader();
    }
  }();
  const auto* const stored = reinterpret_cast<const hwy::float16_t*>(weights);
  const auto* const numbers = reinterpret_cast<const uint8_t*>(weights + blocks * sizeof(Float16));
  const Quant<kType>* const x = a.row<kType>(first);
  VF even[kRows], odd[kRows];
  for (size_t r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(d);
  Scales scales[kRows];
  // Scales of weights and activations of a vector of blocks.
  const auto multiply_scales = [&](VF scale, size_t b) HWY_ATTR MULTIHEAD_INLINED {
    for (size_t r = 0; r < kRows; ++r) {
      const size_t at = (first + r) * a.padded + b;
      scales[r].set(hn::Mul(scale, hn::Load(d, a.scales + at)));
      if constexpr (kOffset<kType> != 0)
        even[r] = mul_add(scale, hn::Load(d, a.offsets + at), even[r]);
    }
  };
  const auto add = [&](size_t b, size_t step, size_t count,
                       VF(&sum)[kRows]) HWY_ATTR MULTIHEAD_INLINED {
    b += step * kStepBlocks;
    const StepWeights<kType> w(numbers + b * kBytes, count);
    for (size_t r = 0; r < kRows; ++r) {
      const VI32 products = w.dot(x + (r * a.padded + b) * kBlock);
      sum[r] = mul_add(hn::ConvertTo(d, products), scales[r].of_step(step), sum[r]);
    }
  };
  size_t b = 0;
  for (; b + kBlocks <= blocks; b += kBlocks) {
    multiply_scales(read(stored + b), b);
    for (size_t step = 0; step < kSteps; step += 2) {
      add(b, step, kStepBlocks, even);
      add(b, step + 1, kStepBlocks, odd);
    }
  }
  if (b < blocks) {
    multiply_scales(read(stored + b, blocks - b), b);
    size_t step = 0;
    for (; b + (step + 1) * kStepBlocks <= blocks; ++step) add(b, step, kStepBlocks, odd);
    if (kStepBlocks > 1 && b + step * kStepBlocks < blocks) add(b, step, 1, even);
  }
  for (size_t r = 0; r < kRows; ++r) sums[r * stride] = hn::Add(even[r], odd[r]);
}
#endif  // HWY_ARCH_WASM

// Computes sums[r * stride] as dot_blocks() does, for weights in f16 or bf16.
template <class T, size_t kRows>
HWY_NOINLINE void dot_halves(const T* HWY_RESTRICT weights, size_t columns,
                             const float* HWY_RESTRICT x, ptrdiff_t x_stride, VF* HWY_RESTRICT sums,
                             size_t stride) {
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
  for (size_t r = 0; r < kRows; ++r) sums[r * stride] = sum[0][r];
}

// Computes outputs first to end - 1 of rows row to row + kRows - 1. `dot(output, sums)` computes
// one output of these rows; the sums of a row are in every kSide-th vector.
template <size_t kRows, class Dot>
HWY_INLINE void outputs_of_rows(const FewRows& call, int64_t row, int64_t first, int64_t end,
                                const Dot& dot) {
  const DStep d;
  constexpr size_t kSums = kSide<DStep>;
  for (int64_t output = first; output < end; output += static_cast<int64_t>(kSums)) {
    const auto given = static_cast<size_t>(std::min<int64_t>(kSums, end - output));
    Square<DStep> squares[kRows];
    VF* const sums = squares[0].row;
    for (size_t o = 0; o < given; ++o) dot(output + static_cast<int64_t>(o), sums + o);
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

// Calls tile(count) for all rows, at most 4 at a time, which share each read of a weight.
template <class Tile>
HWY_INLINE void over_rows(int64_t rows, const Tile& tile) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) tile(row, std::integral_constant<size_t, 4>());
  if (row + 2 <= rows) {
    tile(row, std::integral_constant<size_t, 2>());
    row += 2;
  }
  if (row < rows) tile(row, std::integral_constant<size_t, 1>());
}

template <WeightType kType>
void outputs_of_blocks(const FewRows& call, const Activations& a, int64_t first, int64_t end) {
  const auto blocks = static_cast<size_t>(weight_blocks(call.weight.columns));
  const int64_t row_bytes = weight_row_bytes(kType, call.weight.columns);
  const auto* const weights = static_cast<const std::byte*>(call.weight.data);
  over_rows(call.rows, [&](int64_t row, auto count) {
    constexpr size_t kRows = decltype(count)::value;
    outputs_of_rows<kRows>(call, row, first, end, [&](int64_t output, VF* sums) {
      dot_blocks<kType, kRows>(weights + output * row_bytes, blocks, a, static_cast<size_t>(row),
                               sums, kSide<DStep>);
    });
  });
}

template <class T>
void outputs_of_halves(const FewRows& call, int64_t first, int64_t end) {
  const auto columns = static_cast<size_t>(call.weight.columns);
  const auto* const weights = static_cast<const T*>(call.weight.data);
  over_rows(call.rows, [&](int64_t row, auto count) {
    constexpr size_t kRows = decltype(count)::value;
    const float* const x = call.x + row * call.x_stride;
    outputs_of_rows<kRows>(call, row, first, end, [&](int64_t output, VF* sums) {
      dot_halves<T, kRows>(weights + output * call.weight.columns, columns, x,
                           static_cast<ptrdiff_t>(call.x_stride), sums, kSide<DStep>);
    });
  });
}

void outputs(const FewRows& call, const void* memory, int64_t first, int64_t end) {
  // The memory of the call is only read.
  const auto activations = [&] { return lay_out(call, const_cast<void*>(memory)); };
  switch (call.weight.type) {
    case WeightType::kF16:
      return outputs_of_halves<hwy::float16_t>(call, first, end);
    case WeightType::kInt8:
      return outputs_of_blocks<WeightType::kInt8>(call, activations(), first, end);
    case WeightType::kInt4:
      return outputs_of_blocks<WeightType::kInt4>(call, activations(), first, end);
    case WeightType::kF32:
    case WeightType::kBF16:
      break;
  }
  return outputs_of_halves<hwy::bfloat16_t>(call, first, end);
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
