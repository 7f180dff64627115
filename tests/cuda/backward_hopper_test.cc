// The Hopper backward kernels in the emulator, compared with the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda/backward_params.h"
#include "cuda/emulator/memory.h"
#include "cuda/hopper_case.h"
#include "cuda/kernels.h"
#include "cuda/mapped_case.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "reference/reference_attention.h"
#include "reference/reference_backward.h"
#include "rules/attention_params.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using emulator::device;
using emulator::Use;
using multihead::testing::element;
using multihead::testing::random_seeds;

// Rows of a gradient. Two floats after each row must stay unchanged.
class Gradient {
 public:
  Gradient(const Dims& shape, bool given)
      : shape_(shape),
        row_(shape[3] + 2),
        values_(static_cast<size_t>(shape.elements() / shape[3] * row_), kBefore) {
    if (!given) values_.clear();
  }
  rules::Rows<float> rows() {
    return {values_.empty() ? nullptr : values_.data(),
            {shape_[1] * shape_[2] * row_, shape_[2] * row_, row_}};
  }
  bool given() const { return !values_.empty(); }
  const std::vector<float>& values() const { return values_; }
  float at(int64_t head, int64_t row, int64_t column) const {
    return values_[static_cast<size_t>((head * shape_[2] + row) * row_ + column)];
  }
  // Compares rows first .. first + rows - 1 of each head with `expected`, which has no gaps.
  void expect(const std::vector<double>& expected, const std::vector<double>& allowed,
              int64_t first, int64_t rows, const char* name) const {
    if (!given()) return;
    for (int64_t head = 0; head < shape_[0] * shape_[1]; ++head) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < shape_[3]; ++column) {
          const auto i = static_cast<size_t>((head * rows + row) * shape_[3] + column);
          const auto got = static_cast<double>(at(head, first + row, column));
          const bool right =
              std::isnan(expected[i]) ? std::isnan(got) : std::abs(got - expected[i]) <= allowed[i];
          ASSERT_TRUE(right) << name << " of head " << head << ", row " << row << ", column "
                             << column << " is " << got << ", not " << expected[i] << " +- "
                             << allowed[i];
        }
        ASSERT_EQ(at(head, first + row, shape_[3]), kBefore) << name << ": wrote after a row";
      }
    }
  }

 private:
  static constexpr float kBefore = 12345.0F;
  Dims shape_;
  int64_t row_;
  std::vector<float> values_;
};

// The oracle's results for one batched call or one packed sequence.
struct Expected {
  reference::ReferenceGradients gradients;
  std::vector<double> lse, delta;                       // (B, H_q, N_q)
  std::vector<double> d_q_error, d_k_error, d_v_error;  // allowed errors
};

std::vector<double> row_of(const ConstAnyTensor& x, int64_t batch, int64_t head, int64_t row) {
  std::vector<double> values;
  const int64_t start = batch * x.strides[0] + head * x.strides[1] + row * x.strides[2];
  for (int64_t i = 0; i < x.shape[3]; ++i)
    values.push_back(static_cast<double>(element(x, start + i)));
  return values;
}

double norm(const std::vector<double>& row) {
  double sum = 0;
  for (const double value : row) sum += value * value;
  return std::sqrt(sum);
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The largest norm among the rows that are finite.
double largest_norm(const ConstAnyTensor& x) {
  double largest = 0;
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      for (int64_t i = 0; i < x.shape[2]; ++i) {
        const double size = norm(row_of(x, b, h, i));
        if (std::isfinite(size)) largest = std::max(largest, size);
      }
    }
  }
  return largest;
}

