#include "device_work.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "rules/element.h"

namespace multihead::bench {
namespace {

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

const void* stored(const Numbers& numbers) {
  return numbers.dtype == DType::kF32 ? static_cast<const void*>(numbers.floats.data())
                                      : numbers.halves.data();
}

int64_t stored_bytes(const Numbers& numbers) {
  return static_cast<int64_t>(numbers.floats.size()) * bytes_of(numbers.dtype);
}

// Copies an array of the options to the device, and sets its pointer to the copy.
template <class T>
void move_to_device(const T*& data, size_t count, std::vector<DeviceMemory>& memory) {
  if (data == nullptr || count == 0) return;
  DeviceMemory copy(count * sizeof(T));
  copy.upload(data, 0, copy.bytes());
  data = reinterpret_cast<const T*>(copy.data());
  memory.push_back(std::move(copy));
}

template <class T>
void move_to_device(std::span<const T>& values, std::vector<DeviceMemory>& memory) {
  const T* data = values.data();
  move_to_device(data, values.size(), memory);
  values = {data, values.size()};
}

AttentionOptions options_on_device(const MaskInputs& mask, std::vector<DeviceMemory>& memory) {
  AttentionOptions options = mask.options();
  const auto move = [&](auto& tensor) {
    if (!tensor.given()) return;
    move_to_device(tensor.data, static_cast<size_t>(tensor.shape.elements()), memory);
  };
  move(options.mask);
  move(options.bias);
  move_to_device(options.kv_lengths, memory);
  move_to_device(options.alibi_slopes, memory);
  return options;
}

DeviceMemory filled_with(int32_t value, int64_t count) {
  const std::vector<int32_t> values(static_cast<size_t>(count), value);
  DeviceMemory memory(values.size() * sizeof(int32_t));
  memory.upload(values.data(), 0, memory.bytes());
  return memory;
}

std::span<const int32_t> integers(const DeviceMemory& memory) {
  return {reinterpret_cast<const int32_t*>(memory.data()), memory.bytes() / sizeof(int32_t)};
}

bool write(const std::string& path, const void* data, int64_t bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  return !file.fail();
}

}  // namespace

RotatedArray::RotatedArray(const void* host, int64_t bytes, int copies)
    : stride_((static_cast<size_t>(bytes) + 255) / 256 * 256),
      memory_(stride_ * static_cast<size_t>(copies)) {
  memory_.upload(host, 0, static_cast<size_t>(bytes));
  for (int which = 1; which < copies; ++which) {
    memory_.copy_within(0, stride_ * static_cast<size_t>(which), static_cast<size_t>(bytes));
  }
}

int rotated_copies(int64_t bytes, int64_t l2_bytes) {
  return static_cast<int>(std::clamp<int64_t>((4 * l2_bytes + bytes - 1) / bytes, 2, 256));
}

DeviceWork::DeviceWork(const Case& which)
    : which_(which),
      shape_(which.shape),
      q_shape_{shape_.batch, shape_.heads, shape_.queries, shape_.width},
      k_shape_{shape_.batch, shape_.kv_heads, shape_.keys, shape_.width},
      q_(q_shape_.elements(), kQuerySeed,
         which.op == Op::kCache ? DType::kF32 : dtype_of(which.dtype)),
      k_(k_shape_.elements(), kKeySeed, dtype_of(which.dtype)),
      v_(k_shape_.elements(), kValueSeed, dtype_of(which.dtype)),
      mask_(shape_, which.mask),
      copies_(rotated_copies(stored_bytes(q_) + 2 * stored_bytes(k_), device_l2_bytes())),
      q_rows_(stored(q_), stored_bytes(q_), copies_),
      k_rows_(stored(k_), stored_bytes(k_), copies_),
      v_rows_(stored(v_), stored_bytes(v_), copies_),
      options_(options_on_device(mask_, of_options_)),
      lengths_(filled_with(static_cast<int32_t>(shape_.keys), shape_.batch)),
      firsts_(filled_with(0, shape_.batch)),
      out_(static_cast<size_t>(stored_bytes(q_))) {
  out_.fill(0xFF);  // NaN
  uint64_t needed = 0;
  if (which.op == Op::kBackward) {
    prepare_backward();
    require(cuda::attention_backward_workspace(q(), keys(k_, k_rows_), keys(v_, v_rows_), options_,
                                               results(), d_out(), gradients(), needed));
  } else if (which.op == Op::kCache) {
    require(cuda::decode_workspace(q(), cache(), options_, outputs(), needed));
  } else {
    require(cuda::attention_workspace(q(), keys(k_, k_rows_), keys(v_, v_rows_), options_,
                                      outputs(), needed));
  }
  workspace_ = DeviceMemory(needed);
}

// Computes the output and the LSE that the backward reads.
void DeviceWork::prepare_backward() {
  const auto queries = static_cast<size_t>(shape_.batch * shape_.heads * shape_.queries);
  const size_t q_bytes = q_.floats.size() * sizeof(float),
               k_bytes = k_.floats.size() * sizeof(float);
  backward_ = Backward{.d_out = {q_shape_.elements(), kGradientSeed, q_.dtype},
                       .d_out_rows = DeviceMemory(static_cast<size_t>(stored_bytes(q_))),
                       .lse = DeviceMemory(queries * sizeof(float)),
                       .d_q = DeviceMemory(q_bytes),
                       .d_k = DeviceMemory(k_bytes),
                       .d_v = DeviceMemory(k_bytes)};
  const Numbers& d_out = backward_->d_out;
  backward_->d_out_rows.upload(stored(d_out), 0, backward_->d_out_rows.bytes());
  for (const DeviceMemory* gradient : {&backward_->d_q, &backward_->d_k, &backward_->d_v}) {
    gradient->fill(0xFF);
  }
  AttentionOutputs forward = outputs();
  forward.lse = Tensor(reinterpret_cast<float*>(backward_->lse.data()),
                       {shape_.batch, shape_.heads, shape_.queries});
  uint64_t needed = 0;
  require(cuda::attention_workspace(q(), keys(k_, k_rows_), keys(v_, v_rows_), options_, forward,
                                    needed));
  const DeviceMemory workspace(needed);
  require(cuda::attention(q(), keys(k_, k_rows_), keys(v_, v_rows_), options_, forward,
                          {workspace.data(), workspace.bytes()}, nullptr));
}

Status DeviceWork::run(cuda::Stream stream) {
  copy_ = (copy_ + 1) % copies_;
  const cuda::Workspace workspace{workspace_.data(), workspace_.bytes()};
  if (which_.op == Op::kBackward) {
    return cuda::attention_backward(q(), keys(k_, k_rows_), keys(v_, v_rows_), options_, results(),
                                    d_out(), gradients(), workspace, stream);
  }
  if (which_.op == Op::kCache) {
    return cuda::decode(q(), cache(), options_, outputs(), workspace, stream);
  }
  return cuda::attention(q(), keys(k_, k_rows_), keys(v_, v_rows_), options_, outputs(), workspace,
                         stream);
}

double DeviceWork::operations() const {
  // 2 d per product and visible pair: two products in the forward, five in the backward.
  const double products = which_.op == Op::kBackward ? 10.0 : 4.0;
  return products * static_cast<double>(shape_.batch * shape_.heads * shape_.width) *
         mask_.visible_pairs();
}

double DeviceWork::bytes() const {
  return shape_.queries > 1 ? 0 : static_cast<double>(stored_bytes(k_) + stored_bytes(v_));
}

std::string DeviceWork::explanation() const {
  if (which_.op == Op::kCache) {
    return cuda::explain_decode(q(), cache(), options_, outputs());
  }
  if (which_.op == Op::kBackward) {
    return cuda::explain_backward(q(), keys(k_, k_rows_), keys(v_, v_rows_), options_, results(),
                                  d_out(), gradients());
  }
  return cuda::explain(q(), keys(k_, k_rows_), keys(v_, v_rows_), options_, outputs());
}

std::vector<float> DeviceWork::output() const {
  std::vector<float> values(q_.floats.size());
  if (backward_ || q_.dtype == DType::kF32) {
    (backward_ ? backward_->d_q : out_).download(values.data());
    return values;
  }
  std::vector<uint16_t> bits(values.size());
  out_.download(bits.data());
  rules::read_floats(bits.data(), q_.dtype, 0, static_cast<int64_t>(bits.size()), values.data());
  return values;
}

double DeviceWork::error(const std::vector<float>& output) const {
  const int64_t group = shape_.heads / shape_.kv_heads;
  const Dims q_part{1, group, shape_.queries, shape_.width};
  const Dims k_part{1, 1, shape_.keys, shape_.width};
  const int64_t q_at = q_shape_.elements() - q_part.elements();
  const int64_t k_at = k_shape_.elements() - k_part.elements();
  AttentionOptions options = mask_.options();
  if (options.mask.given() && options.mask.shape.rank() == 4) {
    options.mask = {options.mask.data + (shape_.batch - 1) * shape_.keys, {1, 1, 1, shape_.keys}};
  }
  if (!options.kv_lengths.empty()) options.kv_lengths = options.kv_lengths.last(1);
  if (!options.alibi_slopes.empty()) {
    options.alibi_slopes = options.alibi_slopes.last(static_cast<size_t>(group));
  }
  const ConstTensor q(q_.floats.data() + q_at, q_part), k(k_.floats.data() + k_at, k_part),
      v(v_.floats.data() + k_at, k_part);
  std::vector<float> expected(static_cast<size_t>(q_part.elements()));
  const Tensor out(expected.data(), q_part);
  Context context;
  if (backward_) {
    std::vector<float> forward(expected.size()), sums(static_cast<size_t>(group * shape_.queries));
    const Tensor of_forward(forward.data(), q_part);
    const Tensor lse(sums.data(), {1, group, shape_.queries});
    require(attention(q, k, v, options, {.out = of_forward, .lse = lse}, context));
    require(attention_backward(q, k, v, options, {.out = of_forward, .lse = lse},
                               ConstTensor(backward_->d_out.floats.data() + q_at, q_part),
                               {.d_q = out}, context));
  } else {
    require(attention(q, k, v, options, {.out = out}, context));
  }
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double got = output[static_cast<size_t>(q_at) + i];
    const double difference = std::abs(got - static_cast<double>(expected[i]));
    if (!(difference <= largest)) largest = difference;
    if (std::isnan(largest)) break;
  }
  return largest;
}

