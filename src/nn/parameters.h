// The list of a module's parameters. Loading, initialization, validation, views, state dicts,
// gradients and optimizers all iterate over it.
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
#include "rules/shared.h"

namespace multihead::nn {

// The role of a parameter. Optimizers treat roles differently: weight decay usually skips biases
// and gains.
enum class ParameterRole : uint8_t {
  kWeight,          // matrix of a linear layer
  kResidualWeight,  // matrix whose product is added to the residual stream
  kOutput,          // matrix whose product is the logits
  kBias,            // bias of a linear layer or a LayerNorm
  kGain,            // factor of a LayerNorm, an RMS norm or QK-norm
  kEmbedding,       // table of tokens or positions
  kAppended,        // key or value that the module appends: bias_k, bias_v
  kSink,            // logit per head
};

// The shape of a parameter in a state dict. In memory a matrix is (out, in), a vector (width).
enum class DictLayout : uint8_t {
  kAsInMemory,
  kTransposed,  // (in, out): Conv1D of the GPT-2 code
  kThreeAxes,   // (1, 1, width): bias_k and bias_v
};

// The part of a parameter that a team member holds.
enum class Held : uint8_t {
  kWhole,
  kShare,  // rows of the outputs that the member computes; linear() and embed() only
};

struct Parameter {
  std::string name;
  Dims shape;  // shape in the state dict
  ParameterRole role;
  DictLayout layout;
  int64_t offset;  // first element, in a block that holds all parameters whole

  // Width of a row in memory. A vector in a state dict counts as one row.
  int64_t columns() const {
    return layout == DictLayout::kTransposed ? shape[0] : shape[shape.rank() - 1];
  }
};

// Adjacent rows of a parameter in memory; a vector is a column.
struct ParameterRows {
  size_t parameter;    // index of the parameter
  int64_t first, end;  // rows that are held
  int64_t columns;
  int64_t offset;  // offset of the first held element
  // Rows that the team divides among its members; the held rows are this member's share.
  int64_t divided_first, divided_end;

  int64_t elements() const { return (end - first) * columns; }
  bool is_whole() const { return first == divided_first && end == divided_end; }
};

// Returns a version number for new parameter values, unique in this process. Caches and activations
// store the version of the parameters that they were computed with.
uint64_t new_version();

// Options for loading parameters.
struct Loading {
  // Team in which this member gets its share of the parameters; null to load all parameters.
  engine::Team* team = nullptr;
  // Reads `count` elements, starting with element `first` in the order of the tensor's axes. The
  // result is valid until the next call, and null on failure. With this function, tensors of the
  // state dict are contiguous and their `data` serves only as an identifier. If the function is
  // null, `data` points at the numbers.
  const void* (*read)(const ConstAnyTensor& tensor, int64_t first, int64_t count) = nullptr;

  // True if the module already has these values, divided among a team's members: caches and
  // activations computed with them stay valid.
  bool same_values = false;

  static constexpr int64_t kMostRead = int64_t{1} << 16;  // most elements per call of read()

  // Call this before a module takes its new parameters.
  Status agree() const { return team == nullptr ? Status() : team->agree(); }
};

// A block of gradients with the layout of the parameters' block.
struct GradientBlock {
  const float* parameters;
  float* gradients;

  // Returns the gradient of a view of the parameters; not given if the view is not given.
  Tensor of(const ConstTensor& view) const {
    if (!view.given()) return {};
    return {gradients + (view.data - parameters), view.shape, view.strides};
  }
};

// Parameters in the order of memory, without gaps. For each parameter, the list stores the view (a
// member of a module's weights) that bind() sets.
class ParameterList {
 public:
  // With a team: lists only the parts of the parameters that this member holds.
  explicit ParameterList(const engine::Team* team = nullptr) : team_(team) {}

  // Adds a parameter of `shape` in memory. Successive calls with one name add rows to one tensor of
  // the state dict: in_proj_weight has the rows of q, k and v.
  MULTIHEAD_SHARED void add(std::string name, const Dims& shape, ParameterRole role,
                            ConstTensor& view, DictLayout layout = DictLayout::kAsInMemory,
                            Held held = Held::kWhole);

  // Adds a parameter with the shape, role and layout of `parameter`, without a view.
  void add_like(std::string name, const Parameter& parameter);

  // Adds `name`.weight (out, in) and, if `bias` is not null, `name`.bias (out).
  void add_linear(const std::string& name, int64_t out, int64_t in, ParameterRole role,
                  DictLayout layout, ConstTensor& weight, ConstTensor* bias);

  std::span<const Parameter> parameters() const { return parameters_; }
  std::span<const ParameterRows> rows() const { return rows_; }
  // Number of held elements.
  int64_t elements() const { return held_; }
  int64_t elements_of_all() const { return elements_; }

  // Points every view at its part of `memory`, a block of elements() floats.
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
  // missing, unexpected and misshaped tensors. Skips extra names for which `ignored` returns true.
  // On error nothing changes.
  Status load(const ParameterList& list, const StateDict& dict, const Loading& loading = {},
              const std::function<bool(std::string_view)>& ignored = {});
  // Allocates parameters with unspecified values. Errors: kMemory; nothing is changed.
  MULTIHEAD_SHARED Status make(const ParameterList& list);

  bool empty() const { return memory_.data() == nullptr; }
  // True if this is a team member's share. Code that reads all parameters must call gather().
  bool is_share() const { return elements_ != elements_of_all_; }
  std::span<const Parameter> list() const { return list_; }
  std::span<const ParameterRows> rows() const { return rows_; }
  // Values of one parameter of list().
  const float* values(const Parameter& parameter) const {
    return static_cast<const float*>(memory_.data()) + parameter.offset;
  }

  // All held parameters, contiguous.
  float* values() { return static_cast<float*>(memory_.data()); }
  const float* values() const { return static_cast<const float*>(memory_.data()); }
  int64_t elements() const { return elements_; }

  // Returns views with the names and shapes of load().
  StateDict state_dict() const { return state_dict(values()); }
  // Returns views of another block of elements() floats, with the same names and shapes.
  StateDict state_dict(const float* block) const;

  // Collects the parameters of all members in `buffer`. Errors: kMemory, or a member has left.
  Status gather(engine::Team& team, engine::Buffer& buffer, StateDict& dict) const;

 private:
  std::vector<Parameter> list_;
  std::vector<ParameterRows> rows_;
  int64_t elements_ = 0, elements_of_all_ = 0;
  engine::Buffer memory_;
};

// Returns null if the module does not own its parameters.
const Parameters* parameters_of(const ModuleBase& module);

// Checks that a block of this many floats has the layout of the module's parameters. Errors:
// kOption if the module owns no parameters or only a share, kShape.
Status validate_block(const ModuleBase& module, size_t floats);

}  // namespace multihead::nn

struct multihead::ModuleBase::Memory {
  nn::Parameters parameters;             // empty if the module uses the caller's weights
  engine::Buffer absorbed_keys;          // latent attention only; see nn::make_absorbed_keys()
  uint64_t version = nn::new_version();  // version of the weights

  // Null if the module has no weights.
  static const Memory* of(const ModuleBase& module) { return module.memory_.get(); }
};
