// merge_attention() and rotate() on the device.
#include <array>
#include <cstdint>
#include <span>

#include "cuda/calls/checks.h"
#include "cuda/kernels.h"
#include "cuda/rows/merge_params.h"
#include "cuda/rows/rotate_params.h"
#include "cuda/runtime/runtime.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "multihead/cuda.h"

namespace multihead::cuda {
namespace {

// Checks that there is a device, that the addresses are its memory, and that the stream takes work.
Status validate_device_call(std::span<const Address> addresses, Stream stream) {
  Device device;
  if (Status status = current_device(device); !status.ok()) return status;
  if (Status status = validate_addresses(addresses); !status.ok()) return status;
  return validate_stream(stream);
}

template <class T>
rules::Rows<T> rows_of(const TensorView<T>& tensor) {
  return {tensor.data, {tensor.strides[0], tensor.strides[1], tensor.strides[2]}};
}

}  // namespace

Status merge_attention(const Tensor& out_a, const Tensor& lse_a, const ConstTensor& out_b,
                       const ConstTensor& lse_b, Stream stream) {
  return engine::memory_guard([&]() -> Status {
    Status status = engine::validate_merge(out_a, lse_a, out_b, lse_b);
    if (!status.ok()) return status;
    const std::array addresses = {address_of("out_a", out_a), address_of("lse_a", lse_a),
                                  address_of("out_b", out_b), address_of("lse_b", lse_b)};
    status = validate_device_call(addresses, stream);
    const Dims& shape = out_a.shape;
    if (!status.ok() || lse_a.shape.elements() == 0) return status;
    return status_of(launch_merge({.out_a = rows_of(out_a),
                                   .lse_a = rows_of(lse_a),
                                   .out_b = rows_of(out_b),
                                   .lse_b = rows_of(lse_b),
                                   .batch = shape[0],
                                   .heads = shape[1],
                                   .rows = shape[2],
                                   .width = shape[3]},
                                  stream));
  });
}

Status rotate(const ConstTensor& x, std::span<const int32_t> positions, const Rope& rope,
              const Tensor& y, Stream stream) {
  return engine::memory_guard([&]() -> Status {
    Status status = engine::validate_rotate(x, positions, rope, y);
    if (!status.ok()) return status;
    const std::array addresses = {address_of("x", x), address_of("positions", positions),
                                  address_of("y", y)};
    status = validate_device_call(addresses, stream);
    if (!status.ok() || x.shape.elements() == 0) return status;
    RotateParams params;
    params.x = engine::stored_rows(x);
    params.y = {
        .data = y.data, .type = DType::kF32, .stride = {y.strides[0], y.strides[1], y.strides[2]}};
    params.batch = x.shape[0];
    params.heads = x.shape[1];
    params.rows = x.shape[2];
    params.width = x.shape[3];
    params.style = rope.style;
    params.base = rope.base;
    params.rotary = rope.rotary_dim != 0 ? rope.rotary_dim : x.shape[3];
    params.positions = positions.data();
    params.positions_stride = static_cast<int64_t>(positions.size()) == x.shape[2] ? 0 : x.shape[2];
    return status_of(launch_rotate(params, stream));
  });
}

}  // namespace multihead::cuda
