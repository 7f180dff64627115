// Reads the arguments of calls from the block, in the order of wire.inc. The member's type selects
// the read() overload.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "argument_block.h"
#include "engine/attention/attention_part.h"
#include "engine/attention/plan.h"
#include "multihead/analysis.h"
#include "multihead/lab.h"
#include "multihead/models.h"
#include "multihead/multihead.h"
#include "webgpu/plan_attention.h"

namespace multihead::bindings {

// Options of a module's call: those of the core, and of multihead::lab.
struct ModuleOptions : MultiHeadAttentionOptions {
  bool skip_out_proj = false;
  bool scale_by_embed_dim = false;
};

// A metric. Of a function of JavaScript, `slopes` (vocab_size) is its gradient, where one is
// needed.
struct GivenMetric : models::Metric {
  std::span<const float> slopes;
};

using engine::AttentionPart;
using engine::BackwardPart;
using models::Ablation;
using models::By;
using models::EarlyStopping;
using models::Edit;
using models::Metric;
using models::ModelInputs;
using models::Pooling;
using models::SamplingOptions;
using models::Site;
using ModelOutput = models::Output;
using GpuDevice = webgpu::Device;
using CacheOperands = webgpu::CacheOperands;

// Reads numbers from the block; returns zeros past the last written number, which complete()
// reports.
class Arguments {
 public:
  // True if the number of values read equals the number written.
  bool complete() const { return read_ == written_; }

  double number() {
    const size_t index = ++read_;
    return index <= written_ && index < kBlockLength ? argument_block[index] : 0;
  }
  int32_t integer() { return static_cast<int32_t>(number()); }
  uint32_t word() { return static_cast<uint32_t>(number()); }

 private:
  size_t written_ = static_cast<size_t>(argument_block[0]);
  size_t read_ = 0;
};

inline void read(Arguments& from, double& to) { to = from.number(); }
inline void read(Arguments& from, float& to) { to = static_cast<float>(from.number()); }
inline void read(Arguments& from, bool& to) { to = from.number() != 0; }
inline void read(Arguments& from, int64_t& to) { to = static_cast<int64_t>(from.number()); }
inline void read(Arguments& from, int32_t& to) { to = from.integer(); }
inline void read(Arguments& from, uint32_t& to) { to = from.word(); }
inline void read(Arguments& from, uint64_t& to) {
  const uint32_t low = from.word();
  to = static_cast<uint64_t>(from.word()) << 32U | low;
}

template <class Enum>
requires std::is_enum_v<Enum>
void read(Arguments& from, Enum& to) { to = static_cast<Enum>(from.integer()); }

inline void read(Arguments& from, std::optional<float>& to) {
  if (from.number() != 0) read(from, to.emplace());
}

template <class T>
void read(Arguments& from, std::span<T>& to) {
  const uint32_t address = from.word();
  to = {pointer<T>(address), from.word()};
}

// Reads a tensor's dtype, shape and strides; returns its address, or 0 if the tensor is not given.
inline uint32_t read_tensor(Arguments& from, DType& dtype, Dims& shape, Dims& strides) {
  int32_t rank = from.integer();
  if (rank == 0) return 0;
  const bool strided = rank >= kStridedRank;
  if (strided) rank -= kStridedRank;
  const uint32_t address = from.word();
  read(from, dtype);
  rank = std::min(rank, Dims::kMaxRank);
  for (int32_t axis = 0; axis < rank; ++axis) shape.push_back(from.integer());
  strides = contiguous_strides(shape);
  for (int32_t axis = 0; strided && axis < rank; ++axis) strides[axis] = from.integer();
  return address;
}

template <class Void>
void read(Arguments& from, AnyTensorView<Void>& to) {
  to.data = pointer<Void>(read_tensor(from, to.dtype, to.shape, to.strides));
}

template <class T>
void read(Arguments& from, TensorView<T>& to) {
  // wire.ts accepts only tensors of T here, so the dtype is not used.
  DType dtype{};
  to.data = pointer<T>(read_tensor(from, dtype, to.shape, to.strides));
}

// T is the type in wire.inc. The reference binds only to a member of exactly that type.
template <class T>
void read_member(Arguments& from, std::type_identity_t<T>& to) {
  read(from, to);
}
template <class T>
void read_member(Arguments& from, std::optional<std::type_identity_t<T>>& to) {
  read(from, to.emplace());
}

// NOLINTNEXTLINE(bugprone-macro-parentheses): a type
#define WIRE_RECORD(type, ...) \
  inline void read(Arguments& from, type& record) { __VA_ARGS__ }
#define WIRE_READ(type, member) read_member<type>(from, record.member);
#define WIRE_FIELD(...) WIRE_EACH(WIRE_READ, __VA_ARGS__)
#define WIRE_FIELD_AS(type, member, javascript) WIRE_READ(type, member)
#include "wire.inc"

template <class T>
T take(Arguments& from) {
  T value{};
  read(from, value);
  return value;
}

// Defines a struct for the arguments of each call. Its constructor reads the block, because members
// are initialized in declaration order.
#define WIRE_CALL(type, javascript, ...) \
  struct type {                          \
    Arguments from;                      \
    __VA_ARGS__                          \
  };
#define WIRE_TAKE(type, member) type member = take<type>(from);
#define WIRE_FIELD(...) WIRE_EACH(WIRE_TAKE, __VA_ARGS__)
#include "wire.inc"

}  // namespace multihead::bindings
