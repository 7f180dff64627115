#include "text_data.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error/printable.h"
#include "rules/dropout_mask.h"
#include "run_options.h"

namespace multihead::train {
namespace {

constexpr size_t kMostCodePoints = 1024;
constexpr size_t kMostBytes = size_t{1} << 30;

// Calls visit(part) for each byte of the text, or for each code point. Returns false at the first
// byte that is not UTF-8.
template <class Visit>
bool for_each_part(std::string_view text, bool of_bytes, const Visit& visit) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = of_bytes ? 1 : engine::utf8_length(text.substr(at));
    if (length == 0) return false;
    visit(text.substr(at, length));
    at += length;
  }
  return true;
}

std::string contents(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  std::string text;
  bool failed = file == nullptr;
  if (!failed) {
    std::array<char, 1 << 16> block{};
    while (const size_t count = std::fread(block.data(), 1, block.size(), file)) {
      text.append(block.data(), count);
      if (text.size() > kMostBytes) break;  // a device such as /dev/zero has no end
    }
    failed = std::ferror(file) != 0;  // for example if it is a folder
  }
  const int error = errno;
  if (file != nullptr) std::fclose(file);
  if (text.size() > kMostBytes) {
    throw Failure(kExitUsage, path + ": expected a text of at most 1 GiB, got more");
  }
  if (!failed) return text;
  throw Failure(kExitIo, path + ": cannot be read (" + std::strerror(error) + ")");
}

void add_window(const TextData& data, int64_t begin, int64_t context, Windows& windows) {
  const auto first = data.tokens.begin() + begin;
  windows.tokens.insert(windows.tokens.end(), first, first + context);
  windows.targets.insert(windows.targets.end(), first + 1, first + context + 1);
}

}  // namespace

TextData tokenize(const std::string& text) {
  TextData data;
  std::map<std::string_view, int32_t> number_of;
  size_t parts = 0;
  const auto collect = [&](std::string_view part) {
    number_of.try_emplace(part, 0);
    ++parts;
  };
  const bool is_utf8 = for_each_part(text, false, collect);
  data.of_bytes = !is_utf8 || number_of.size() > kMostCodePoints;
  if (data.of_bytes) {
    number_of.clear();
    parts = 0;
    for_each_part(text, true, collect);
  }
  for (auto& [part, number] : number_of) {
    number = static_cast<int32_t>(data.vocabulary.size());
    data.vocabulary.emplace_back(part);
  }
  data.tokens.reserve(parts);
  for_each_part(text, data.of_bytes,
                [&](std::string_view part) { data.tokens.push_back(number_of.at(part)); });
  data.training = data.size() - data.size() / 10;
  return data;
}

TextData read_text(const std::string& path, int64_t context) {
  const std::string text = contents(path);
  if (text.empty()) throw Failure(kExitUsage, path + ": expected a text, got an empty file");
  TextData data = tokenize(text);
  const int64_t needed = 10 * (context + 1);  // so that the last tenth has a window too
  if (data.size() < needed) {
    throw Failure(kExitUsage, path + ": expected at least " + std::to_string(needed) +
                                  (data.of_bytes ? " bytes" : " characters") +
                                  " for a --context of " + std::to_string(context) + ", got " +
                                  std::to_string(data.size()));
  }
  return data;
}

std::vector<int32_t> encode(const TextData& data, const char* option, const std::string& text) {
  std::vector<int32_t> tokens;
  const bool is_valid = for_each_part(text, data.of_bytes, [&](std::string_view part) {
    const auto found = std::lower_bound(data.vocabulary.begin(), data.vocabulary.end(), part);
    if (found == data.vocabulary.end() || *found != part) {
      throw Failure(kExitUsage, std::string(option) +
                                    ": expected characters that occur in the text, got \"" +
                                    std::string(part) + "\"");
    }
    tokens.push_back(static_cast<int32_t>(found - data.vocabulary.begin()));
  });
  if (!is_valid) {
    throw Failure(kExitUsage, std::string(option) + ": expected UTF-8, got \"" + text + "\"");
  }
  return tokens;
}

void training_windows(const TextData& data, uint64_t seed, int64_t step, int64_t batch,
                      int64_t context, Windows& windows) {
  windows.tokens.clear();
  windows.targets.clear();
  const auto places = static_cast<uint64_t>(data.training - context);
  for (int64_t row = 0; row < batch; ++row) {
    const std::array<uint32_t, 4> words =
        rules::philox4x32({0, static_cast<uint32_t>(row), static_cast<uint32_t>(step),
                           static_cast<uint32_t>(static_cast<uint64_t>(step) >> 32U)},
                          {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32U)});
    const uint64_t word = static_cast<uint64_t>(words[0]) << 32U | words[1];
    add_window(data, static_cast<int64_t>(word % places), context, windows);
  }
}

int64_t held_out_windows(const TextData& data, int64_t most, int64_t context, Windows& windows) {
  windows.tokens.clear();
  windows.targets.clear();
  const int64_t last = data.size() - context - 1;  // start of the last window
  const int64_t count = std::min(most, (last - data.training) / context + 1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin =
        data.training + (count == 1 ? 0 : (last - data.training) * i / (count - 1));
    add_window(data, begin, context, windows);
  }
  return count;
}

}  // namespace multihead::train
