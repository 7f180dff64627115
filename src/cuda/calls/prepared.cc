#include <functional>
#include <utility>

#include "cuda/device/recorded.h"
#include "cuda/runtime/runtime.h"
#include "engine/error/error.h"
#include "multihead/cuda.h"

namespace multihead::cuda {
namespace {

// Keeps the launches of this thread as long as it exists.
class Recording {
 public:
  explicit Recording(RecordedLaunches& launches)
      : before_(std::exchange(recorded_launches(), &launches)) {}
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() { recorded_launches() = before_; }

 private:
  RecordedLaunches* before_;
};

}  // namespace

Status PreparedCalls::prepare(const std::function<Status()>& calls) {
  return engine::memory_guard([&]() -> Status {
    RecordedLaunches launches;
    const Recording recording(launches);
    MULTIHEAD_TRY(calls());
    launches_ = std::move(launches);
    return {};
  });
}

Status PreparedCalls::launch(Stream stream) const {
  for (const auto& launch : launches_) MULTIHEAD_TRY(status_of(launch(stream)));
  return {};
}

}  // namespace multihead::cuda
