// The inner loops of decoding. Lanes run along the width of a row, not along queries: one to four
// queries would leave most of a vector empty. Rows of K and V are given by pointers, so that dense,
// strided, ring and paged storage are the same, and are converted to floats in registers.
//
// A tile is kRows query rows; its scores are stored key by key, [key][kRows]. With kLeads, the
// first row of the tile reads K and V from memory, in order, and the other rows then find them in
// the cache. In WebAssembly, which cannot prefetch, that is faster than touching each block before
// all rows read it (64 MB: 13 instead of 10 to 11.5 GB/s with relaxed SIMD, 12 instead of 9 to 10
// with simd128), but slower if a cache holds the block already (8 MB: 14.6 instead of 16.7).
#if defined(MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_KERNELS_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_KERNELS_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_KERNELS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/attention/block/prefetch-inl.h"
#include "cpu/attention/block/score_passes-inl.h"
#include "cpu/attention/decode/decode_rows-inl.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"
#include "rules/element.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Replaces prefetching where no instruction exists: loads one number per cache line, so that many
// misses are in flight at once. The kernels' dependent sums would not achieve this. The result has
// no meaning.
HWY_NOINLINE inline unsigned touch(const char* const* rows, size_t count, size_t bytes) {
  unsigned sum = 0;  // may wrap
  for (size_t j = 0; j < count; ++j) {
    const char* const row = rows[j];
    size_t at = 0;
    for (; at + 4 * kCacheLine <= bytes; at += 4 * kCacheLine) {
      sum += static_cast<unsigned>(row[at] + row[at + kCacheLine] + row[at + 2 * kCacheLine] +
                                   row[at + 3 * kCacheLine]);
    }
    for (; at < bytes; at += kCacheLine) sum += static_cast<unsigned>(row[at]);
  }
  return sum;
}

struct DecodeTile {
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64  // 32 registers
  static constexpr size_t kAccumulators = 16;
#else
  static constexpr size_t kAccumulators = 8;
#endif
  // The fewest keys at a time that hide the latency of a multiply-add, so that memory is read
  // nearly in order.
  static constexpr size_t keys(size_t rows) { return std::min<size_t>(4, 8 / rows); }
  // Rows of V that are summed before the sums are stored. With more rows, memory is not read in
  // order; with fewer, the stores cost more. Zen 4 with 64 MB and 4 MB of keys and values, in GB/s:
  // AVX-512, 4 rows 21 and 37, 8 rows 19.5 and 39; AVX2, 4 rows 20.5 and 31, 8 rows 22.5 and 34.
  static constexpr size_t value_rows(size_t rows, size_t element_bytes) {
    if (HWY_ARCH_WASM) return rows == 4 ? 16 : 32;
    const size_t float_rows = rows == 1 ? 16 : kAccumulators == 16 ? 4 : 8;
    return float_rows * sizeof(float) / element_bytes;
  }
  // Vectors per strip of columns; at most 64 floats, the usual head width.
  static constexpr size_t vecs(size_t rows) {
    return std::min<size_t>(HWY_TARGET <= HWY_AVX3 ? 4 : 8, kAccumulators / rows);
  }
};

// Writes the lane sums of `count` vectors side by side, in whole vectors.
template <size_t kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void store_sums(D d, V (&sum)[kCount], float* HWY_RESTRICT to) {
  const size_t lanes = hn::Lanes(d);
  size_t left = kCount;
  for (size_t done = 1; done < lanes; done *= 2) {
    const size_t pairs = HWY_MAX(left / 2, 1);
    for (size_t i = 0; i < pairs; ++i) {
      const V low = sum[left == 1 ? 0 : 2 * i];
      const V high = sum[left == 1 ? 0 : 2 * i + 1];
      sum[i] = hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
    }
    left = pairs;
  }
  for (size_t i = 0; i < left; ++i) hn::StoreU(sum[i], d, to + i * lanes);
}

struct ScoreWork {
  const float* q;           // [vector of the width][kRows][lane], zero after the width
  const char* const* keys;  // address of each row
  size_t count;             // number of keys, a multiple of DecodeTile::keys(kRows)
  size_t width;
  float* scores;
  const char* const* prefetched;  // `count` rows to prefetch; may be null
  size_t prefetched_bytes;        // bytes of a prefetched row
};

