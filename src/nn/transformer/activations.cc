#include "nn/transformer/activations.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#include "nn/call_memory.h"

namespace multihead {

Status TransformerActivations::Internals::make(TransformerActivations& of, Internals*& internals) {
  if (of.internals_ == nullptr) of.internals_.reset(new (std::nothrow) Internals(false));
  internals = of.internals_.get();
  return internals == nullptr ? Status::out_of_memory(sizeof(Internals)) : Status();
}

Status TransformerActivations::Internals::begin(const TransformerConfig& config, uint64_t version,
                                                int64_t batch, int64_t length) {
  filled_ = false;
  const auto layers = static_cast<size_t>(config.num_layers);
  const size_t sets = recompute_ ? std::min<size_t>(layers, 1) : layers;
  if (sets != sets_) {
    sets_ = 0;
    arrays_.reset(new (std::nothrow) nn::BlockArrays[sets]);
    attention_.reset(new (std::nothrow) MultiHeadAttentionActivations[sets]);
    if (arrays_ == nullptr || attention_ == nullptr) return Status::out_of_memory();
    sets_ = sets;
  }
  const int64_t rows = batch * length, width = config.block.attention.embed_dim;
  input_ = rows * width;
  MULTIHEAD_TRY(nn::reserve(memory_, [&](rules::Arena& take) {
    take(inputs_, nn::saturated_elements({config.num_layers + 1, rows, width}));
    take(normed_, config.final_norm ? nn::saturated_elements({rows, width}) : 0);
    for (size_t set = 0; set < sets; ++set) {
      arrays_[set].lay_out(config.block, rows, true, take);
      arrays_[set].attention = &attention_[set];
    }
  }));
  version_ = version;
  batch_ = batch;
  length_ = length;
  return {};
}

int64_t TransformerActivations::Internals::bytes() const {
  auto sum = static_cast<int64_t>(memory_.bytes());
  for (size_t set = 0; set < sets_; ++set) sum += attention_[set].bytes();
  return sum;
}

TransformerActivations::TransformerActivations(bool recompute)
    : internals_(new(std::nothrow) Internals(recompute)) {}
TransformerActivations::~TransformerActivations() = default;
TransformerActivations::TransformerActivations(TransformerActivations&&) noexcept = default;
TransformerActivations& TransformerActivations::operator=(TransformerActivations&&) noexcept =
    default;

int64_t TransformerActivations::bytes() const {
  return internals_ == nullptr ? 0 : internals_->bytes();
}

}  // namespace multihead
