// A text as tokens of a vocabulary, and the windows that a model learns from.
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
  int64_t training = 0;  // number of training tokens; the last tenth is held out
  bool of_bytes = false;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};

TextData tokenize(const std::string& text);

// Reads a file and splits it into training and held-out tokens. Throws a Failure if the file cannot
// be read, is empty, or has more than 1 GiB, or if one part is shorter than a window of `context`
// tokens plus the next token.
TextData read_text(const std::string& path, int64_t context);

// Converts `text` to tokens. Throws a Failure that names `option` if a character is not in the
// vocabulary.
std::vector<int32_t> encode(const TextData& data, const char* option, const std::string& text);

// Windows of `context` tokens, and the next token after each token.
struct Windows {
  std::vector<int32_t> tokens, targets;
};

// Picks windows at random places of the training part. The places depend only on the seed and the
// step, computed with integers.
void training_windows(const TextData& data, uint64_t seed, int64_t step, int64_t batch,
                      int64_t context, Windows& windows);

// Picks up to `most` windows, evenly spread over the held-out part. Returns their number.
int64_t held_out_windows(const TextData& data, int64_t most, int64_t context, Windows& windows);

}  // namespace multihead::train
