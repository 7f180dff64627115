#include "reference/reference_attention.h"

#include <Eigen/Dense>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/reference_head.h"

namespace multihead::reference {

const std::vector<double>& ReferenceOutputs::stage(ScoreStage stage) const {
  switch (stage) {
    case ScoreStage::kRaw:
      return raw;
    case ScoreStage::kCapped:
      return capped;
    case ScoreStage::kMasked:
      return masked;
    case ScoreStage::kWeights:
      break;
  }
  return weights;
}

ReferenceOutputs attention(const ConstAnyTensor& q, const ConstAnyTensor& k,
                           const ConstAnyTensor& v, const AttentionOptions& options,
                           bool with_stages) {
  constexpr double kNegInf = -std::numeric_limits<double>::infinity();
  ReferenceOutputs result;
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t h = 0; h < q.shape[1]; ++h) {
      const Head head(q, k, v, options, b, h);
      for (int64_t i = 0; i < head.queries; ++i) {
        const Head::Softmax row = head.softmax(i);
        Eigen::VectorXd out = Eigen::VectorXd::Zero(head.value.cols());
        for (int64_t j = 0; j < head.keys; ++j) {
          // Hidden and dropped values are skipped, because 0 * NaN is NaN.
          const double factor = head.sees(i, j) ? head.dropout_factor(i, j) : 0.0;
          if (factor != 0.0) out += row.weight(j) * factor * head.value.row(j).transpose();
        }
        result.out.insert(result.out.end(), out.begin(), out.end());
        result.weights.insert(result.weights.end(), row.weight.begin(), row.weight.end());
        result.lse.push_back(row.sees_nothing() ? kNegInf : row.maximum + std::log(row.sum));
        if (!with_stages) continue;
        result.raw.insert(result.raw.end(), head.raw.row(i).begin(), head.raw.row(i).end());
        result.capped.insert(result.capped.end(), head.capped.row(i).begin(),
                             head.capped.row(i).end());
        result.masked.insert(result.masked.end(), head.score.row(i).begin(),
                             head.score.row(i).end());
      }
    }
  }
  return result;
}

}  // namespace multihead::reference
