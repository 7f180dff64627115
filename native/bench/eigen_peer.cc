// Compiled for this machine's processor (-march=native), like programs that want speed from Eigen.
// The build renames Eigen's namespace in this file. Otherwise the linker could mix its inline
// functions with the oracle's, which are compiled with other flags.
#include "eigen_peer.h"

#include <Eigen/Core>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace multihead::bench {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;
using WritableRows = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

// Softmax of the first `visible` columns of row i; the other columns become 0.
void softmax_row(Matrix& scores, Eigen::Index i, Eigen::Index visible) {
  auto row = scores.row(i);
  auto seen = row.head(visible);
  seen = (seen.array() - seen.maxCoeff()).exp();
  seen /= seen.sum();
  row.tail(scores.cols() - visible).setZero();
}

}  // namespace

void eigen_attention(const EigenAttention& p) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(p.width));
  Matrix scores(p.queries, p.keys);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const int64_t kv_head = h / (p.heads / p.kv_heads);
      const int64_t q_at = b * p.q_strides[0] + h * p.q_strides[1];
      const int64_t k_at = b * p.k_strides[0] + kv_head * p.k_strides[1];
      const Eigen::OuterStride<> q_rows(p.q_strides[2]), k_rows(p.k_strides[2]);
      const Rows q(p.q + q_at, p.queries, p.width, q_rows);
      const Rows k(p.k + k_at, p.keys, p.width, k_rows);
      const Rows v(p.v + k_at, p.keys, p.width, k_rows);
      WritableRows out(p.out + q_at, p.queries, p.width, q_rows);
      scores.noalias() = q * k.transpose();
      scores *= scale;
      if (p.additive != nullptr) {
        scores +=
            Eigen::Map<const Matrix>(p.additive + h * p.additive_head_stride, p.queries, p.keys);
      }
      for (int64_t i = 0; i < p.queries; ++i) {
        softmax_row(scores, i, p.causal ? i + 1 + p.keys - p.queries : p.keys);
      }
      out.noalias() = scores * v;
    }
  }
}

void eigen_module(const EigenModule& p) {
  const Eigen::Map<const Matrix> x(p.x, p.tokens, p.embed);
  const auto project = [&](size_t which) -> Matrix {
    return x * Eigen::Map<const Matrix>(p.weights[which], p.embed, p.embed).transpose();
  };
  const Matrix q = project(0), k = project(1), v = project(2);
  Matrix merged(p.tokens, p.embed);
  const int64_t width = p.embed / p.heads;
  const std::array<int64_t, 3> strides = {0, width, p.embed};
  eigen_attention({.q = q.data(),
                   .k = k.data(),
                   .v = v.data(),
                   .out = merged.data(),
                   .batch = 1,
                   .heads = p.heads,
                   .kv_heads = p.heads,
                   .queries = p.tokens,
                   .keys = p.tokens,
                   .width = width,
                   .q_strides = strides,
                   .k_strides = strides,
                   .causal = false,
                   .additive = nullptr,
                   .additive_head_stride = 0});
  Eigen::Map<Matrix>(p.out, p.tokens, p.embed).noalias() =
      merged * Eigen::Map<const Matrix>(p.weights[3], p.embed, p.embed).transpose();
}

void eigen_linear(const PeerLinear& p) {
  using Vector = Eigen::VectorXf;
  const Eigen::Map<const Matrix> weight(p.weight, p.outputs, p.in);
  const Eigen::Map<const Vector> bias(p.bias, p.outputs);
  if (p.rows == 1) {
    Eigen::Map<Vector> out(p.out, p.outputs);
    out = bias;
    out.noalias() += weight * Eigen::Map<const Vector>(p.x, p.in);
    return;
  }
  Eigen::Map<Matrix> out(p.out, p.rows, p.outputs);
  out.rowwise() = bias.transpose();
  out.noalias() += Eigen::Map<const Matrix>(p.x, p.rows, p.in) * weight.transpose();
}

}  // namespace multihead::bench
