// Tensors for fuzz targets, mostly valid. Their memory ends with their last element. Outputs show
// if they were written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "fuzz/bytes.h"
#include "multihead/tensor.h"
#include "rules/element.h"

namespace multihead::fuzz {

class Operands {
 public:
  // `wild`: elements may be any float, including infinities and NaN.
  Operands(Bytes& from, bool wild) : from_(from), wild_(wild) {}

  float number() {
    return wild_ ? from_.number() : static_cast<float>(from_.integer(-63, 63)) / 63;
  }
  bool wild() const { return wild_; }

  // Returns a tensor of this shape, or rarely of a slightly different shape. With `shares`, some
  // strides are 0.
  ConstAnyTensor input(Dims shape, DType dtype, bool shares = true) {
    if (from_.one_in(96)) dtype = static_cast<DType>(from_.byte());
    return typed_input(shape, dtype, shares);
  }
  ConstTensor floats(const Dims& shape, bool shares = true) {
    const ConstAnyTensor any = typed_input(shape, DType::kF32, shares);
    return {static_cast<const float*>(any.data), any.shape, any.strides};
  }
  AnyTensor output(Dims shape, DType dtype) {
    if (from_.one_in(96)) dtype = static_cast<DType>(from_.byte());
    return typed_output(shape, dtype);
  }
  Tensor float_output(const Dims& shape) {
    const AnyTensor any = typed_output(shape, DType::kF32);
    return {static_cast<float*>(any.data), any.shape, any.strides};
  }
  ConstBoolTensor bools(Dims shape) {
    disturb(shape);
    const Dims strides = strides_of(shape, true);
    std::vector<uint8_t>& memory = allocate(shape, strides, DType::kInt8);
    for (uint8_t& byte : memory) byte = from_.byte() % 4 == 0 ? 0 : 1;
    return {memory.data(), shape, strides};
  }
  // Returns mostly `count` values, rarely another number of values.
  std::span<const float> values(int64_t count) {
    if (from_.one_in(32)) count = from_.integer(0, 9);
    std::vector<float> made(static_cast<size_t>(std::clamp<int64_t>(count, 0, 4096)));
    for (float& value : made) value = number();
    return float_lists_.emplace_back(std::move(made));
  }
  std::span<const int32_t> integers(int64_t count, int64_t low, int64_t high) {
    if (from_.one_in(32)) count = from_.integer(0, 9);
    std::vector<int32_t> made(static_cast<size_t>(std::clamp<int64_t>(count, 0, 4096)));
    for (int32_t& value : made) {
      value = static_cast<int32_t>(from_.one_in(64) ? from_.integer(INT32_MIN, INT32_MAX)
                                                    : from_.integer(low, std::max(low, high)));
    }
    return integer_lists_.emplace_back(std::move(made));
  }

  // Checks that no byte of an output was written.
  void check_untouched() const {
    for (const std::vector<uint8_t>* memory : outputs_) {
      for (const uint8_t byte : *memory)
        FUZZ_CHECK(byte == kUntouched, "written by a refused call");
    }
  }

 private:
  static constexpr uint8_t kUntouched = 0x2A;

  ConstAnyTensor typed_input(Dims shape, DType dtype, bool shares) {
    disturb(shape);
    const Dims strides = strides_of(shape, shares);
    std::vector<uint8_t>& memory = allocate(shape, strides, dtype);
    const auto size = static_cast<size_t>(bytes_of(dtype));
    for (size_t at = 0; at + size <= memory.size(); at += size) {
      const float value = number();
      const uint16_t half =
          dtype == DType::kF16 ? rules::to_float16(value).bits : rules::to_bfloat16(value).bits;
      // Calls refuse other types (int8 or unknown), so any bytes will do.
      std::memcpy(memory.data() + at, size == 4 ? static_cast<const void*>(&value) : &half, size);
    }
    return finish(memory, dtype, shape, strides);
  }
  AnyTensor typed_output(Dims shape, DType dtype) {
    disturb(shape);
    const Dims strides = strides_of(shape, false);
    std::vector<uint8_t>& memory = allocate(shape, strides, dtype);
    outputs_.push_back(&memory);
    const ConstAnyTensor any = finish(memory, dtype, shape, strides);
    return {const_cast<void*>(any.data), any.dtype, any.shape, any.strides};
  }

  void disturb(Dims& shape) {
    if (!from_.one_in(64) || shape.rank() == 0) return;
    const auto axis = static_cast<int>(from_.integer(0, shape.rank() - 1));
    switch (from_.integer(0, 3)) {
      case 0:
        shape[axis] =
            from_.pick<int64_t>({-1, INT64_MIN, INT64_MAX, int64_t{1} << 31, int64_t{1} << 62});
        break;
      case 1:
        shape[axis] = from_.integer(0, 9);
        break;
      case 2:
        shape.push_back(from_.integer(0, 2));
        break;
      default: {
        Dims shorter;
        for (int i = 0; i + 1 < shape.rank(); ++i) shorter.push_back(shape[i]);
        shape = shorter;
      }
    }
  }

  // Returns strides that are contiguous, have gaps between rows, or swap the second and third of
  // four axes.
  Dims strides_of(const Dims& shape, bool shares) {
    if (shape.rank() == 0) return {};
    Dims small = shape;
    const int last = shape.rank() - 1;
    for (int axis = 0; axis <= last; ++axis) small[axis] = extent_of(shape, axis);
    const int64_t gap = from_.one_in(4) ? from_.integer(0, 3) : 0;
    const bool swaps = shape.rank() == 4 && from_.one_in(4);
    if (swaps) std::swap(small[1], small[2]);
    small[last] += gap;
    Dims strides = contiguous_strides(small);
    if (swaps) std::swap(strides[1], strides[2]);
    if (from_.one_in(96)) strides[last] = from_.integer(0, 2);
    const auto axis = static_cast<int>(from_.integer(0, last));
    if (from_.one_in(16) && axis < last && shares) strides[axis] = 0;
    if (from_.one_in(128)) strides[axis] = 0;
    if (from_.one_in(128)) strides.push_back(1);
    return strides;
  }

  // Returns an extent for allocation: 0 or more, and small.
  static int64_t extent_of(const Dims& shape, int axis) {
    return shape[axis] < 0 || shape[axis] > 4096 ? 1 : shape[axis];
  }

  std::vector<uint8_t>& allocate(const Dims& shape, const Dims& strides, DType dtype) {
    int64_t reach = 1;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const int64_t extent = extent_of(shape, axis);
      if (extent == 0) {
        reach = 0;
        break;
      }
      reach += (extent - 1) * std::max<int64_t>(strides[axis], 0);
    }
    return memory_.emplace_back(static_cast<size_t>(reach * bytes_of(dtype)), kUntouched);
  }

  ConstAnyTensor finish(const std::vector<uint8_t>& memory, DType dtype, const Dims& shape,
                        const Dims& strides) {
    const bool lost = from_.one_in(128);
    return {lost ? nullptr : memory.data(), dtype, shape, strides};
  }

  Bytes& from_;
  bool wild_;
  std::deque<std::vector<uint8_t>> memory_;
  std::vector<const std::vector<uint8_t>*> outputs_;
  std::deque<std::vector<float>> float_lists_;
  std::deque<std::vector<int32_t>> integer_lists_;
};

}  // namespace multihead::fuzz
