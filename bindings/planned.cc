// What calls of attention and their plans for a browser's GPU share: captures, slopes, and the
// lengths of caches.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "argument_block.h"
#include "arguments.h"
#include "call.h"
#include "functions.h"
#include "handles.h"
#include "multihead/multihead.h"

namespace multihead::bindings {
static std::vector<ScoreCapture> next_captures;

std::vector<ScoreCapture> pushed_captures() { return std::exchange(next_captures, {}); }

int32_t push_capture() {
  const CaptureCall call;
  const int32_t status = run(call.from, [&] {
    next_captures.push_back(call.capture);
    return Status();
  });
  if (status != 0) next_captures = {};
  return status;
}

void alibi_slopes(uint32_t address, int32_t count) {
  multihead::alibi_slopes({pointer<float>(address), static_cast<size_t>(count)});
}

void cache_release(int32_t handle) { release_object<KVCache>(handle); }
int32_t cache_truncate(int32_t handle, int32_t batch, int32_t length) {
  return run([&] { return agreed([&] { return at<KVCache>(handle).truncate(batch, length); }); });
}
void cache_clear(int32_t handle) { at<KVCache>(handle).clear(); }
int32_t cache_length(int32_t handle, int32_t batch) {
  return static_cast<int32_t>(at<KVCache>(handle).length(batch));
}
int32_t cache_first_kept(int32_t handle, int32_t batch) {
  return static_cast<int32_t>(at<KVCache>(handle).first_kept(batch));
}
double cache_bytes(int32_t handle) { return static_cast<double>(at<KVCache>(handle).bytes()); }

}  // namespace multihead::bindings
