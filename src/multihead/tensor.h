/// \file
/// Non-owning views of memory: a pointer, a shape and strides; for some, an element type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Up to eight extents (or strides), outermost first. Longer lists keep their rank, which
/// validation can then report, but only the first eight values.
class Dims {
 public:
  static constexpr int kMaxRank = 8;  ///< most extents that are stored

  constexpr Dims() = default;  ///< rank 0
  /// The extents in order: Dims{1, 12, 1024, 64}.
  constexpr Dims(std::initializer_list<int64_t> values) {
    for (const int64_t value : values) push_back(value);
  }

  /// Appends an innermost extent.
  constexpr void push_back(int64_t value) {
    if (rank_ < kMaxRank) values_[static_cast<size_t>(rank_)] = value;
    ++rank_;
  }

  /// Number of extents, including extents beyond kMaxRank.
  constexpr int rank() const { return rank_; }
  /// An extent; axis is from 0 to less than kMaxRank.
  constexpr int64_t operator[](int axis) const { return values_[static_cast<size_t>(axis)]; }
  /// An extent, writable.
  constexpr int64_t& operator[](int axis) { return values_[static_cast<size_t>(axis)]; }

  /// Product of the extents; 1 for rank 0.
  constexpr int64_t elements() const {
    // Unsigned, because extents that validation refuses later may overflow.
    uint64_t product = 1;
    for (int axis = 0; axis < rank_ && axis < kMaxRank; ++axis) {
      product *= static_cast<uint64_t>((*this)[axis]);
    }
    return static_cast<int64_t>(product);
  }

  /// Text form: "(1, 12, 1024, 64)".
  std::string to_string() const {
    std::string text = "(";
    for (int axis = 0; axis < rank_; ++axis) {
      if (axis > 0) text += ", ";
      text += axis < kMaxRank ? std::to_string((*this)[axis]) : "...";
    }
    return text + ")";
  }

  /// True if rank and extents are equal.
  friend constexpr bool operator==(const Dims&, const Dims&) = default;

 private:
  std::array<int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

/// Strides, in elements, of a row-major tensor without gaps.
constexpr Dims contiguous_strides(const Dims& shape) {
  Dims strides = shape;
  uint64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (axis >= Dims::kMaxRank) continue;
    strides[axis] = static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(shape[axis]);
  }
  return strides;
}

/// A view of elements of type T. `data` may be null only if the tensor has no elements or is
/// optional. Strides are in elements; without them the tensor is row-major without gaps.
template <class T>
struct TensorView {
  T* data = nullptr;  ///< first element
  Dims shape;         ///< extents, outermost first
  Dims strides;       ///< in elements, one per extent

  constexpr TensorView() = default;  ///< An optional tensor that is not given.
  /// Row-major without gaps.
  constexpr TensorView(T* data_, const Dims& shape_)
      : data(data_), shape(shape_), strides(contiguous_strides(shape_)) {}
  /// Any strides.
  constexpr TensorView(T* data_, const Dims& shape_, const Dims& strides_)
      : data(data_), shape(shape_), strides(strides_) {}

  /// A writable view converts to a read-only one.
  template <class U, class = std::enable_if_t<std::is_same_v<T, const U>>>
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr TensorView(const TensorView<U>& other)
      : data(other.data), shape(other.shape), strides(other.strides) {}

  /// Returns false for a missing optional tensor, which has no data and rank 0.
  constexpr bool given() const { return data != nullptr || shape.rank() > 0; }
};

/// A half-precision number as storage: IEEE 754 binary16. All arithmetic is in float.
struct Float16 {
  uint16_t bits = 0;  ///< sign, 5 bits of exponent, 10 of fraction
};
/// A half-precision number as storage: the upper half of a float. All arithmetic is in float.
struct BFloat16 {
  uint16_t bits = 0;  ///< sign, 8 bits of exponent, 7 of fraction
};

