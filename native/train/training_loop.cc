#include "training_loop.h"

#if defined(_WIN32)
#include <io.h>
#else
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace multihead::train {
namespace {

std::atomic<bool> stop_wanted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // required in signal handlers

extern "C" void stop_after_step(int signal) {
  stop_wanted = true;
  std::signal(signal, SIG_DFL);  // a second Ctrl-C ends the program at once
}

// A file named on the command line.
struct NamedFile {
  const char* option;
  const std::string& path;  // empty if it is not given
};

[[noreturn]] void refuse(const char* option, const std::string& expected, const std::string& got) {
  throw Failure(kExitUsage, std::string(option) + ": expected " + expected + ", got " + got);
}

[[noreturn]] void cannot_be_written(const char* option, const std::string& path, int error) {
  throw Failure(kExitIo, std::string(option) + ": " + path + " cannot be written (" +
                             std::strerror(error) + ")");
}

// Returns false and sets errno if the path is not writable.
bool may_write(const std::filesystem::path& path) {
#if defined(_WIN32)
  constexpr int kWrite = 2;
  return _waccess(path.c_str(), kWrite) == 0;
#else
  return access(path.c_str(), W_OK) == 0;
#endif
}

// Checks an output path before the run, so that a wrong path does not lose the results. Files are
// written to a temporary file and renamed, so that the old file survives a failure. Renaming would
// replace a device such as /dev/stdout, so only some outputs may be devices.
void check_output(const NamedFile& file, bool may_be_device) {
  const auto& [option, path] = file;
  if (path.empty()) return;
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  const bool is_device = std::filesystem::is_other(there);
  if (std::filesystem::is_directory(there)) refuse(option, "a file", "the folder " + path);
  if (is_device && !may_be_device) refuse(option, "a file", "the device " + path);
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (!std::filesystem::is_directory(folder, error)) {
    refuse(option, "a file in a folder that exists", path);
  }
  if (!may_write(is_device ? std::filesystem::path(path) : folder)) {
    cannot_be_written(option, path, errno);
  }
}

// Refuses an output that would overwrite another file of the command line.
void check_distinct(const NamedFile& output, const NamedFile& other) {
  if (output.path.empty() || other.path.empty()) return;
  std::error_code error;
  const auto canonical = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(path, error);
  };
  // Two outputs may share a device.
  if (canonical(output.path) != canonical(other.path) ||
      std::filesystem::is_other(std::filesystem::status(output.path, error))) {
    return;
  }
  refuse(output.option, std::string("another file than ") + other.option, output.path);
}

// Returns 0 or an errno.
int write_text(const std::filesystem::path& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return 0;
  return errno != 0 ? errno : EIO;
}

void write_file(const char* option, const std::string& path, const std::string& text) {
  std::error_code error;
  if (std::filesystem::is_other(std::filesystem::status(path, error))) {
    if (const int cause = write_text(path, text); cause != 0)
      cannot_be_written(option, path, cause);
    return;
  }
  // Write to the target of a symbolic link, so that the link remains.
  std::filesystem::path target = std::filesystem::canonical(path, error);
  if (error) target = path;
  std::filesystem::path temporary = target;
  temporary += ".part";
  error = {write_text(temporary, text), std::generic_category()};
  if (!error) std::filesystem::rename(temporary, target, error);
  if (!error) return;
  const int cause = error.value();
  std::filesystem::remove(temporary, error);
  cannot_be_written(option, path, cause);
}

std::string header(const Curve& curve) {
  std::string text = "   step     loss  accuracy  held out:  loss";
  for (const std::string& job : curve.jobs) text += "  " + job;
  return text + (curve.jobs.empty() ? "  accuracy" : "");
}

std::string row(const CurvePoint& point, const Curve& curve) {
  char text[80];
  std::snprintf(text, sizeof(text), "%7lld  %7.4f   %5.1f %%        %7.4f",
                static_cast<long long>(point.step), static_cast<double>(point.loss),
                100 * static_cast<double>(point.accuracy),
                static_cast<double>(point.held_out->loss));
  std::string line = text;
  const auto add = [&](float accuracy, size_t width) {
    std::snprintf(text, sizeof(text), "  %*.1f %%", static_cast<int>(width) - 2,
                  100 * static_cast<double>(accuracy));
    line += text;
  };
  if (curve.jobs.empty()) add(point.held_out->accuracy, 8);
  for (size_t job = 0; job < curve.jobs.size(); ++job) {
    add(point.held_out->jobs[job], curve.jobs[job].size());
  }
  return line;
}

// Throws a Failure for a failed training step, and names the checkpoint that remains.
void check_step(const Status& status, const RunOptions& options, int64_t saved_step) {
  if (status.ok()) return;
  std::string sentence = status.message();
  if (saved_step > 0) {
    sentence += "\n" + options.checkpoint + " holds step " + std::to_string(saved_step);
  }
  throw Failure(kExitFailed, sentence);
}

}  // namespace

