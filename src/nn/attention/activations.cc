#include "nn/attention/activations.h"

#include <algorithm>
#include <cstdint>
#include <new>

#include "multihead/multi_head_attention.h"
#include "rules/arena.h"

namespace multihead {

Status MultiHeadAttentionActivations::Internals::begin(uint64_t version,
                                                       const engine::AttentionShape& shape,
                                                       nn::ModuleCall& call) {
  filled_ = false;
  rules::Arena size(nullptr);
  call.lay_out(size);
  // At least one alignment unit, so that arrays without elements have an address too.
  const uint64_t bytes = std::max(size.bytes(), rules::Arena::kAlignment);
  if (!memory_.reserve(bytes)) return Status::out_of_memory(bytes);
  version_ = version;
  shape_ = shape;
  size_ = bytes;
  lay_out(call);
  return {};
}

bool MultiHeadAttentionActivations::Internals::belongs_to(uint64_t version,
                                                          const engine::AttentionShape& shape,
                                                          nn::ModuleCall& call) const {
  if (!filled_ || version != version_ || !(shape == shape_)) return false;
  rules::Arena size(nullptr);
  call.lay_out(size);
  return std::max(size.bytes(), rules::Arena::kAlignment) == size_;
}

void MultiHeadAttentionActivations::Internals::lay_out(nn::ModuleCall& call) const {
  rules::Arena take(memory_.data());
  call.lay_out(take);
}

MultiHeadAttentionActivations::MultiHeadAttentionActivations() = default;
MultiHeadAttentionActivations::~MultiHeadAttentionActivations() = default;
MultiHeadAttentionActivations::MultiHeadAttentionActivations(
    MultiHeadAttentionActivations&&) noexcept = default;
MultiHeadAttentionActivations& MultiHeadAttentionActivations::operator=(
    MultiHeadAttentionActivations&&) noexcept = default;

int64_t MultiHeadAttentionActivations::bytes() const {
  return internals_ == nullptr ? 0 : internals_->bytes();
}

Status MultiHeadAttentionActivations::Internals::make(MultiHeadAttentionActivations& of) {
  if (of.internals_ == nullptr) of.internals_.reset(new (std::nothrow) Internals);
  return of.internals_ == nullptr ? Status::out_of_memory(sizeof(Internals)) : Status();
}

}  // namespace multihead
