// Writes the results of a call, in addition to its return value, to the block for JavaScript.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "argument_block.h"
#include "engine/attention/attention_part.h"
#include "engine/attention/backward.h"
#include "engine/error/error.h"
#include "multihead/analysis.h"
#include "multihead/lab.h"
#include "multihead/models.h"
#include "multihead/multihead.h"

namespace multihead::bindings {

using engine::AttentionParts;
using engine::BackwardParts;
using models::LogitAttribution;
using models::ModelInfo;
using models::PartResults;
using models::Pooling;
using ModelOutput = models::Output;

// A named tensor: a step of a trace, or a parameter.
struct ListedTensor {
  std::string name;
  Dims shape;
  const void* data;         // floats without gaps
  bool by_columns = false;  // true for a matrix that is stored column by column
  int64_t dtype = static_cast<int64_t>(DType::kF32);
};

struct SimdTarget {
  std::string name;
};

struct ExperimentFacts {
  int64_t model, trainer;  // handles
  int64_t num_heads, num_layers, steps, batch, embed_dim, vocab_size, max_positions;
  int64_t parameters;  // elements
  std::span<const std::string_view> jobs, patterns;
};

// Tensors that a ModelLoader needs, as places in the list that it was given.
struct NeededTensors {
  std::vector<int32_t> tensors;
  double bytes = 0;  // of the weights in memory
};

struct TrainedModel {
  int64_t model = 0;  // a handle
  int64_t parameters = 0;
};

// The defaults, and TokenRules as one list: see rules_of().
struct ModelRules : models::GenerationDefaults {
  std::vector<int32_t> numbers;
};

struct SearchProgress {
  bool done = false;
  std::vector<int32_t> ids;
};

struct ChosenToken {
  int64_t token = 0;
};

// models::Lens with ranks as JavaScript has them.
struct LensRows {
  std::vector<int32_t> ids;
  std::vector<float> probabilities;
  std::vector<int32_t> ranks;
  std::vector<float> token_probabilities;
};

struct GpuPlan {
  std::vector<int32_t> words;
};

// Rows of a matrix of a model on a GPU.
struct GpuPiece {
  std::vector<int32_t> units, scales;
  double first_unit = 0, first_scale = 0;
};

struct SweepProgress {
  double done = 0;
  int64_t runs = 0;
};

struct HeldOutSequences {
  std::vector<int32_t> tokens, targets;
};

// Writes the block from its beginning. JavaScript reads addresses and texts before the next call.
class Results {
 public:
  void number(double value) { *next_++ = value; }

 private:
  double* next_ = argument_block;
};

template <class T>
requires std::is_arithmetic_v<T> || std::is_enum_v<T>
void write(Results& to, T value) { to.number(static_cast<double>(value)); }

inline void write(Results& to, const void* data) { to.number(address_of(data)); }

inline void write(Results& to, std::string_view text) {
  write(to, static_cast<const void*>(text.data()));
  write(to, text.size());
}
inline void write(Results& to, const std::string& text) { write(to, std::string_view(text)); }

inline void write(Results& to, std::span<const std::string_view> texts) {
  write(to, texts.size());
  for (const std::string_view text : texts) write(to, text);
}

template <class T>
void write(Results& to, const std::vector<T>& numbers) {
  write(to, static_cast<const void*>(numbers.data()));
  write(to, numbers.size());
}
inline void write(Results& to, const std::vector<int64_t>& numbers) {
  write(to, numbers.size());
  for (const int64_t number : numbers) write(to, number);
}

inline void write(Results& to, const Dims& shape) {
  const int rank = std::min(shape.rank(), Dims::kMaxRank);
  write(to, rank);
  for (int axis = 0; axis < rank; ++axis) write(to, shape[axis]);
}

// T is the type in wire.inc.
template <class T, class Member>
requires std::same_as<T, Member>
void write_member(Results& to, const Member& from) { write(to, from); }

#define WIRE_RESULT(type, javascript, ...) \
  inline void write(const type& result) {  \
    Results to;                            \
    __VA_ARGS__                            \
  }
#define WIRE_WRITE(type, member) write_member<type>(to, result.member);
#define WIRE_FIELD(...) WIRE_EACH(WIRE_WRITE, __VA_ARGS__)
#define WIRE_FIELD_AS(type, member, javascript) WIRE_WRITE(type, member)
#include "wire.inc"

}  // namespace multihead::bindings