// Errors of the kernels, for each query i and key j that it sees, with D: sum of out * d_out:
// - weight P, relative: the f32 sum of a score, the f32 reference, and the exponential;
// - dP = d_out v: the f32 sum;
// - dS = P (dP - D): the errors of P and dP, and the f32 rounding of D.
// P and dS are rounded to the type of q, with a relative error of 2^-8 (bf16) or 2^-11 (f16), or an
// absolute error of 2^-25 for very small f16 numbers. The f32 error of a sum of d numbers is taken
// as 2^-20 of the product of both norms, the error of a sum over queries or keys as 2^-20 of the
// sum of magnitudes. The error of a gradient is the sum of the errors of its terms.
Expected expected_of(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                     const AttentionOptions& options, const ConstAnyTensor& d_out) {
  constexpr double kSum = 0x1p-20;
  const int64_t heads = q.shape[1], queries = q.shape[2], keys = k.shape[2], width = q.shape[3];
  const int64_t group = heads / k.shape[1];
  const bool is_f16 = q.dtype == DType::kF16;
  const double rounding = is_f16 ? 0x1p-11 : 0x1p-8, least = is_f16 ? 0x1p-25 : 0.0;
  const double scale = static_cast<double>(
      options.scale.value_or(static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)))));
  const reference::ReferenceOutputs forward = reference::attention(q, k, v, options);
  Expected result{.gradients = reference::attention_backward(q, k, v, options, d_out),
                  .lse = forward.lse,
                  .delta = {},
                  .d_q_error = std::vector<double>(static_cast<size_t>(q.shape.elements()), 1e-30),
                  .d_k_error = std::vector<double>(static_cast<size_t>(k.shape.elements()), 1e-30),
                  .d_v_error = std::vector<double>(static_cast<size_t>(v.shape.elements()), 1e-30)};
  const double key_norm = largest_norm(k), value_norm = largest_norm(v);
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv_head = h / group;
      std::vector<std::vector<double>> key_rows, value_rows;
      for (int64_t j = 0; j < keys; ++j) {
        key_rows.push_back(row_of(k, b, kv_head, j));
        value_rows.push_back(row_of(v, b, kv_head, j));
      }
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = (b * heads + h) * queries + i;
        const std::vector<double> query = row_of(q, b, h, i), gradient = row_of(d_out, b, h, i);
        const auto* const out = &forward.out[static_cast<size_t>(row * width)];
        const double delta = dot(gradient, std::vector<double>(out, out + width));
        result.delta.push_back(delta);
        const double lse = forward.lse[static_cast<size_t>(row)];
        const double weight_error =
            kSum * (scale * norm(query) * key_norm + 0.25 * std::abs(lse) + 0.25);
        const double dot_error = kSum * (norm(gradient) * value_norm + std::abs(delta));
        double* const d_q = &result.d_q_error[static_cast<size_t>(row * width)];
        for (int64_t j = 0; j < keys; ++j) {
          const double weight = forward.weights[static_cast<size_t>(row * keys + j)];
          if (!(weight > 0)) continue;
          const auto at = static_cast<size_t>(((b * k.shape[1] + kv_head) * keys + j) * width);
          double* const d_k = &result.d_k_error[at];
          double* const d_v = &result.d_v_error[at];
          const auto to = static_cast<size_t>(j);
          const double d_weight = dot(gradient, value_rows[to]);
          const double d_score = std::abs(weight * (d_weight - delta));
          const double score_error = d_score * (rounding + weight_error + kSum) +
                                     weight * dot_error * (1 + rounding) + least;
          const double value_error = weight * (rounding + weight_error + kSum) + least;
          for (size_t c = 0; c < static_cast<size_t>(width); ++c) {
            d_q[c] += scale * score_error * std::abs(key_rows[to][c]);
            d_k[c] += scale * score_error * std::abs(query[c]);
            d_v[c] += value_error * std::abs(gradient[c]);
          }
        }
      }
    }
  }
  return result;
}

std::vector<Expected> all_expected(const HopperCase& call, const Halves& q, const Halves& k,
                                   const Halves& v, const Halves& d_out) {
  std::vector<Expected> all;
  if (call.cu_q.empty()) {
    all.push_back(expected_of(q.view(), k.view(), v.view(), call.options, d_out.view()));
  }
  for (size_t s = 0; s + 1 < call.cu_q.size(); ++s) {
    const int64_t first = call.cu_q[s], count = call.cu_q[s + 1] - first;
    const int64_t first_key = call.cu_k[s], keys = call.cu_k[s + 1] - first_key;
    all.push_back(expected_of(q.rows(first, count), k.rows(first_key, keys),
                              v.rows(first_key, keys), call.options, d_out.rows(first, count)));
  }
  return all;
}

// Sets some query rows of q or d_out to NaN. Rows that see no key may have any gradient.
void spoil_queries(Random& random, const HopperCase& call, Halves& q, Halves& d_out) {
  const float value = std::numeric_limits<float>::quiet_NaN();
  Halves& one = random.chance(0.5) ? q : d_out;
  one.spoil(0, random.integer(0, call.heads - 1), random.integer(0, one.shape[2] - 1), value);
}

