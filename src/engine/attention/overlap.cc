#include "engine/attention/overlap.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <span>

namespace multihead::engine {
namespace {

// Most tensors of a call, without captures, whose ranges are compared at once.
constexpr size_t kMostOperands = 12;

// Address range [first, end) of a tensor's bytes; empty if the tensor is empty or absent. Unsigned,
// so that the sum may overflow for strides larger than any memory.
struct Range {
  uint64_t first, end;

  Range() = default;
  explicit Range(const Operand& of) : first(0), end(0) {
    if (of.data == nullptr) return;
    const Dims &shape = of.shape, &strides = of.strides;
    uint64_t before = 0, after = 1;  // elements
    const auto reach = [&](int axis) {
      return static_cast<uint64_t>(shape[axis] - 1) * static_cast<uint64_t>(strides[axis]);
    };
    if (shape.rank() == 4 && (strides[0] | strides[1] | strides[2] | strides[3]) >= 0) {
      // Most tensors take this case: without branches on strides it takes half the time.
      if (shape[0] == 0 || shape[1] == 0 || shape[2] == 0 || shape[3] == 0) return;
      after += reach(0) + reach(1) + reach(2) + reach(3);
    } else {
      for (int axis = 0; axis < shape.rank(); ++axis) {
        if (shape[axis] == 0) return;
        (strides[axis] < 0 ? before : after) += reach(axis);
      }
    }
    const auto bytes = static_cast<uint64_t>(of.element_bytes);
    const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(of.data));
    first = address + before * bytes;
    end = address + after * bytes;
  }

  bool meets(const Range& other) const { return first < other.end && other.first < end; }
};

// Decides most calls fast: if the address ranges of outputs meet no other range, nothing overlaps.
bool ranges_are_apart(std::initializer_list<Operand> inputs,
                      std::initializer_list<Operand> outputs) {
  if (inputs.size() + outputs.size() > kMostOperands) return false;
  Range ranges[kMostOperands];
  size_t count = 0;
  for (const Operand& input : inputs) ranges[count++] = Range(input);
  for (const Operand& output : outputs) {
    if (output.data == nullptr) continue;
    const Range range(output);
    for (size_t i = 0; i < count; ++i) {
      if (ranges[i].meets(range)) return false;
    }
    ranges[count++] = range;
  }
  return true;
}

// The bytes of a tensor, as contiguous runs: one run for each combination of indices along `axes`.
struct Runs {
  struct Axis {
    int64_t stride;  // bytes, more than 0
    int64_t extent;
    int64_t span;  // bytes from the start of the axis's first run to the end of its last
  };
  std::array<Axis, Dims::kMaxRank> axes;  // by stride, largest first
  int count = 0;
  int64_t run;

  explicit Runs(const Operand& of) : run(of.element_bytes) {
    // Sorted in ascending order here, reversed below. All indices along an axis of stride 0 share
    // their bytes, so the axis is left out.
    for (int axis = of.shape.rank(); axis-- > 0;) {
      constexpr int64_t kMost = int64_t{1} << 55;  // more elements than any memory has
      const int64_t extent = of.shape[axis], most = kMost / extent;
      const int64_t stride = std::abs(std::clamp(of.strides[axis], -most, most)) * of.element_bytes;
      if (extent == 1 || stride == 0) continue;
      int at = count++;
      for (; at > 0 && axes[static_cast<size_t>(at - 1)].stride > stride; --at) {
        axes[static_cast<size_t>(at)] = axes[static_cast<size_t>(at - 1)];
      }
      axes[static_cast<size_t>(at)] = {stride, extent, 0};
    }
    int64_t span = run;
    for (int at = 0; at < count; ++at) {
      Axis& axis = axes[static_cast<size_t>(at)];
      axis.span = span += (axis.extent - 1) * axis.stride;
    }
    std::reverse(axes.begin(), axes.begin() + count);
  }

