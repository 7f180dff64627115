// One query head of one batch entry, computed by definition in double. Used by the oracles of
// attention() and attention_backward().
#pragma once

#include <Eigen/Dense>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "multihead/attention.h"

namespace multihead::reference {

// Row-major, so that each row is contiguous.
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Returns one head of a tensor (B, H, N, d), as (N, d).
Matrix head_of(const ConstAnyTensor& tensor, int64_t batch, int64_t head);

class Head {
 public:
  // The arguments must be legal for attention(). The options must outlive this object.
  Head(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
       const AttentionOptions& options, int64_t of_batch, int64_t of_head);

  int64_t batch, head, kv_head, queries, keys;
  double scale, cap, sink;  // cap 0: none; sink -inf: none
  Matrix query, key;        // (N, d_k) after QK-norm and RoPE
  Matrix value;             // (N_k, d_v)
  // (N_q, N_k), see ScoreStage. `raw` and `capped` are -inf beyond kv_lengths; `score` is -inf for
  // every hidden key.
  Matrix raw, capped, score;

  bool sees(int64_t i, int64_t j) const { return visible_[static_cast<size_t>(i * keys + j)]; }

  struct Softmax {
    double maximum, sum;  // sum of exp(score - maximum), including the sink
    double sink_weight;
    Eigen::VectorXd weight;  // before dropout; 0 where hidden
    bool sees_nothing() const { return sum == 0.0; }
  };
  Softmax softmax(int64_t i) const;

  // Returns dropout's factor of the weight: 0 or 1 / (1 - p).
  double dropout_factor(int64_t i, int64_t j) const;

  // Turns the gradient with respect to rows after QK-norm and RoPE into the gradient with respect
  // to the given rows. Adds the gradient of the gain to `gain` (d_k).
  Matrix query_gradient(Matrix gradient, Eigen::VectorXd& gain) const {
    return turned_back(of_queries_, std::move(gradient), gain);
  }
  Matrix key_gradient(Matrix gradient, Eigen::VectorXd& gain) const {
    return turned_back(of_keys_, std::move(gradient), gain);
  }

 private:
  struct Rows {
    Matrix given;
    std::span<const float> gain;
    std::span<const int32_t> positions;
    int64_t first;  // position of row 0 if `positions` is empty
  };
  Matrix turned(const Rows& rows) const;
  Matrix turned_back(const Rows& rows, Matrix gradient, Eigen::VectorXd& gain) const;

  const AttentionOptions& options_;
  Rows of_queries_, of_keys_;
  std::vector<bool> visible_;
};

}  // namespace multihead::reference
