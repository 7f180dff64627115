#include "openblas_peer.h"

#ifdef MULTIHEAD_HAS_OPENBLAS

#include <cblas.h>

#include <algorithm>
#include <cstdint>

namespace multihead::bench {

bool has_openblas() { return true; }

void openblas_linear(const PeerLinear& p) {
  openblas_set_num_threads(1);
  const auto rows = static_cast<blasint>(p.rows), in = static_cast<blasint>(p.in);
  const auto outputs = static_cast<blasint>(p.outputs);
  for (int64_t row = 0; row < p.rows; ++row) {
    std::copy_n(p.bias, p.outputs, p.out + row * p.outputs);
  }
  if (rows == 1) {
    cblas_sgemv(CblasRowMajor, CblasNoTrans, outputs, in, 1.0F, p.weight, in, p.x, 1, 1.0F, p.out,
                1);
  } else {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, outputs, in, 1.0F, p.x, in, p.weight,
                in, 1.0F, p.out, outputs);
  }
}

}  // namespace multihead::bench

#else

namespace multihead::bench {

bool has_openblas() { return false; }
void openblas_linear(const PeerLinear& /*problem*/) {}

}  // namespace multihead::bench

#endif  // MULTIHEAD_HAS_OPENBLAS