/// Element types of storage. Tensors are f32, f16 or bf16; a KVCache may be int8 too.
enum class DType : uint8_t {
  kF32,   ///< float
  kF16,   ///< Float16
  kBF16,  ///< BFloat16
  kInt8,  ///< symmetric; one float scale per row (largest magnitude / 127)
};

/// Bytes of an element.
constexpr int64_t bytes_of(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kInt8 ? 1 : 2;
}
/// "f32", "f16", "bf16" or "int8".
constexpr const char* name_of(DType dtype) {
  return dtype == DType::kF32    ? "f32"
         : dtype == DType::kF16  ? "f16"
         : dtype == DType::kBF16 ? "bf16"
                                 : "int8";
}

/// The DType of float, Float16 or BFloat16.
template <class T>
inline constexpr DType kDTypeOf = [] {
  using Element = std::remove_const_t<T>;
  static_assert(std::is_same_v<Element, float> || std::is_same_v<Element, Float16> ||
                std::is_same_v<Element, BFloat16>);
  if constexpr (std::is_same_v<Element, float>) return DType::kF32;
  return std::is_same_v<Element, Float16> ? DType::kF16 : DType::kBF16;
}();

/// A view whose element type is known at run time; made from a view, or from a pointer, of one of
/// the three types.
template <class Void>
struct AnyTensorView {
  Void* data = nullptr;       ///< first element
  DType dtype = DType::kF32;  ///< element type
  Dims shape;                 ///< extents, outermost first
  Dims strides;               ///< in elements, one per extent

  constexpr AnyTensorView() = default;  ///< An optional tensor that is not given.
  /// Any strides.
  constexpr AnyTensorView(Void* data_, DType dtype_, const Dims& shape_, const Dims& strides_)
      : data(data_), dtype(dtype_), shape(shape_), strides(strides_) {}
  /// A writable view converts to a read-only one.
  template <class Other>
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr AnyTensorView(const AnyTensorView<Other>& view) requires(std::is_const_v<Void> &&
                                                                     !std::is_const_v<Other>)
      : data(view.data), dtype(view.dtype), shape(view.shape), strides(view.strides) {}
  /// Converts from a view of one of the three types.
  template <class T>
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr AnyTensorView(const TensorView<T>& view)
      : data(view.data), dtype(kDTypeOf<T>), shape(view.shape), strides(view.strides) {}
  /// Takes a pointer to one of the three types: row-major without gaps.
  template <class T>
  constexpr AnyTensorView(T* data_, const Dims& shape_)
      : AnyTensorView(TensorView<T>(data_, shape_)) {}
  /// Takes a pointer to one of the three types, with any strides.
  template <class T>
  constexpr AnyTensorView(T* data_, const Dims& shape_, const Dims& strides_)
      : AnyTensorView(TensorView<T>(data_, shape_, strides_)) {}
  /// A shape without data: for an empty tensor, or to prepare a call.
  constexpr AnyTensorView(std::nullptr_t, const Dims& shape_)
      : AnyTensorView(nullptr, DType::kF32, shape_) {}
  /// The same of any element type.
  constexpr AnyTensorView(std::nullptr_t, DType dtype_, const Dims& shape_)
      : dtype(dtype_), shape(shape_), strides(contiguous_strides(shape_)) {}

  /// Returns false for a missing optional tensor, which has no data and rank 0.
  constexpr bool given() const { return data != nullptr || shape.rank() > 0; }
};

/// A writable view of f32, f16 or bf16 elements.
using AnyTensor = AnyTensorView<void>;
/// A read-only view of f32, f16 or bf16 elements.
using ConstAnyTensor = AnyTensorView<const void>;

/// A writable view of floats.
using Tensor = TensorView<float>;
/// A read-only view of floats.
using ConstTensor = TensorView<const float>;
/// A view of bytes: 0 is false, every other value is true.
using ConstBoolTensor = TensorView<const uint8_t>;

}  // namespace multihead
MULTIHEAD_PUBLIC_END
