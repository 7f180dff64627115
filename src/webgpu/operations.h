// The operations of layers.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/elementwise.h"
#include "multihead/status.h"
#include "multihead/weights.h"
#include "webgpu/planner.h"

namespace multihead::webgpu {

// A weight matrix as it lies in a buffer: rows of whole units of 16 bytes; then, for int8 and int4
// from a multiple of 64 words on, rows of f16 scales, two in a word.
struct MatrixForm {
  WeightType type = WeightType::kF32;
  uint32_t rows = 0, columns = 0;

  uint32_t units() const;        // of a row
  uint32_t scale_words() const;  // of a row
  uint64_t first_scale() const;  // in words
  uint64_t words() const { return first_scale() + uint64_t{rows} * scale_words(); }
};

// Copies `count` rows of a matrix from `first` on to the form of a buffer: the words of their units
// and, for int8 and int4, of their scales.
void pack_rows(const WeightMatrix& matrix, int64_t first, int64_t count, uint32_t* units,
               uint32_t* scales);

// Rows of floats in a buffer of a Builder, in words.
struct Rows {
  uint32_t buffer = 0, first = 0, stride = 0;
};

// Vectors of a model lie in one buffer, each from a multiple of 4 words on.
struct Norm {
  enum class Kind : uint8_t { kNone, kRms, kLayer };

  Kind kind = Kind::kNone;
  float eps = 0.0F;
  uint32_t gain = kNone, shift = kNone;  // first words in that buffer
};

// Numbers of functions.wgsl; from kTimesX on, f(x) x.
enum class Function : uint32_t { kNone, kRelu, kGelu, kGeluTanh, kSilu, kTanh, kTimesX = 8 };
Function function_of(Activation activation);
inline Function times_x(Function f) {
  return static_cast<Function>(static_cast<uint32_t>(f) + static_cast<uint32_t>(Function::kTimesX));
}

// The operations of a layer as dispatches.
class Builder : public Planner {
 public:
  // The words of the operands. `vectors` is the number of the one with the model's vectors.
  Builder(const Device& device, std::span<const uint64_t> operands, uint32_t vectors)
      : Planner(device, "device", operands), vectors_(vectors) {}

  // Rows of floats in new memory, of which each begins at a multiple of 4 words.
  Rows new_rows(uint32_t rows, int64_t columns) {
    const uint32_t stride = (word(columns) + 3) / 4 * 4;
    return {scratch(uint64_t{rows} * stride), 0, stride};
  }

  // ---- Operations. x and y are different buffers unless said otherwise. ----

  struct Linear {
    uint32_t bias = kNone;  // word in the vectors
    Norm norm = {};         // of x, of kFewRows rows at most
    Function function = Function::kNone;
    bool adds = false;  // y += …
    // Of kFewRows rows at most: y = f(gate) * factor with rows of W from here on; else kNone.
    uint32_t gate_row = kNone, factor_row = kNone;
    float factor = 1.0F, cap = 0.0F;  // of y before f: cap * tanh(factor * y / cap); cap 0: none
  };
  static constexpr uint32_t kFewRows = 8;
  // True if the matrix is one binding, as gates need it.
  bool fits(const MatrixForm& matrix) const;
  // x from a multiple of 4 words on, with a stride that is one.
  void linear(const Rows& x, uint32_t rows, const MatrixForm& matrix, uint32_t buffer,
              const Linear& options, const Rows& y);

  void norm(const Rows& x, uint32_t rows, uint32_t columns, const Norm& norm, const Rows& y);

  // Queries, keys and values as three arrays (tokens, heads, width) in y. The block has its places
  // in a row of x; the stride is x's.
  void heads(const Rows& x, HeadsBlock block, uint32_t y);

  struct Pointwise {
    enum class With : uint32_t {
      kNothing,
      kTimes,        // f(x) * z
      kFactors,      // f(x) times an element of z for each of the columns
      kPlusOutput,   // f(x) + y
      kTimesOutput,  // f(x) * y
      kWhereZero,    // f(x) where z is 0, else y
      kPadding,      // 0 from column `each` on, which x need not have
      kHidden,       // 0 where x is -infinity, else y
    };

    float scale = 1.0F;  // of x before f
    Function function = Function::kNone;
    With with = With::kNothing;
    Rows z = {};                // of kFactors only buffer and first
    uint32_t each = 1;          // of kFactors: columns of a factor; of kPadding
    bool keeps_hidden = false;  // leaves elements of y that are -infinity
  };
  // Writes f(x) and what it is combined with to y.
  void pointwise(const Rows& x, uint32_t rows, uint32_t columns, const Pointwise& options,
                 const Rows& y);

  // y (rows, heads * width) of weights (batch, heads, tokens, keys) and values v, whose heads are
  // shared by groups.
  void weighted(const Rows& weights, const GpuRows& v, WeightedBlock block, const Rows& y);

  struct Embed {
    uint32_t indices = 0, factors = kNone;  // words in the data: one for each row
    bool adds = false;
  };
  void embed(const MatrixForm& table, uint32_t buffer, uint32_t rows, const Embed& options,
             const Rows& y);

 private:
  // Calls piece(first row, rows, units, scales) for parts of a matrix that are one binding.
  template <class Piece>
  void in_pieces(const MatrixForm& matrix, uint32_t buffer, const Piece& piece) const;

  uint32_t vectors_;
};

}  // namespace multihead::webgpu
