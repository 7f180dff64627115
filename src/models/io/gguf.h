// GGUF, llama.cpp's file of a model: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "multihead/models.h"

namespace multihead::models {

// A model with the names that its Hugging Face folder has in config.json and in the safetensors
// header. Two settings tell how GGUF stores weights differently. "gguf": norms hold 1 + weight
// where the family adds 1, as Gemma does. "gguf/neighbour_pairs": in q and k, two rows that are
// rotated together are neighbours.
struct GgufModel {
  Config config;
  std::vector<StoredTensor> tensors;
  std::vector<std::span<const std::byte>> bytes;  // of each tensor, in the file
};

// True if the bytes begin as a GGUF file does.
bool is_gguf(std::span<const std::byte> file);

// Errors: kFormat (a file that is truncated, contradicts itself, is one of several or of another
// version; an architecture or a setting that is not supported).
Status read_gguf(std::span<const std::byte> file, GgufModel& model);

}  // namespace multihead::models
