// The one list of a module's parameters: loading, first values, checking, views, state dicts,
// gradients and optimisers all iterate over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "multihead/state_dict.h"
#include "multihead/status.h"

namespace multihead::nn {

// The role of a parameter. Optimisers treat roles differently: weight decay usually spares biases
// and gains.
enum class ParameterRole : uint8_t {
  kWeight,          // matrix of a linear layer
  kResidualWeight,  // the same, whose product is added to the residual stream
  kOutput,          // the same, whose product are logits
  kBias,            // of a linear layer or a LayerNorm
  kGain,            // factor of a LayerNorm, an RMS norm or QK-norm
  kEmbedding,       // of tokens or positions
  kAppended,        // key or value that the module appends: bias_k, bias_v
  kSink,            // logit per head
};

// The shape of a parameter in a state dict. In memory a matrix is (out, in), a vector (width).
enum class DictLayout : uint8_t {
  kAsInMemory,
  kTransposed,  // (in, out): Conv1D of the GPT-2 code
  kThreeAxes,   // (1, 1, width): bias_k and bias_v
};

// What a member of a team holds of a parameter.
enum class Held : uint8_t {
  kWhole,
  kShare,  // the rows for the outputs that the member computes; for matrices of linear() and
           // embed()
};

struct Parameter {
  std::string name;
  Dims shape;  // in the state dict
  ParameterRole role;
  DictLayout layout;
  int64_t offset;  // of its first element in the memory of all parameters, if that is whole

  // Width of the rows in memory, of a matrix or of what has one row.
  int64_t columns() const {
    return layout == DictLayout::kTransposed ? shape[0] : shape[shape.rank() - 1];
  }
};

// Adjacent rows of a parameter in memory; a vector is a column.
struct ParameterRows {
  size_t parameter;    // its index
  int64_t first, end;  // the rows that are held
  int64_t columns;
  int64_t offset;  // of the first element that is held
  // The rows that the members of a team divide, of which these are a share.
  int64_t divided_first, divided_end;

  int64_t elements() const { return (end - first) * columns; }
  bool is_whole() const { return first == divided_first && end == divided_end; }
};

// A number for new values of parameters, which no other values in this process have or had. Caches
// and activations keep that of the values that they were computed with.
uint64_t new_version();

// How a module gets its parameters.
struct Loading {
  // The team of which this member gets its share; null for all parameters.
  engine::Team* team = nullptr;
  // Reads `count` elements from element `first` on, in the order of the tensor's axes; valid until
  // the next call. Null if it cannot. The tensors of the state dict are contiguous then, and `data`
  // only tells them apart. A null function: their numbers lie in memory.
  const void* (*read)(const ConstAnyTensor& tensor, int64_t first, int64_t count) = nullptr;

  // The module has these values already, in the shares of a team's members: what was computed with
  // them stays valid.
  bool same_values = false;

  static constexpr int64_t kMostRead = int64_t{1} << 16;  // elements of one call of read()

  // To be called before a module takes its new parameters.
  Status agree() const { return team == nullptr ? Status() : team->agree(); }
};

// A block of floats like that of the parameters, for their gradients.
struct GradientBlock {
  const float* parameters;
  float* gradients;

  // That of a view of the parameters; not given if the view is not.
  Tensor of(const ConstTensor& view) const {
    if (!view.given()) return {};
    return {gradients + (view.data - parameters), view.shape, view.strides};
  }
};

// Parameters in the order in which they lie in memory, without gaps, and for each the view (a
// member of a module's weights) that bind() points at it.
class ParameterList {
 public:
  // With a team: of the parts of the parameters that this member holds.
  explicit ParameterList(const engine::Team* team = nullptr) : team_(team) {}

  // Adds a parameter of `shape` in memory. Successive calls with the same name add rows to one
  // tensor of the state dict: in_proj_weight has those of q, k and v.
  void add(std::string name, const Dims& shape, ParameterRole role, ConstTensor& view,
           DictLayout layout = DictLayout::kAsInMemory, Held held = Held::kWhole);

  // Adds one of the shape, role and layout of `parameter`, without a view.
  void add_like(std::string name, const Parameter& parameter);

  // `name`.weight (out, in) and, where `bias` is not null, `name`.bias (out).
  void add_linear(const std::string& name, int64_t out, int64_t in, ParameterRole role,
                  DictLayout layout, ConstTensor& weight, ConstTensor* bias);

  std::span<const Parameter> parameters() const { return parameters_; }
  std::span<const ParameterRows> rows() const { return rows_; }
  // That are held.
  int64_t elements() const { return held_; }
  int64_t elements_of_all() const { return elements_; }

  // Points every view at its part of `memory`: elements() floats.
  void bind(const float* memory) const;

 private:
  struct Target {
    ConstTensor* view;
    Dims shape;
    int64_t offset;
  };
  const engine::Team* team_;
  std::vector<Parameter> parameters_;
  std::vector<ParameterRows> rows_;
  std::vector<Target> targets_;
  int64_t elements_ = 0, held_ = 0;
};

// The parameters of a module and their values, f32, in one block of memory.
class Parameters {
 public:
  // Copies every parameter of `list` and binds its views to the copies. One kShape error names all
  // missing, unexpected and misshaped tensors. Names that `ignored` accepts are not unexpected. An
  // error changes nothing.
  Status load(const ParameterList& list, const StateDict& dict, const Loading& loading = {},
              const std::function<bool(std::string_view)>& ignored = {});
  // Makes parameters of unspecified values instead. Errors: kMemory; nothing is changed.
  Status make(const ParameterList& list);

  bool empty() const { return memory_.data() == nullptr; }
  // Whether this is the share of a member of a team. What reads all parameters needs gather().
  bool is_share() const { return elements_ != elements_of_all_; }
  std::span<const Parameter> list() const { return list_; }
  std::span<const ParameterRows> rows() const { return rows_; }
  // The elements of a parameter of list().
  const float* values(const Parameter& parameter) const {
    return static_cast<const float*>(memory_.data()) + parameter.offset;
  }

  // Of all parameters that are held, one after another.
  float* values() { return static_cast<float*>(memory_.data()); }
  const float* values() const { return static_cast<const float*>(memory_.data()); }
  int64_t elements() const { return elements_; }

  // Views under the names and in the shapes of load().
  StateDict state_dict() const { return state_dict(values()); }
  // The same of another block of elements() floats.
  StateDict state_dict(const float* block) const;

  // All parameters, from the shares of all members, in `buffer`. Errors: kMemory, or a member has
  // left.
  Status gather(engine::Team& team, engine::Buffer& buffer, StateDict& dict) const;

 private:
  std::vector<Parameter> list_;
  std::vector<ParameterRows> rows_;
  int64_t elements_ = 0, elements_of_all_ = 0;
  engine::Buffer memory_;
};

// named() of every module: views of a block like that of the parameters of `own`. Errors: kOption
// if it has none, kShape for a block of another size.
Status read_block(const Parameters* own, std::span<const float> block, StateDict& dict);
Status validate_block(const Parameters* own, size_t floats);

// state_dict() of every module: the parameters of `own`, or kOption if it has none or a share.
Status read_state_dict(const Parameters* own, StateDict& dict);

}  // namespace multihead::nn
