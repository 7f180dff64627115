// A text as numbers of a vocabulary, and the windows that a model learns from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace multihead::train {

// The vocabulary is the text's own code points, or its bytes if it is not UTF-8 or has more than
// 1024 different code points.
struct TextData {
  std::vector<std::string> vocabulary;
  std::vector<int32_t> tokens;
  int64_t training = 0;  // the first so many tokens; the last tenth is held out
  bool of_bytes = false;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};

TextData tokenise(const std::string& text);

// Reads a file and splits it. Throws a Failure if it cannot be read, is empty, has more than 1 GiB,
// or is too short for a window of `context` tokens and the next one, both in training and held
// out.
TextData read_text(const std::string& path, int64_t context);

// The tokens of `text`. Throws a Failure that names `option` if one is not in the vocabulary.
std::vector<int32_t> encode(const TextData& data, const char* option, const std::string& text);

// Windows of `context` tokens, and for each token the one that follows it.
struct Windows {
  std::vector<int32_t> tokens, targets;
};

// Windows at random places of the training part. The places are a function of the seed and the
// step, in integers only.
void training_windows(const TextData& data, uint64_t seed, int64_t step, int64_t batch,
                      int64_t context, Windows& windows);

// Up to `most` windows, evenly spread over the held-out part; returns how many.
int64_t held_out_windows(const TextData& data, int64_t most, int64_t context, Windows& windows);

}  // namespace multihead::train