Curve prepare(Learner& learner, const RunOptions& options) {
  const NamedFile input{"the text", options.input}, resume{"--resume", options.resume};
  const NamedFile checkpoint{"--checkpoint", options.checkpoint}, csv{"--csv", options.csv},
      chart{"--chart", options.chart};
  check_output(checkpoint, /*may_be_device=*/false);
  check_output(csv, /*may_be_device=*/true);
  check_output(chart, /*may_be_device=*/true);
  check_distinct(checkpoint, input);
  for (const NamedFile& other : {input, resume, checkpoint}) {
    check_distinct(csv, other);
    check_distinct(chart, other);
  }
  check_distinct(chart, csv);
  Curve curve{learner.jobs(), {}};
  if (!options.resume.empty()) {
    load_checkpoint(learner.trainer(), learner.kept_options(), curve, options.resume);
  }
  return curve;
}

Run train(Learner& learner, Curve so_far, const RunOptions& options, Context& context) {
  Run run;
  run.curve = std::move(so_far);
  std::vector<CurvePoint>& points = run.curve.points;
  const int64_t begin = run.resumed_from = learner.trainer().steps();
  // A curve has about 60 measurements; every fifth is printed.
  const int64_t measured_every = std::max<int64_t>(1, options.steps / 60);
  const int64_t printed_every = 5 * measured_every;
  // Drop an extra measurement that an interrupted run made after its last step.
  if (begin % measured_every != 0 && begin < options.steps && !points.empty()) {
    points.back().held_out.reset();
  }
  Progress progress(begin, options.steps, options.json);
  stop_wanted = false;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, stop_after_step);
  bool titled = false;
  int64_t saved_step = options.resume == options.checkpoint ? begin : 0;
  for (int64_t step = begin + 1; step <= options.steps && !run.interrupted; ++step) {
    TrainingStep trained;
    check_step(learner.step(trained, context), options, saved_step);
    CurvePoint& point = points.emplace_back(point_of(trained));
    const bool is_done = step == options.steps;
    run.interrupted = stop_wanted && !is_done;
    const bool is_last = is_done || run.interrupted;
    if (is_last || step % measured_every == 0) {
      check_step(learner.measure(point.held_out.emplace(), context), options, saved_step);
    }
    progress.show(trained);
    if (is_last || step % printed_every == 0) {
      if (!std::exchange(titled, true)) progress.line(header(run.curve));
      progress.line(row(point, run.curve));
    }
    if (!options.checkpoint.empty() && (is_last || step % options.checkpoint_every == 0)) {
      save_checkpoint(learner.trainer(), learner.kept_options(), run.curve, options.checkpoint);
      saved_step = step;
    }
    if (!is_last) learner.after_step(trained, progress, context);
  }
  run.steps_done = learner.trainer().steps();
  run.seconds = progress.seconds();
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  return run;
}

ExitCode end(const Run& run, const Learner& learner, const RunOptions& options) {
  if (run.interrupted) {
    std::fprintf(stderr, "Stopped after step %lld of %lld.", static_cast<long long>(run.steps_done),
                 static_cast<long long>(options.steps));
    if (options.checkpoint.empty()) {
      std::fputs(" Nothing was kept: --checkpoint FILE does that.\n", stderr);
    } else {
      std::fprintf(stderr, " To continue:\n  %s\n", options.command_to_resume.c_str());
    }
  }
  if (!options.csv.empty()) write_file("--csv", options.csv, csv(run.curve));
  if (!options.chart.empty()) {
    write_file("--chart", options.chart, chart(run.curve, learner.title()));
  }
  return run.interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace multihead::train