// scores[key][row] = q[row] . k[key]
template <class T, size_t kRows, bool kLeads, class D>
HWY_NOINLINE void score_keys(D d, const ScoreWork& work) {
  using V = hn::Vec<D>;
  constexpr size_t kKeys = DecodeTile::keys(kRows);
  constexpr size_t kFirst = kLeads ? 1 : 0;
  const size_t lanes = hn::Lanes(d);
  const FloatReader<T, D> read(d);
  const size_t width = work.width;
  float* HWY_RESTRICT scores = work.scores;
  PrefetchedList prefetched(work.prefetched, work.prefetched_bytes);
  for (size_t first = 0; first < work.count; first += kKeys, scores += kKeys * kRows) {
    const T* keys[kKeys];
    for (size_t j = 0; j < kKeys; ++j) keys[j] = reinterpret_cast<const T*>(work.keys[first + j]);
    V sum[kKeys * kRows];
    for (V& s : sum) s = hn::Zero(d);
    const float* HWY_RESTRICT q = work.q;
    if constexpr (kLeads) {
      for (size_t j = 0; j < kKeys; ++j) {
        sum[j * kRows] = dot(d, read, q, kRows * lanes, keys[j], width);
      }
    }
    size_t c = 0;
    for (; c + lanes <= width; c += lanes, q += kRows * lanes) {
      if (c * sizeof(T) % kCacheLine == 0) prefetched.template ask<kKeys>();
      V query[kRows];
      for (size_t r = kFirst; r < kRows; ++r) query[r] = hn::LoadU(d, q + r * lanes);
      for (size_t j = 0; j < kKeys; ++j) {
        const V key = read(keys[j]);
        keys[j] += lanes;
        for (size_t r = kFirst; r < kRows; ++r) {
          sum[j * kRows + r] = mul_add(query[r], key, sum[j * kRows + r]);
        }
      }
    }
    if (c < width) {
      for (size_t j = 0; j < kKeys; ++j) {
        const V key = read(keys[j], width - c);
        for (size_t r = 0; r < kRows; ++r) {
          sum[j * kRows + r] = mul_add(hn::LoadU(d, q + r * lanes), key, sum[j * kRows + r]);
        }
      }
    }
    store_sums(d, sum, scores);
  }
}

struct ValueWork {
  const float* weights;  // [keys][kRows]
  size_t keys;
  const char* const* values;
  size_t width;
  float* out;                     // [kRows][out_stride]
  size_t out_stride;              // whole vectors
  const char* const* prefetched;  // rows to prefetch, one per key; may be null
  size_t prefetched_bytes;        // bytes of a prefetched row
};

// Computes rows kFirst .. kRows - 1 of a strip of kVecs vectors. Only a strip of one vector may
// reach beyond the width.
template <class T, size_t kFirst, size_t kRows, size_t kVecs, class D>
HWY_INLINE void add_strip(D d, const ValueWork& work, size_t first, size_t last, size_t column,
                          PrefetchedList& prefetched) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  const FloatReader<T, D> read(d);
  constexpr size_t kBytes = kVecs * hn::MaxLanes(D()) * sizeof(T);
  constexpr size_t kLines = ceil_div(kBytes, kCacheLine);
  const bool starts_line = column * sizeof(T) % kCacheLine == 0;
  const float* HWY_RESTRICT weight = work.weights;
  const char* const* HWY_RESTRICT values = work.values;
  float* const out = work.out + column;
  const size_t stride = work.out_stride;
  const size_t rest = work.width - column;
  // Sum from zero and add to `out` at the end: fewer additions round at the magnitude of the whole
  // sum.
  V sum[kRows * kVecs];
  for (V& s : sum) s = hn::Zero(d);
  for (size_t j = first; j < last; ++j) {
    const T* HWY_RESTRICT from = reinterpret_cast<const T*>(values[j]) + column;
    if (kBytes >= kCacheLine || starts_line) prefetched.template ask<kLines>();
    V value[kVecs];
    for (size_t v = 0; v < kVecs; ++v) {
      value[v] = kVecs == 1 && rest < lanes ? read(from, rest) : read(from + v * lanes);
    }
    for (size_t r = kFirst; r < kRows; ++r) {
      const V factor = hn::Set(d, weight[j * kRows + r]);
      for (size_t v = 0; v < kVecs; ++v) {
        sum[r * kVecs + v] = mul_add(factor, value[v], sum[r * kVecs + v]);
      }
    }
  }
  for (size_t r = kFirst; r < kRows; ++r) {
    for (size_t v = 0; v < kVecs; ++v) {
      float* const to = out + r * stride + v * lanes;
      hn::StoreU(hn::Add(hn::LoadU(d, to), sum[r * kVecs + v]), d, to);
    }
  }
}