void check_call(uint64_t seed, bool packed) {
  Random random(seed);
  const HopperCase call =
      random_hopper_case(random, packed, {3, 70, 70, 150, 400}, /*most_of_group=*/3);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + call.description);
  const int64_t q_rows = packed ? call.cu_q.back() : call.queries;
  const int64_t k_rows = packed ? call.cu_k.back() : call.keys;
  const int64_t entries = packed ? 1 : call.batch;
  if (q_rows == 0) return;
  const Dims of_queries{entries, call.heads, q_rows, call.width};
  const Dims of_keys{entries, call.kv_heads, k_rows, call.width};
  Halves q(random, of_queries, call.type), d_out(random, of_queries, call.type);
  Halves k(random, of_keys, call.type), v(random, of_keys, call.type);
  // Spoil only small calls, because recomputing gradients is slow.
  const bool is_small = entries * call.heads * q_rows * k_rows * call.width < 150000;
  if (call.hidden_values && !packed && is_small) spoil_hidden(random, call, k, v);
  if (random.chance(0.1) && is_small) spoil_queries(random, call, q, d_out);
  const std::vector<Expected> expected = all_expected(call, q, k, v, d_out);

  BackwardParams params{};
  ForwardParams& forward = params.forward;
  const engine::AttentionShape sizes{.batch = call.batch,
                                     .heads = call.heads,
                                     .kv_heads = call.kv_heads,
                                     .queries = call.queries,
                                     .keys = call.keys,
                                     .head_dim = call.width,
                                     .value_dim = call.width};
  forward.call =
      engine::plan_forward({q.view(), k.view(), v.view(), call.options, {}}, sizes).params;
  if (packed) {
    forward.cu_q = call.cu_q.data();
    forward.cu_k = call.cu_k.data();
    forward.packed_queries = q_rows;
    forward.packed_keys = k_rows;
  }
  params.d_out = engine::stored_rows(d_out.view());
  params.scale = call.options.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(call.width))));
  std::vector<float> delta(static_cast<size_t>(entries * call.heads * q_rows)), reference = delta;
  for (size_t s = 0; s < expected.size(); ++s) {
    const int64_t first = packed ? call.cu_q[s] : 0;
    const int64_t count = packed ? call.cu_q[s + 1] - first : q_rows;
    for (size_t i = 0; i < expected[s].delta.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      const auto row = static_cast<size_t>(n / count * q_rows + first + n % count);
      delta[row] = static_cast<float>(expected[s].delta[i]);
      reference[row] =
          static_cast<float>(expected[s].lse[i] / static_cast<double>(forward.call.scale.softmax));
    }
  }
  const rules::RowStrides of_rows{call.heads * q_rows, q_rows, 1};
  params.delta = {delta.data(), of_rows};
  params.reference = {reference.data(), of_rows};
  Gradient d_q(of_queries, random.chance(0.9)), d_k(of_keys, random.chance(0.9));
  Gradient d_v(of_keys, random.chance(0.9));
  params.d_q = d_q.rows();
  params.d_k = d_k.rows();
  params.d_v = d_v.rows();
  constexpr Device kHopper{
      .compute_capability = 90, .multiprocessors = 132, .shared_bytes = 227 << 10};
  if (k_rows > 0) {
    ASSERT_EQ(hopper_backward_objection(params, kHopper), nullptr);
  }

  device().set_seed(seed);
  device().take_findings();
  Mapping memory;
  memory.add(q.data, q.bytes(), Use::kInput, "q");
  memory.add(k.data, k.bytes(), Use::kInput, "k");
  memory.add(v.data, v.bytes(), Use::kInput, "v");
  memory.add(d_out.data, d_out.bytes(), Use::kInput, "d_out");
  memory.add(delta, Use::kInput, "delta");
  memory.add(reference, Use::kInput, "reference");
  memory.add(d_q.values(), Use::kOutput, "d_q");
  memory.add(d_k.values(), Use::kOutput, "d_k");
  memory.add(d_v.values(), Use::kOutput, "d_v");
  memory.add(call.lengths, Use::kInput, "kv_lengths");
  memory.add(call.cu_q, Use::kInput, "cu_q");
  memory.add(call.cu_k, Use::kInput, "cu_k");
  ASSERT_EQ(launch_backward_hopper(params, kHopper, nullptr), 0);
  const std::vector<std::string> findings = device().take_findings();
  ASSERT_TRUE(findings.empty()) << findings[0];

  for (size_t s = 0; s < expected.size(); ++s) {
    const Expected& one = expected[s];
    const int64_t first = packed ? call.cu_q[s] : 0, first_key = packed ? call.cu_k[s] : 0;
    const int64_t count = packed ? call.cu_q[s + 1] - first : q_rows;
    const int64_t keys = packed ? call.cu_k[s + 1] - first_key : k_rows;
    d_q.expect(one.gradients.d_q, one.d_q_error, first, count, "d_q");
    d_k.expect(one.gradients.d_k, one.d_k_error, first_key, keys, "d_k");
    d_v.expect(one.gradients.d_v, one.d_v_error, first_key, keys, "d_v");
  }
}

TEST(BackwardHopper, AgreesWithTheOracleOnRandomCalls) {
  for (const uint64_t seed : random_seeds(300)) {
    check_call(seed, /*packed=*/false);
    if (HasFatalFailure()) return;
  }
}

TEST(BackwardHopper, AgreesWithTheOracleOnRandomPackedSequences) {
  for (const uint64_t seed : random_seeds(200)) {
    check_call(seed, /*packed=*/true);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
