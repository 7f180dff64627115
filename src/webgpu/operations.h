// The operations of a layer as dispatches, and the memory between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "multihead/elementwise.h"
#include "multihead/status.h"
#include "multihead/weights.h"
#include "webgpu/plan.h"

namespace multihead::webgpu {

inline constexpr uint32_t kAbsent = ~uint32_t{0};

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
  uint32_t gain = kAbsent, shift = kAbsent;  // first words in that buffer
};

// Numbers of functions.wgsl; from kTimesX on, f(x) x.
enum class Function : uint32_t { kNone, kRelu, kGelu, kGeluTanh, kSilu, kTanh, kTimesX = 8 };
Function function_of(Activation activation);

// Collects dispatches. Buffers have numbers: operands, then scratch(). finish() gives scratch
// buffers that are not in use at the same time the same memory. No dispatch may have a buffer both
// to read and to write, wherever the bindings begin: that is WebGPU's rule.
class Builder {
 public:
  // The words of the operands. `vectors` is the number of the one with the model's vectors.
  Builder(const Device& device, std::span<const uint64_t> operands, uint32_t vectors);

  uint32_t scratch(uint64_t words);
  // Rows of floats in new memory, of which each begins at a multiple of 4 words.
  Rows rows(uint32_t count, int64_t columns) {
    const uint32_t stride = (static_cast<uint32_t>(columns) + 3) / 4 * 4;
    return {scratch(uint64_t{count} * stride), 0, stride};
  }
  uint64_t words(uint32_t buffer) const { return buffers_[buffer]; }
  // Arrays of the call, for dispatches: their first word in Plan::data, which kData stands for.
  static constexpr uint32_t kData = kAbsent - 1;
  template <class Numbers>
  uint32_t data(const Numbers& numbers) {
    return add_data(numbers.data(), numbers.size());
  }

  // A buffer from a word on, which is a multiple of 64.
  struct Operand {
    uint32_t buffer = 0, first = 0;
  };
  // Appends the plan of a call with these operands.
  void append(const Plan& plan, std::span<const Operand> operands);

  // ---- Operations. x and y are different buffers unless said otherwise. ----

  struct Linear {
    uint32_t bias = kAbsent;  // word in the vectors
    Norm norm = {};           // of x, of kFewRows rows at most
    Function function = Function::kNone;
    bool adds = false;  // y += …
    // Of kFewRows rows at most: y = f(gate) * factor with rows of W from here on; else kAbsent.
    uint32_t gate_row = kAbsent, factor_row = kAbsent;
    float factor = 1.0F, cap = 0.0F;  // of y before f: cap * tanh(factor * y / cap); cap 0: none
  };
  static constexpr uint32_t kFewRows = 8;
  // True if the matrix is one binding, as gates need it.
  bool fits(const MatrixForm& matrix) const;
  // x from a multiple of 4 words on, with a stride that is one.
  void linear(const Rows& x, uint32_t rows, const MatrixForm& matrix, uint32_t buffer,
              const Linear& options, const Rows& y);

  void norm(const Rows& x, uint32_t rows, uint32_t columns, const Norm& norm, const Rows& y);

  // Queries, keys and values as three arrays (tokens, heads, width) in y, from these words on.
  struct Heads {
    uint32_t tokens = 0, sequence = 0;  // of all sequences, and of each
    uint32_t q_heads = 0, k_heads = 0, width = 0;
    // Words in a row of x: of the first head, and from one to the next.
    uint32_t q_first = 0, q_step = 0, k_first = 0, k_step = 0, v_first = 0, v_step = 0;
    uint32_t q_out = 0, k_out = 0, v_out = 0;
    float most = 0.0F;  // of a clamp before all else; 0: none
    Norm q_norm = {}, k_norm = {};
    bool norm_last = false;                                  // after the rotation
    uint32_t pairs = 0, cos = 0, sin = 0, table_stride = 0;  // words in the data; pairs 0: none
    bool neighbours = false;
  };
  void heads(const Rows& x, const Heads& options, uint32_t y);

  struct Pointwise {
    enum class With : uint32_t {
      kNothing,
      kTimes,        // f(x) * z
      kFactors,      // f(x) times an element of z for each of the columns
      kPlusOutput,   // f(x) + y
      kTimesOutput,  // f(x) * y
      kWhereZero,    // f(x) where z is 0, else y
      kPadding,      // 0 from column `each` on, which x need not have
    };

    float scale = 1.0F;  // of x before f
    Function function = Function::kNone;
    With with = With::kNothing;
    Rows z = {};        // of kFactors only buffer and first
    uint32_t each = 1;  // of kFactors: columns of a factor; of kPadding
  };
  // Writes f(x) and what it is combined with to y.
  void pointwise(const Rows& x, uint32_t rows, uint32_t columns, const Pointwise& options,
                 const Rows& y);

  struct Embed {
    uint32_t indices = 0, factors = kAbsent;  // words in the data: one for each row
    bool adds = false;
  };
  void embed(const MatrixForm& table, uint32_t buffer, uint32_t rows, const Embed& options,
             const Rows& y);

  // The plan. Errors: kOption, for a buffer that is longer than a binding.
  Status finish(Plan& plan);

 private:
  uint32_t add_data(const void* words, size_t count);
  Binding whole(uint32_t buffer) const;
  void add(Kernel kernel, std::initializer_list<uint32_t> constants, uint64_t groups,
           std::vector<Binding> bindings, std::vector<uint32_t> parameters, uint32_t z = 1);
  // Calls piece(first row, rows, units, scales) for parts of a matrix that are one binding.
  template <class Piece>
  void in_pieces(const MatrixForm& matrix, uint32_t buffer, const Piece& piece) const;

  Device device_;
  std::vector<uint64_t> buffers_;  // words
  uint32_t operands_, vectors_;
  Plan plan_;  // with numbers of this builder, and no scratch yet
  Status status_;
};

}  // namespace multihead::webgpu