bool DeviceWork::save(const std::string& stem, const std::vector<float>& output) const {
  char text[400];
  const int length = std::snprintf(
      text, sizeof(text),
      "{\"name\": \"%s\", \"batch\": %lld, \"heads\": %lld, \"kv_heads\": %lld, \"queries\": %lld, "
      "\"keys\": %lld, \"width\": %lld, \"mask\": \"%s\", \"q_dtype\": \"%s\", \"dtype\": "
      "\"%s\"}\n",
      which_.name().c_str(), static_cast<long long>(shape_.batch),
      static_cast<long long>(shape_.heads), static_cast<long long>(shape_.kv_heads),
      static_cast<long long>(shape_.queries), static_cast<long long>(shape_.keys),
      static_cast<long long>(shape_.width), name_of(which_.mask), name_of(q_.dtype),
      name_of(k_.dtype));
  return write(stem + ".json", text, length) && write(stem + ".q", stored(q_), stored_bytes(q_)) &&
         write(stem + ".k", stored(k_), stored_bytes(k_)) &&
         write(stem + ".v", stored(v_), stored_bytes(v_)) &&
         write(stem + ".f32", output.data(), static_cast<int64_t>(output.size() * sizeof(float)));
}

ConstAnyTensor DeviceWork::q() const {
  return {q_rows_.copy(copy_), q_.dtype, q_shape_, contiguous_strides(q_shape_)};
}

