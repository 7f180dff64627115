// The README's example: causal attention of 12 heads over 1024 tokens.
#include <multihead/multihead.h>
#include <cstdio>
#include <vector>

int main() {
  namespace mh = multihead;
  const mh::Dims shape{1, 12, 1024, 64};  // batch, heads, tokens, width
  std::vector<float> q(shape.elements(), 0.1F), k = q, v(shape.elements(), 2.0F), out(q.size());
  mh::Context context;  // threads and scratch, kept between calls
  const mh::Status status =
      mh::attention({q.data(), shape}, {k.data(), shape}, {v.data(), shape},
                    {.causal = mh::Causal::top_left()}, {.out = {out.data(), shape}}, context);
  if (!status.ok()) return std::puts(status.message().c_str()), 1;
  std::printf("out[0] = %g on %s\n", out[0], mh::simd_target());
  return out[0] == 2.0F ? 0 : 1;
}
