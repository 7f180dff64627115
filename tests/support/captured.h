// The part of the oracle's stage that a capture of a random call asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reference/reference_attention.h"
#include "support/random_case.h"

namespace multihead::testing {

inline std::vector<double> captured(const RandomCase& c, const CaptureRequest& request,
                                    const reference::ReferenceOutputs& expected) {
  const std::vector<double>& whole = expected.stage(request.stage);
  const int64_t heads = c.weights_shape[1], keys = c.weights_shape[3];
  std::vector<double> part;
  for (int64_t b = 0; b < c.weights_shape[0]; ++b) {
    const auto count = request.heads.empty() ? heads : static_cast<int64_t>(request.heads.size());
    for (int64_t h = 0; h < count; ++h) {
      const int64_t head = request.heads.empty() ? h : request.heads[static_cast<size_t>(h)];
      const auto first =
          whole.begin() + ((b * heads + head) * c.weights_shape[2] + request.first_row) * keys;
      part.insert(part.end(), first, first + request.rows * keys);
    }
  }
  return part;
}

}  // namespace multihead::testing
