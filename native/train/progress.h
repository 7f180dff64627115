// Shows the progress of a run: a bar that is redrawn on a terminal, and lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "multihead/training.h"

namespace multihead::train {

class Progress {
 public:
  // `begin`: number of steps done before. `quiet`: print no lines, because the output is JSON.
  Progress(int64_t begin, int64_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Redraws the bar, if standard error is a terminal.
  void show(const TrainingStep& step);
  // Prints a line on standard output.
  void line(const std::string& text);

  double seconds() const;

 private:
  void clear();

  using Clock = std::chrono::steady_clock;
  int64_t begin_, total_;
  bool quiet_, on_terminal_;
  bool drawn_ = false;
  Clock::time_point started_ = Clock::now(), drawn_at_;
};

}  // namespace multihead::train
