#include "nn/transformer/block_activations.h"

#include <cstdint>
#include <new>

#include "nn/call_memory.h"

namespace multihead {

Status TransformerBlockActivations::Internals::make(TransformerBlockActivations& of,
                                                    Internals*& internals) {
  if (of.internals_ == nullptr) of.internals_.reset(new (std::nothrow) Internals);
  internals = of.internals_.get();
  return internals == nullptr ? Status::out_of_memory(sizeof(Internals)) : Status();
}

Status TransformerBlockActivations::Internals::begin(const TransformerBlockConfig& config,
                                                     uint64_t of_parameters, const Dims& of_x) {
  filled = false;
  Status reserved = nn::reserve(
      memory, [&](rules::Arena& take) { arrays.lay_out(config, of_x[0] * of_x[1], true, take); });
  arrays.attention = &attention;
  version = of_parameters;
  x = of_x;
  return reserved;
}

TransformerBlockActivations::TransformerBlockActivations() = default;
TransformerBlockActivations::~TransformerBlockActivations() = default;
TransformerBlockActivations::TransformerBlockActivations(TransformerBlockActivations&&) noexcept =
    default;
TransformerBlockActivations& TransformerBlockActivations::operator=(
    TransformerBlockActivations&&) noexcept = default;

int64_t TransformerBlockActivations::bytes() const {
  if (internals_ == nullptr) return 0;
  return static_cast<int64_t>(internals_->memory.bytes()) + internals_->attention.bytes();
}

}  // namespace multihead