  // Bytes from the first run to the end of the last, along axes `axis` and later.
  int64_t span(int axis) const { return axis < count ? axes[static_cast<size_t>(axis)].span : run; }
};

// Returns true if a run of `a` and a run of `b` share a byte. The runs of `b` begin `offset` bytes
// after the runs of `a`. The indices of axes before a_axis and b_axis are fixed already.
//
// If both axes have the same stride, as rows of one matrix do, runs can meet for only one or two
// differences of the two indices. Other axes are tried index by index. `steps` limits the attempts:
// if it does not suffice, the tensors count as sharing memory.
bool share(const Runs& a, int a_axis, const Runs& b, int b_axis, int64_t offset, int& steps) {
  if (offset >= a.span(a_axis) || offset <= -b.span(b_axis)) return false;
  const bool a_is_run = a_axis == a.count, b_is_run = b_axis == b.count;
  if ((a_is_run && b_is_run) || --steps < 0) return true;
  const int64_t a_stride = a_is_run ? 0 : a.axes[static_cast<size_t>(a_axis)].stride;
  const int64_t b_stride = b_is_run ? 0 : b.axes[static_cast<size_t>(b_axis)].stride;
  const int64_t stride = std::max(a_stride, b_stride);
  const int a_next = a_axis + (a_stride == stride), b_next = b_axis + (b_stride == stride);
  // Range of b's index minus a's index. If this step does not advance in `a` (or `b`), its index is
  // 0.
  const int64_t least = a_next == a_axis ? 0 : 1 - a.axes[static_cast<size_t>(a_axis)].extent;
  const int64_t most = b_next == b_axis ? 0 : b.axes[static_cast<size_t>(b_axis)].extent - 1;
  // Outside of first .. last, offset + index * stride is too small or too large for the runs to
  // meet.
  const int64_t first = std::max(least, (-b.span(b_next) - offset) / stride - 1);
  const int64_t last = std::min(most, (a.span(a_next) - offset) / stride + 1);
  for (int64_t index = first; index <= last; ++index) {
    if (share(a, a_next, b, b_next, offset + index * stride, steps)) return true;
  }
  return false;
}

bool share(const Operand& a, const Range& range_a, const Operand& b, const Range& range_b) {
  if (!range_a.meets(range_b)) return false;
  int steps = 4096;
  return share(Runs(a), 0, Runs(b), 0, static_cast<int64_t>(range_b.first - range_a.first), steps);
}

}  // namespace

Status validate_apart(std::initializer_list<Operand> inputs, std::initializer_list<Operand> outputs,
                      std::span<const ScoreCapture> captures) {
  // A small call takes 1 us, so this must not allocate or copy much.
  if (captures.empty() && ranges_are_apart(inputs, outputs)) return {};
  // Compares `output` with all inputs, the outputs before `end_outputs` and the first `count`
  // captures.
  const auto check = [&](const Operand& output, const Operand* end_outputs, size_t count) {
    const Range range(output);
    const auto compare = [&](const Operand& other) {
      if (!share(other, Range(other), output, range)) return Status();
      return shape_error(output.name, Message::kOverlap, static_cast<int64_t>(other.name));
    };
    Status status;
    for (const Operand& input : inputs) {
      if (status.ok()) status = compare(input);
    }
    for (const Operand* other = outputs.begin(); other != end_outputs && status.ok(); ++other) {
      status = compare(*other);
    }
    for (size_t i = 0; i < count && status.ok(); ++i) {
      status = compare({Name::kCaptureOut, captures[i].out});
    }
    return status;
  };
  for (const Operand& output : outputs) {
    MULTIHEAD_TRY(check(output, &output, 0));
  }
  for (size_t i = 0; i < captures.size(); ++i) {
    MULTIHEAD_TRY(check({Name::kCaptureOut, captures[i].out}, outputs.end(), i));
  }
  return {};
}

}  // namespace multihead::engine
