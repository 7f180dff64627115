// A layer of a transformer as a list of operations over named values. forward() plays the list,
// backward() plays it in reverse. A family of models is a list: what is special about its blocks is
// an operation, not a branch of the run-time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "multihead/elementwise.h"
#include "multihead/sites.h"
#include "nn/graph/weights.h"

namespace multihead::nn {

// Index of a value in its graph.
using ValueId = int8_t;
inline constexpr ValueId kNoValue = -1;

// An array (tokens, width) of a layer.
struct Value {
  int64_t width = 0;
  int64_t heads = 1;                      // parts of equal width
  std::optional<models::Site> site = {};  // its name, if people read and change it

  // Columns of another value. The first head begins at `column`, each next one head_step further.
  ValueId whole = kNoValue;
  int64_t column = 0, head_step = 0;
  bool of_source = false;  // has the tokens of LayerCall::source
  // The value that this one takes the place of in memory. The operation that writes it is the last
  // one that reads the replaced value.
  ValueId replaces = kNoValue;

  // Set by plan().
  int slot = -1;      // memory that values share which do not live at the same time
  bool kept = false;  // backward() reads it
  int writer = -1;    // operation
};

struct Operation {
  enum class Kind : uint8_t {
    kNorm,          // out = norm(in)
    kProject,       // out = in W^T + b
    kNormHeads,     // out = RMS norm of each head of `in`
    kRotate,        // out = rotary embedding of `in`
    kAttend,        // out = attention of queries in, keys in2, values in3; once in a list at most,
                    // and once with `cross`
    kScaleHeads,    // out = head_scales * in
    kScale,         // out = number * in
    kScaleColumns,  // out = in, each column times an element of `vector`, which is not trained
    kClamp,         // out = in, at least -number and at most number
    kActivate,      // out = f(in), or f(in) * in2
    kAdd,           // out = in + in2
  };
  // Outputs that the members of a team need not exchange at once, see forward.cc.
  enum class Share : uint8_t { kNone, kHeads, kHidden };

  Kind kind = Kind::kNorm;
  ValueId in = kNoValue, in2 = kNoValue, in3 = kNoValue;
  ValueId out = kNoValue;
  NormParameters LayerParameters::*norm = nullptr;
  Projection LayerParameters::*projection = nullptr;
  Vector LayerParameters::*vector = nullptr;
  Share share = Share::kNone;
  float number = 0.0F;  // of kScale and kClamp
  // True in cross-attention: kProject makes keys or values of the source, unless they are cached,
  // and kAttend reads them.
  bool cross = false;

  // Set by plan(): of kAdd, true if in2's gradient may be the memory of out's gradient.
  bool lends_gradient = false;
};

struct Graph {
  std::vector<Value> values;          // values before those that they make columns of or replace
  std::vector<Operation> operations;  // in the order of computation
  ValueId input = kNoValue, output = kNoValue;  // resid_pre and resid_post
  ValueId source = kNoValue;  // output of the encoder, if there is cross-attention
  NormKind norm;
  Activation activation = Activation::kGelu;
  bool norms_all_heads = false;  // kNormHeads normalizes the heads of a token as one row
  // Widths, set by plan(). With a source, the last slot holds its keys and values.
  std::vector<int64_t> slots;

  ValueId add(const Value& value) {
    values.push_back(value);
    return static_cast<ValueId>(values.size() - 1);
  }
  bool has(models::Site site) const;
  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
};

// Decides where values lie in memory: those that do not live at the same time share it.
void plan(Graph& graph);

}  // namespace multihead::nn
