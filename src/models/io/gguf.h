// GGUF, llama.cpp's file of a model: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "multihead/models.h"

namespace multihead::models {

// The settings, of which arrays are null, and the tensors, by their names in the file.
struct GgufFile {
  Config settings;
  std::vector<StoredTensor> tensors;
  std::vector<std::span<const std::byte>> bytes;  // of each tensor, in the file
};

// True if the bytes begin as a GGUF file does.
bool is_gguf_file(std::span<const std::byte> file);

// Errors: kFormat (a file that is truncated, contradicts itself or is of another version).
Status read_gguf(std::span<const std::byte> file, GgufFile& read);

}  // namespace multihead::models