// Adds weight * v to out[0], in the whole vectors of a row.
template <class T, size_t kRows, class D>
HWY_INLINE void add_first_row(D d, const ValueWork& work, size_t key) {
  const size_t lanes = hn::Lanes(d);
  const FloatReader<T, D> read(d);
  const T* HWY_RESTRICT from = reinterpret_cast<const T*>(work.values[key]);
  float* HWY_RESTRICT out = work.out;
  const auto factor = hn::Set(d, work.weights[key * kRows]);
  for (size_t c = 0; c + lanes <= work.width; c += lanes) {
    hn::StoreU(mul_add(factor, read(from + c), hn::LoadU(d, out + c)), d, out + c);
  }
}

// Adds weight * v to out[row] over the keys, a few rows of V at a time, so that memory is read
// nearly in order. All strips are in one function: V8 would inline a function of a single strip
// into its caller, at half the speed.
template <class T, size_t kRows, bool kLeads, class D>
HWY_NOINLINE void add_values(D d, const ValueWork& work) {
  constexpr size_t kVecs = DecodeTile::vecs(kRows);
  constexpr size_t kValueRows = DecodeTile::value_rows(kRows, sizeof(T));
  const size_t lanes = hn::Lanes(d);
  for (size_t first = 0; first < work.keys; first += kValueRows) {
    const size_t last = HWY_MIN(first + kValueRows, work.keys);
    PrefetchedList prefetched(work.prefetched == nullptr ? nullptr : work.prefetched + first,
                              work.prefetched_bytes);
    if constexpr (kLeads) {
      for (size_t j = first; j < last; ++j) add_first_row<T, kRows>(d, work, j);
    }
    constexpr size_t kFirst = kLeads ? 1 : 0;
    size_t column = 0;
    for (; column + kVecs * lanes <= work.width; column += kVecs * lanes) {
      add_strip<T, kFirst, kRows, kVecs>(d, work, first, last, column, prefetched);
    }
    for (; column < work.width; column += lanes) {
      if (kLeads && column + lanes <= work.width) {
        add_strip<T, kFirst, kRows, 1>(d, work, first, last, column, prefetched);
      } else {
        add_strip<T, 0, kRows, 1>(d, work, first, last, column, prefetched);
      }
    }
  }
}

// True if the first `width` elements of all rows are finite.
template <class T, class D>
HWY_NOINLINE bool all_finite(D d, const char* const* rows, size_t count, size_t width) {
  if constexpr (std::is_same_v<T, int8_t>) return true;
  const size_t lanes = hn::Lanes(d);
  const FloatReader<T, D> read(d);
  auto sum = hn::Zero(d);
  for (size_t row = 0; row < count; ++row) {
    const T* from = reinterpret_cast<const T*>(rows[row]);
    size_t c = 0;
    for (; c + lanes <= width; c += lanes) {
      sum = mul_add(read(from + c), hn::Zero(d), sum);
    }
    if (c < width) sum = mul_add(read(from + c, width - c), hn::Zero(d), sum);
  }
  return hn::AllTrue(d, hn::Eq(sum, hn::Zero(d)));
}

// Reads one row as floats, padded with zeros to whole vectors.
template <class T, class D>
HWY_NOINLINE void read_floats(D d, const char* row, size_t width, float* HWY_RESTRICT to) {
  const FloatReader<T, D> read(d);
  const T* from = reinterpret_cast<const T*>(row);
  for (size_t c = 0; c < width; c += hn::Lanes(d)) {
    hn::StoreU(read(from + c, width - c), d, to + c);
  }
}

// Multiplies the scores or weights of each key by the key's factor.
template <size_t kRows, class D>
HWY_NOINLINE void scale_keys(D d, float* HWY_RESTRICT tile, const float* HWY_RESTRICT factor,
                             size_t keys) {
  if constexpr (kRows == 1) {
    // Both arrays are padded to whole vectors.
    for (size_t j = 0; j < keys; j += hn::Lanes(d)) {
      hn::StoreU(hn::Mul(hn::LoadU(d, tile + j), hn::LoadU(d, factor + j)), d, tile + j);
    }
  } else {
    const hn::CappedTag<float, kRows> row_tag;
    for (size_t j = 0; j < keys; ++j) {
      float* at = tile + j * kRows;
      hn::StoreU(hn::Mul(hn::LoadU(row_tag, at), hn::Set(row_tag, factor[j])), row_tag, at);
    }
  }
}

