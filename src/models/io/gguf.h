// GGUF, the file of llama.cpp: the settings and the tensors of a model in one file.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "multihead/models.h"

namespace multihead::models {

// What a folder's config.json and header of safetensors would say: the names of the Hugging Face
// model. Two settings are of GGUF alone: "gguf" (the 1 that Gemma adds to the weights of its norms
// is in the file already) and "gguf/neighbour_pairs" (rows of q and k stand in the order in which
// neighbours are rotated).
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
