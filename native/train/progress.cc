#include "progress.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "terminal.h"

namespace multihead::train {

Progress::Progress(int64_t begin, int64_t total, bool quiet)
    : begin_(begin), total_(total), quiet_(quiet), on_terminal_(stderr_is_terminal()) {}

Progress::~Progress() { clear(); }

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - started_).count();
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

void Progress::show(const TrainingStep& step) {
  constexpr std::chrono::milliseconds kBetween(100);
  if (!on_terminal_ || (drawn_ && Clock::now() - drawn_at_ < kBetween)) return;
  constexpr int64_t kCells = 30;
  const int64_t filled = kCells * step.step / total_;
  const double left =
      seconds() / static_cast<double>(step.step - begin_) * static_cast<double>(total_ - step.step);
  const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                          std::string(static_cast<size_t>(kCells - filled), '.');
  std::fprintf(stderr, "\r\x1b[K[%s] %lld of %lld  loss %.3f  %.0f s left", bar.c_str(),
               static_cast<long long>(step.step), static_cast<long long>(total_), step.loss, left);
  std::fflush(stderr);
  drawn_ = true;
  drawn_at_ = Clock::now();
}

void Progress::line(const std::string& text) {
  if (quiet_) return;
  clear();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace multihead::train
