#include "cuda/calls/checks.h"

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "cuda/kernels.h"
#include "cuda/runtime/runtime.h"

namespace multihead::cuda {

Status validate_addresses(std::span<const Address> addresses) {
  for (const auto& [argument, data, alignment] : addresses) {
    if (data == nullptr) continue;
    const auto number = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data));
    const uint64_t beyond = number % static_cast<uint64_t>(alignment);
    if (beyond != 0) {
      return {StatusCode::kShape, argument,
              "an address that is a multiple of " + std::to_string(alignment),
              "one " + std::to_string(beyond) + " above"};
    }
    if (Status status = validate_memory(argument, data); !status.ok()) return status;
  }
  return {};
}

Status validate_option_addresses(const AttentionOptions& options) {
  const Address addresses[] = {
      address_of("mask", options.mask),
      address_of("bias", options.bias),
      address_of("kv_lengths", options.kv_lengths),
      address_of("alibi_slopes", options.alibi_slopes),
      address_of("sinks", options.sinks),
      address_of("qk_norm.q_gain", options.qk_norm.q_gain),
      address_of("qk_norm.k_gain", options.qk_norm.k_gain),
      address_of("rope.q_positions", options.rope.q_positions),
      address_of("rope.k_positions", options.rope.k_positions),
  };
  return validate_addresses(addresses);
}

Status validate_output_addresses(const AttentionOutputs& outputs) {
  const Address addresses[] = {
      address_of("out", outputs.out),
      address_of("lse", outputs.lse),
      address_of("weights", outputs.weights),
      address_of("dropout_mask", outputs.dropout_mask),
  };
  if (Status status = validate_addresses(addresses); !status.ok()) return status;
  for (const ScoreCapture& capture : outputs.captures) {
    const Address address = address_of("capture.out", capture.out);
    if (Status status = validate_addresses({&address, 1}); !status.ok()) return status;
  }
  return {};
}

Status validate_sequence_addresses(const PackedSequences& sequences) {
  const Address addresses[] = {address_of("cu_q", sequences.cu_q),
                               address_of("cu_k", sequences.cu_k)};
  return validate_addresses(addresses);
}

Status validate_longest(const PackedSequences& sequences) {
  for (const auto& [argument, count] :
       {std::pair{"max_queries", sequences.max_queries}, {"max_keys", sequences.max_keys}}) {
    if (count < 0) return {StatusCode::kOption, argument, "0 or more", std::to_string(count)};
  }
  return {};
}

Status validate_widths(const engine::AttentionShape& shape) {
  for (const auto& [argument, name, width] :
       {std::tuple{"q", "d_k", shape.head_dim}, {"v", "d_v", shape.value_dim}}) {
    if (width > kMaxWidth) {
      return {StatusCode::kShape, argument,
              std::string(name) + " up to " + std::to_string(kMaxWidth) + " on a GPU",
              std::to_string(width)};
    }
  }
  return {};
}

Status validate_workspace(const Workspace& workspace, uint64_t bytes) {
  if (bytes == 0) return {};
  if (workspace.data == nullptr || workspace.bytes < bytes) {
    return {StatusCode::kOption, "workspace", std::to_string(bytes) + " bytes",
            workspace.data == nullptr ? "none" : std::to_string(workspace.bytes)};
  }
  const Address address{"workspace", workspace.data, 256};
  return validate_addresses({&address, 1});
}

}  // namespace multihead::cuda