// One step of the online softmax for one tile: `count` scores in whole vectors. Lane i belongs to
// row i % kRows; reference and row_sum have one number per lane. If a maximum rises, `correction`
// receives the rows' rescale factors, and the result is true.
template <size_t kRows, class D>
HWY_NOINLINE bool decode_softmax(D d, float* HWY_RESTRICT scores, size_t count, float factor,
                                 float* HWY_RESTRICT reference, float* HWY_RESTRICT row_sum,
                                 float* HWY_RESTRICT correction) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  V largest = hn::LoadU(d, scores);
  for (size_t i = lanes; i < count; i += lanes) {
    largest = hn::Max(largest, hn::LoadU(d, scores + i));
  }
  const bool rose = !hn::AllTrue(d, hn::Ge(hn::LoadU(d, reference), largest));
  if (rose) {
    HWY_ALIGN float lane_largest[hn::MaxLanes(D())];
    hn::StoreU(largest, d, lane_largest);
    for (size_t r = 0; r < kRows; ++r) {
      const float old = reference[r];
      float maximum = old;
      for (size_t i = r; i < lanes; i += kRows) maximum = std::max(maximum, lane_largest[i]);
      correction[r] = maximum == old ? 1.0F : std::exp((old - maximum) * factor);
      for (size_t i = r; i < lanes; i += kRows) {
        reference[i] = maximum;
        row_sum[i] *= correction[r];
      }
    }
  }
  const ToLog2<D> to_log2(d, SoftmaxFactor(factor));
  const V subtract = finite_reference(d, hn::LoadU(d, reference));
  const Exp2Table HWY_RESTRICT table = exp2_table();
  // Sum in parts to reduce rounding errors, see kRecentKeys in decode.cc.
  constexpr size_t kJoined = 32;
  V sum = hn::Zero(d);
  for (size_t i = 0; i < count;) {
    V part = hn::Zero(d);
    for (const size_t end = HWY_MIN(count, i + kJoined * lanes); i < end; i += lanes) {
      const V weight = exp_of_difference(d, table, hn::LoadU(d, scores + i), subtract, to_log2);
      hn::StoreU(weight, d, scores + i);
      part = hn::Add(part, weight);
    }
    sum = hn::Add(sum, part);
  }
  hn::StoreU(hn::Add(hn::LoadU(d, row_sum), sum), d, row_sum);
  return rose;
}

// Kernels of a job, chosen once by the type of K or V and the rows of a tile. Calls by pointer keep
// WebAssembly engines from inlining them; inlining halves V8's speed, see add_values().
template <class D>
struct DecodeKernels {
  void (*score_keys)(D, const ScoreWork&);
  void (*add_values)(D, const ValueWork&);
  unsigned (*touch)(const char* const*, size_t, size_t);
  bool (*all_finite)(D, const char* const*, size_t, size_t);
  void (*read_floats)(D, const char*, size_t, float*);
  void (*scale_keys)(D, float*, const float*, size_t);
  void (*pass_row_options)(const AttentionParams&, const DecodeRowOptions&, size_t,
                           const ScoreTile&, bool);
  bool (*softmax)(D, float*, size_t, float, float*, float*, float*);
};

template <class T, size_t kRows, class D, bool kLeads = false>
constexpr DecodeKernels<D> decode_kernels() {
  return {.score_keys = &score_keys<T, kRows, kLeads, D>,
          .add_values = &add_values<T, kRows, kLeads, D>,
          .touch = &touch,
          .all_finite = &all_finite<T, D>,
          .read_floats = &read_floats<T, D>,
          .scale_keys = &scale_keys<kRows, D>,
          .pass_row_options = &pass_row_options<kRows>,
          .softmax = &decode_softmax<kRows, D>};
}

// kLeads exists only for tiles of four rows of floats in WebAssembly.
template <class T, class D>
DecodeKernels<D> decode_kernels(size_t tile_rows, [[maybe_unused]] bool leads) {
  if (tile_rows == 1) return decode_kernels<T, 1, D>();
  if constexpr (TileSize::kDecodeFewRows == 2) {
    if (tile_rows == 2) return decode_kernels<T, 2, D>();
  }
  if constexpr (!kPrefetches && std::is_same_v<T, float>) {
    if (leads) return decode_kernels<T, 4, D, true>();
  }
  return decode_kernels<T, 4, D>();
}

template <class D>
DecodeKernels<D> decode_kernels_for(DType type, const SplitTiling& g) {
  return rules::visit_element(type, [&]<class T>(std::type_identity<T>) HWY_ATTR {
    return decode_kernels<typename SimdElement<T>::type, D>(static_cast<size_t>(g.tile_rows),
                                                            g.first_row_leads);
  });
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_KERNELS_INL_H_