ConstAnyTensor DeviceWork::keys(const Numbers& numbers, const RotatedArray& arrays) const {
  return {arrays.copy(copy_), numbers.dtype, k_shape_, contiguous_strides(k_shape_)};
}

AttentionOutputs DeviceWork::outputs() const {
  return {.out = AnyTensor(out_.data(), q_.dtype, q_shape_, contiguous_strides(q_shape_))};
}

AttentionResults DeviceWork::results() const {
  return {.out = outputs().out,
          .lse = ConstTensor(reinterpret_cast<const float*>(backward_->lse.data()),
                             {shape_.batch, shape_.heads, shape_.queries})};
}

ConstAnyTensor DeviceWork::d_out() const {
  return {backward_->d_out_rows.data(), q_.dtype, q_shape_, contiguous_strides(q_shape_)};
}

AttentionGradients DeviceWork::gradients() const {
  const auto tensor = [](const DeviceMemory& memory, const Dims& shape) {
    return Tensor(reinterpret_cast<float*>(memory.data()), shape);
  };
  return {.d_q = tensor(backward_->d_q, q_shape_),
          .d_k = tensor(backward_->d_k, k_shape_),
          .d_v = tensor(backward_->d_v, k_shape_)};
}

cuda::CacheView DeviceWork::cache() const {
  return {.config = {.batch = shape_.batch,
                     .num_kv_heads = shape_.kv_heads,
                     .head_dim = shape_.width,
                     .value_dim = shape_.width,
                     .capacity = shape_.keys,
                     .type = k_.dtype},
          .keys = k_rows_.copy(copy_),
          .values = v_rows_.copy(copy_),
          .lengths = integers(lengths_),
          .firsts = integers(firsts_),
          .page_table = {},
          .max_length = shape_.keys};
}

}  // namespace multihead::bench
