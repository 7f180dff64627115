// From the tensors of files to the parameters of a model.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/gemm/weight_blocks.h"
#include "cpu/kernels.h"
#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "models/architecture.h"
#include "models/config_reader.h"
#include "models/gguf_settings.h"
#include "models/grouped_weights.h"
#include "models/image_positions.h"
#include "models/layer_graph.h"
#include "models/loader.h"
#include "models/parameters.h"
#include "models/sentence.h"
#include "models/sinusoids.h"
#include "models/stored_blocks.h"
#include "multihead/models.h"
#include "multihead/weights.h"
#include "rules/element.h"
#include "rules/integers.h"

namespace multihead::models {
namespace {

#if defined(MULTIHEAD_ADDRESS_SANITIZER)
constexpr int64_t kBlock = 0;  // each array by itself: the sanitizer sees where it ends
#else
constexpr int64_t kBlock = engine::kLargePages;
#endif

// Tensors of GGUF files that a family may not have: q, k and v as one matrix, and a gate. The
// angles of rotations, which old files have, follow from the settings.
constexpr const char *kFusedQkv = "blk.#.attn_qkv", *kGate = "blk.#.ffn_gate";
constexpr const char *kOtherParts[] = {"cls.", "v.", "mm.", "a."}, *kRotations = ".attn_rot_embd";

// The name of a tensor without what wrappers of PyTorch put in front: DataParallel, torch.compile.
std::string_view without_wrappers(std::string_view name) {
  for (size_t before = 0; before != name.size();) {
    before = name.size();
    for (const std::string_view wrapper : {"module.", "_orig_mod."}) {
      if (name.starts_with(wrapper)) name.remove_prefix(wrapper.size());
    }
  }
  return name;
}

// Bytes of a number whose bytes are in the order of the file; 1 for blocks, which are read by
// bytes. Rows of a WeightMatrix have scales of two bytes.
size_t number_bytes(Stored type) {
  if (type >= Stored::kInt8) return sizeof(Float16);
  return has_stored_blocks(type) ? 1 : form_of(type).bytes;
}

DType dtype_of(Stored type) {
  return type == Stored::kF16 ? DType::kF16 : type == Stored::kBF16 ? DType::kBF16 : DType::kF32;
}

// True if a matrix of `type` has the bytes of the file.
bool same_bytes(Stored stored, WeightType type) {
  const bool changes = stored == Stored::kF64 || stored == Stored::kGroups ||
                       (has_stored_blocks(stored) && stored < Stored::kInt8);
  return !changes && same_type(stored) == type;
}

// A tensor of the files and the place in memory that it fills.
struct Part {
  size_t tensor = 0;
  Stored stored = Stored::kF32;
  int64_t rows = 0, columns = 0;   // as stored; a vector is one column
  bool transposed = false;         // the target is (columns, rows)
  bool plus_one = false;           // the target holds 1 + each element
  bool once = false;               // read for a source and not for each token
  bool stands_transposed = false;  // other files of the family have the tensor transposed
  bool is_setting = false;         // no parameter: a vector of State::rope_factors
  int64_t pairs = 0;               // head_dim if neighbouring rows are rotated together; else 0
  int64_t paired_rows = 0;         // the first rows, for which that holds
  WeightMatrix* matrix = nullptr;  // the target, or
  Vector* vector = nullptr;
  int64_t first = 0;  // row of the matrix for row 0 of the part, or element of the vector
  int64_t kept = 0, kept_end = 0;  // rows of the target that are kept, if it is a matrix
  int64_t done = 0;                // stored rows so far
  engine::Buffer begun;            // bytes of the next row
  size_t begun_bytes = 0;
  engine::Buffer turned;  // floats of a transposed matrix, until it is complete

  int64_t elements() const { return rows * columns; }
  // True if it is stored as rows of a WeightMatrix of blocks, which are never transposed.
  bool is_rows() const { return is_rows_of_matrix(stored); }
  size_t row_bytes() const {
    if (is_rows()) return static_cast<size_t>(weight_row_bytes(same_type(stored), columns));
    const StoredForm& form = form_of(stored);
    return static_cast<size_t>((columns + form.numbers - 1) / form.numbers) * form.bytes;
  }
  // True if the target has the bytes of the file.
  bool keeps_bytes() const {
    return matrix != nullptr && !transposed && same_bytes(stored, matrix->type);
  }
  // True if the bytes of the file can be the matrix.
  bool can_be_matrix() const {
    return keeps_bytes() && pairs == 0 && first == 0 && kept == 0 && kept_end == rows &&
           matrix->rows == rows;
  }
  int64_t memory_bytes() const {
    if (matrix == nullptr) return elements() * static_cast<int64_t>(sizeof(float));
    return weight_bytes(matrix->type, kept_end - kept, transposed ? rows : columns);
  }
};

}  // namespace

struct ModelLoader::State {
  Config config;
  std::vector<StoredTensor> tensors;
  std::vector<GroupedWeights> groups;  // of the last tensors
  std::map<std::string, size_t, std::less<>> by_name;
  OpenOptions options;
  std::shared_ptr<Model::Internals> model = std::make_shared<Model::Internals>();
  Model::Internals* stack = model.get();  // whose tensors are looked for: the model or its encoder
  std::vector<Part> parts;
  std::vector<size_t> needed;                     // tensors of `parts`, or of their groups
  std::vector<size_t> part_of;                    // by tensor; parts.size() if it is not needed
  std::map<const WeightMatrix*, std::byte*> own;  // memory of matrices that are not views
  std::span<std::byte> unused;                    // the rest of the last block of model->memory
  Context context;
  bool in_team = false;
  bool separates = false;  // each matrix has memory of its own:
  std::map<const WeightMatrix*, engine::Buffer> separate;
  int64_t given_bytes = 0, all_bytes = 0, viewed_bytes = 0;
  int64_t computed_bytes = 0;  // of tables of positions that are in no file
  std::string missing, wrong;
  engine::Buffer floats, narrowed_row;  // rows in f32
  bool in_heads = false;                // names of heads have no prefix
  Vector rope_factors[std::size(kRopeFactors)];
  std::vector<Vector*> unit_weights;    // of norms without parameters
  std::map<const char*, bool> stacked;  // of the first of the names: the answer of stacks()

  Architecture& plan() { return stack->architecture; }
  // Of the stack that embeds.
  Sentence& sentence() { return (model->encoder != nullptr ? *model->encoder : *model).sentence; }

  // ---- Finding tensors. ----

  // The index of the first of the names below each prefix that the files have.
  std::optional<size_t> find(const char* names, int64_t layer, std::string_view suffix) const {
    if (names == nullptr) return std::nullopt;
    for (const std::string& name : spelled(names, layer, suffix)) {
      const auto found = by_name.find(name);
      if (found != by_name.end()) return found->second;
    }
    return std::nullopt;
  }

  std::vector<std::string> spelled(const char* names, int64_t layer,
                                   std::string_view suffix) const {
    std::vector<std::string> result;
    std::string_view rest_of_names = names;
    while (!rest_of_names.empty()) {
      const size_t end = rest_of_names.find('|');
      std::string name(rest_of_names.substr(0, end));
      rest_of_names = end == std::string_view::npos ? "" : rest_of_names.substr(end + 1);
      const size_t number = name.find('#');
      if (number != std::string::npos) name.replace(number, 1, std::to_string(layer));
      const Architecture& a = stack->architecture;
      for (const std::string_view prefix :
           a.text_part ? text_part_prefixes() : a.family->prefixes) {
        result.push_back(std::string(prefix) + name + std::string(suffix));
        // Older names of LayerNorm's parameters.
        if (suffix == ".weight") result.push_back(std::string(prefix) + name + ".gamma");
        if (suffix == ".bias") result.push_back(std::string(prefix) + name + ".beta");
      }
    }
    return result;
  }

  bool has(const char* names, std::string_view suffix) const {
    return find(names, 0, suffix).has_value();
  }

  static void append(std::string& list, const std::string& text) {
    // A wrong configuration can be wrong about every tensor.
    constexpr size_t kMostText = 600;
    if (list.size() > kMostText) return;
    list += (list.empty() ? "" : ", ") + engine::printable(text, 120);
  }

  static std::optional<Stored> type_of(const StoredTensor& stored, int64_t rows, int64_t columns) {
    const std::optional<Stored> quantized = stored_rows(stored, rows, columns);
    return quantized ? quantized : stored_type(stored.type);
  }

  // Adds a part of rows * columns elements; null if its tensor is missing or has another shape.
  Part* add(const char* names, int64_t layer, std::string_view suffix, int64_t rows,
            int64_t columns, bool transposed) {
    const std::optional<size_t> tensor = find(names, layer, suffix);
    if (!tensor) {
      const std::string_view first =
          std::string_view(names).substr(0, std::string_view(names).find('|'));
      append(missing, in_heads ? std::string(first) + std::string(suffix)
                               : spelled(names, layer, suffix).front());
      return nullptr;
    }
    const StoredTensor& stored = tensors[*tensor];
    const std::optional<Stored> type = type_of(stored, rows, columns);
    const bool quantized = type && *type >= Stored::kInt8;
    const bool stands_transposed = transposed;
    transposed = transposed && !quantized;
    const Dims shape = columns == 1 && stored.shape.rank() < 2 ? Dims{rows}
                       : transposed                            ? Dims{columns, rows}
                                                               : Dims{rows, columns};
    // Convolutions and embeddings of images have more axes, with the elements in the same order.
    const bool has_elements = stored.shape.rank() > 2 || (stored.shape.rank() == 0 && rows == 1);
    const bool fits = quantized || (has_elements ? stored.shape.elements() == rows * columns
                                                 : stored.shape == shape);
    // Only rows of matrices can be blocks.
    const bool whole = !type || quantized || form_of(*type).numbers == 1 ||
                       (columns > 1 && columns % form_of(*type).numbers == 0 && !transposed);
    if (!type && plan().from_gguf) {
      append(wrong, stored.name + ": " + stored.type +
                        ", where F32, F16, BF16, Q4_0, Q4_1, Q5_0, " +
                        "Q5_1, Q8_0, Q4_K, Q5_K and Q6_K are read");
      return nullptr;
    }
    if (!type || !fits || !whole) {
      append(wrong, stored.name + ": expected " + shape.to_string() + " of F32, F16 or BF16, got " +
                        stored.shape.to_string() + " of " + stored.type);
      return nullptr;
    }
    if (part_of[*tensor] < parts.size()) {
      append(wrong, stored.name + ": needed twice");
      return nullptr;
    }
    Part part;
    part.tensor = *tensor;
    part.stored = *type;
    part.rows = transposed ? columns : rows;
    part.columns = transposed ? rows : columns;
    part.transposed = transposed;
    part.stands_transposed = stands_transposed;
    part.kept_end = rows;
    part_of[*tensor] = parts.size();
    if (*type == Stored::kGroups) {
      for (const size_t each : groups[*tensor - (tensors.size() - groups.size())].tensors())
        if (each != GroupedWeights::kNone) needed.push_back(each);
    } else {
      needed.push_back(*tensor);
    }
    const bool is_fused = names == kFusedQkv;
    if (plan().neighbour_pairs &&
        (is_fused || names == plan().family->names.q || names == plan().family->names.k)) {
      part.pairs = plan().head_dim;
      part.paired_rows = is_fused ? plan().q_width() + plan().kv_width() : rows;
    }
    all_bytes += part.rows * static_cast<int64_t>(part.row_bytes());
    stack->info.parameters += part.elements();
    return &parts.emplace_back(std::move(part));
  }

  // Vectors, in f32.
  void add_vector(const char* names, int64_t layer, std::string_view suffix, int64_t size,
                  Vector& to, int64_t first = 0, bool plus_one = false) {
    fill(add(names, layer, suffix, size, 1, false), to, first, plus_one);
  }

  static void fill(Part* part, Vector& to, int64_t first = 0, bool plus_one = false) {
    if (part == nullptr) return;
    part->vector = &to;
    part->rows = part->elements();
    part->columns = 1;
    part->first = first;
    part->plus_one = plus_one;
    to.size = std::max(to.size, first + part->rows);
  }

  void add_norm(const char* names, int64_t layer, int64_t size, NormParameters& to,
                bool layer_norm) {
    if (names == nullptr) return;
    if (!plan().family->norm_parameters) {
      to.weight.size = size;
      unit_weights.push_back(&to.weight);
      return;
    }
    add_vector(names, layer, ".weight", size, to.weight, 0, plan().family->norm_plus_one);
    if (layer_norm && plan().norm_bias) add_vector(names, layer, ".bias", size, to.bias);
  }

  // Positions of images of another size than the images of the training.
  Status resize_positions() {
    Parameters& p = model->parameters;
    const Architecture& a = plan();
    if (p.trained_position.rows == 0) return {};
    const int64_t width = a.width, from = a.trained_size / a.patch_size;
    const int64_t to = a.image_size / a.patch_size;
    Vector all{.size = a.positions * width};
    MULTIHEAD_TRY(allocate(all));
    std::vector<float> trained(static_cast<size_t>((from * from + 1) * width));
    MULTIHEAD_TRY(read_rows(p.trained_position, 0, from * from + 1, trained.data()));
    std::copy_n(trained.data(), width, all.data);
    const auto taps = bicubic_taps(from, to, a.family->resizes_with_antialias);
    for (int64_t place = 0; place < to * to; ++place) {
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (const auto& [y, of_row] : taps[static_cast<size_t>(place / to)]) {
          for (const auto& [x, of_column] : taps[static_cast<size_t>(place % to)]) {
            const auto row = static_cast<size_t>(1 + y * from + x) * static_cast<size_t>(width);
            sum += of_row * of_column * trained[row + static_cast<size_t>(c)];
          }
        }
        all.data[(1 + place) * width + c] = static_cast<float>(sum);
      }
    }
    p.position = {all.data, WeightType::kF32, a.positions, width};
    return {};
  }

  // Weights of norms that have none are ones, which are no tensor of the model.
  Status fill_unit_weights() {
    for (Vector* const weight : unit_weights) {
      MULTIHEAD_TRY(allocate(*weight));
      std::fill_n(weight->data, weight->size, 1.0F);
    }
    return {};
  }

  // A matrix with its own memory or as a view.
  void add_matrix(const char* names, int64_t layer, std::string_view suffix, int64_t rows,
                  int64_t columns, WeightMatrix& to, bool transposed = false,
                  bool as_stored = false) {
    Part* const part = add(names, layer, suffix, rows, columns, transposed);
    if (part == nullptr) return;
    part->matrix = &to;
    to.type = as_stored ? same_type(part->stored) : memory_type(part->stored, names);
    // Single rows of these tables are added to a token: add_row() reads no blocks.
    if (as_stored && to.type > WeightType::kBF16) to.type = WeightType::kF32;
    to.rows = rows;
    to.columns = columns;
  }

  void add_projection(const char* names, int64_t layer, int64_t rows, int64_t columns, bool bias,
                      Projection& to, bool transposed = false) {
    if (names == nullptr) return;
    add_matrix(names, layer, ".weight", rows, columns, to.weight, transposed);
    if (bias) add_vector(names, layer, ".bias", rows, to.bias);
  }

  WeightType memory_type(Stored stored, const char* names = nullptr) const {
    const Names& n = stack->architecture.family->names;
    const bool is_table =
        names != nullptr && (names == n.embedding || names == n.own_embedding || names == n.output);
    if (is_table && options.embedding_weights) return *options.embedding_weights;
    return options.weights.value_or(same_type(stored));
  }

  struct Piece {
    const char* names;
    int64_t rows;
    Projection* alone;
  };

  // True if the matrices become one. They do not if one of them stays where the file has it. In a
  // team each member has its share of every matrix instead, so that it computes all of its own
  // heads, and fewer outputs are exchanged: two workers of WebAssembly decode 4 % faster in f32,
  // 1 % in bf16. But in int8 and int4 one matrix is 11 and 5 % faster, because every product rounds
  // its input first. All layers have one graph: none stacks what another cannot.
  bool stacks(std::span<const Piece> pieces, int64_t layer, int64_t columns) {
    bool& result = stacked[pieces.front().names];
    if (layer > 0) return result;
    result = true;
    for (size_t at = 0; at < stack->parameters.layers.size(); ++at)
      result = result && layer_stacks(pieces, static_cast<int64_t>(at), columns);
    return result;
  }

  bool layer_stacks(std::span<const Piece> pieces, int64_t layer, int64_t columns) const {
    const auto stored = [&](const Piece& piece) {
      const std::optional<size_t> tensor = find(piece.names, layer, ".weight");
      return tensor ? type_of(tensors[*tensor], piece.rows, columns) : std::nullopt;
    };
    const std::optional<Stored> first = stored(pieces.front());
    // Relative positions are projected to queries and keys, too.
    const bool apart = model->architecture.relative_span > 0;
    if (!first || apart || (in_team && !cpu::has_blocks(memory_type(*first)))) return false;
    return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      const std::optional<Stored> type = stored(piece);
      if (!type || memory_type(*type) != memory_type(*first)) return false;
      return !options.keep_mapped || !same_bytes(*type, memory_type(*type));
    });
  }

  // Matrices that read the same input: one below the other where that can be, so that one product
  // computes them; else each by itself.
  void add_stacked(std::span<const Piece> pieces, int64_t layer, int64_t columns, bool bias,
                   Projection& stacked) {
    if (!stacks(pieces, layer, columns)) {
      for (const Piece& piece : pieces) {
        add_projection(piece.names, layer, piece.rows, columns, bias, *piece.alone);
      }
      return;
    }
    int64_t first = 0;
    for (const Piece& piece : pieces) {
      Part* const part = add(piece.names, layer, ".weight", piece.rows, columns, false);
      if (part == nullptr) return;
      part->matrix = &stacked.weight;
      part->first = first;
      stacked.weight.type = memory_type(part->stored);
      stacked.weight.columns = columns;
      stacked.weight.rows = first + piece.rows;
      if (bias) add_vector(piece.names, layer, ".bias", piece.rows, stacked.bias, first);
      first += piece.rows;
    }
  }

  // ---- The parameters of a model. ----

  void add_layer(int64_t index) {
    const Architecture& a = plan();
    const Names& n = a.family->names;
    const bool layer_norm = !a.family->rms_norm;
    LayerParameters& layer = stack->parameters.layers[static_cast<size_t>(index)];
    const auto norm = [&](const char* names, int64_t size, NormParameters& to) {
      add_norm(names, index, size, to, layer_norm);
    };
    if (index > 0 || a.family->norms_first_attention) {
      norm(n.attention_norm, a.width, layer.attention_norm);
    }
    norm(n.attention_out_norm, a.width, layer.attention_out_norm);
    norm(n.attention_sum_norm, a.width, layer.attention_sum_norm);
    norm(n.cross_norm, a.width, layer.cross_norm);
    norm(n.cross_sum_norm, a.width, layer.cross_sum_norm);
    if (!a.one_norm) norm(n.mlp_norm, a.width, layer.mlp_norm);
    norm(n.mlp_out_norm, a.width, layer.mlp_out_norm);
    norm(n.mlp_sum_norm, a.width, layer.mlp_sum_norm);
    if (n.attention_scale != nullptr) {
      add_vector(n.attention_scale, index, "", a.width, layer.attention_scale);
      add_vector(n.mlp_scale, index, "", a.width, layer.mlp_scale);
    }
    const bool whole = a.family->norm_whole_qk;
    norm(n.q_norm, whole ? a.q_width() : a.head_dim, layer.q_norm);
    norm(n.k_norm, whole ? a.kv_width() : a.head_dim, layer.k_norm);

    if (n.layer_relative_bias != nullptr) {
      fill(add(n.layer_relative_bias, index, ".weight", a.buckets, a.heads, false),
           layer.relative_bias);
    }
    const bool transposed = a.transposed;
    // GGUF files may have q, k and v in one matrix, and gate and up in two, whatever the family
    // has.
    const bool is_fused = a.from_gguf && find(kFusedQkv, index, ".weight");
    if (n.qkv != nullptr || is_fused) {
      add_projection(is_fused ? kFusedQkv : n.qkv, index, a.qkv_width(), a.width, a.qkv_bias,
                     layer.qkv, transposed);
    } else {
      const Piece pieces[] = {{n.q, a.q_width(), &layer.q},
                              {n.k, a.kv_width(), &layer.k},
                              {n.v, a.kv_width(), &layer.v}};
      add_stacked(pieces, index, a.width, a.qkv_bias, layer.qkv);
    }
    add_projection(n.o, index, a.width, a.q_width(), a.output_bias, layer.o, transposed);
    if (n.cross_q != nullptr) {
      add_projection(n.cross_q, index, a.q_width(), a.width, a.qkv_bias, layer.cross_q);
      const Piece pieces[] = {{n.cross_k, a.kv_width(), &layer.cross_k},
                              {n.cross_v, a.kv_width(), &layer.cross_v}};
      const size_t first = parts.size();
      add_stacked(pieces, index, a.width, a.qkv_bias, layer.cross_kv);
      for (size_t at = first; at < parts.size(); ++at) parts[at].once = true;
      add_projection(n.cross_o, index, a.width, a.q_width(), a.output_bias, layer.cross_o);
    }
    if (n.gate_up != nullptr && a.from_gguf && find(kGate, index, ".weight")) {
      const Piece pieces[] = {{kGate, a.mlp, &layer.gate}, {n.gate_up, a.mlp, &layer.up}};
      add_stacked(pieces, index, a.width, a.mlp_bias, layer.gate_up);
    } else if (n.gate_up != nullptr && a.gated) {
      add_projection(n.gate_up, index, 2 * a.mlp, a.width, a.mlp_bias, layer.gate_up, transposed);
    } else if (a.gated) {
      const Piece pieces[] = {{n.gate, a.mlp, &layer.gate}, {n.up, a.mlp, &layer.up}};
      add_stacked(pieces, index, a.width, a.mlp_bias, layer.gate_up);
    } else {
      add_projection(n.up, index, a.mlp, a.width, a.mlp_bias, layer.up, transposed);
    }
    const bool down_bias = a.mlp_bias || a.family->down_bias;
    add_projection(n.down, index, a.width, a.mlp, down_bias, layer.down, transposed);
  }

  const char* embedding_of(const Model::Internals& of) const {
    const Names& n = of.architecture.family->names;
    const bool own = !of.architecture.tied && has(n.own_embedding, ".weight");
    return own ? n.own_embedding : n.embedding;
  }

  // True if this is the encoder, and its embedding is the decoder's.
  bool shares_embedding() const {
    const auto tensor_of = [&](const Model::Internals& of) {
      return find(embedding_of(of), 0, ".weight");
    };
    return stack != model.get() &&
           stack->architecture.vocabulary == model->architecture.vocabulary &&
           tensor_of(*model).has_value() && tensor_of(*stack) == tensor_of(*model);
  }

  void add_embeddings() {
    const Architecture& a = plan();
    const Names& n = a.family->names;
    Parameters& p = stack->parameters;
    const int64_t width = a.embedding_width;
    if (n.embedding != nullptr && !shares_embedding()) {
      add_matrix(embedding_of(*stack), 0, ".weight", a.vocabulary, width, p.embedding);
    }
    if (n.patch != nullptr) {
      add_projection(n.patch, 0, a.width, a.channels * a.patch_size * a.patch_size,
                     a.family->patch_bias, p.patch);
      if (n.first_token != nullptr) add_vector(n.first_token, 0, "", a.width, p.first_token);
      if (n.distillation != nullptr) {
        add_vector(n.distillation, 0, "", a.width, p.first_token, a.width);
      } else if (a.first_tokens > 1) {
        add_vector(n.registers, 0, "", (a.first_tokens - 1) * a.width, p.first_token, a.width);
      }
    }
    // A token reads one row of these tables, so they stay as they are stored, unless in blocks.
    const bool stored = a.family->sinusoids == Sinusoids::kNone || has(n.position, ".weight");
    if (n.position != nullptr && !stored) {
      p.position = {nullptr, WeightType::kF32, a.positions, width};
      stack->info.weight_bytes += p.position.bytes();
      computed_bytes += p.position.bytes();
    } else if (n.position != nullptr) {
      const bool is_parameter = n.patch != nullptr && !has(n.position, ".weight");
      const int64_t side = a.patch_size == 0 ? 0 : a.trained_size / a.patch_size;
      const bool other_size = a.trained_size != a.image_size;
      add_matrix(n.position, 0, is_parameter ? "" : ".weight",
                 other_size ? side * side + 1 : a.positions, width,
                 other_size ? p.trained_position : p.position, false, true);
    }
    if (a.token_types > 0) {
      add_matrix(n.token_type, 0, ".weight", a.token_types, width, p.token_type, false, true);
    }
    add_norm(n.embedding_norm, 0, width, p.embedding_norm, true);
    if (a.family->shares_layers || width != a.width) {
      add_projection(n.embedding_projection, 0, a.width, width, true, p.embedding_projection);
    }
    if (n.relative_embedding != nullptr) {
      fill(add(n.relative_embedding, 0, ".weight", 2 * a.relative_span, a.width, false),
           p.relative_bias);
      if (a.relative_norm) add_norm(n.relative_norm, 0, a.width, p.relative_norm, true);
    }
    if (n.relative_bias != nullptr) {
      fill(add(n.relative_bias, 0, ".weight", a.buckets, a.heads, false), p.relative_bias);
    }
    add_norm(n.final_norm, 0, a.width, p.final_norm, !a.family->rms_norm);
  }

  // Tensors of GGUF files with numbers that are settings.
  void add_rope_factors() {
    for (size_t i = 0; plan().from_gguf && i < std::size(kRopeFactors); ++i) {
      const std::string name(kRopeFactors[i].tensor);
      const std::optional<size_t> tensor = find(name.c_str(), 0, "");
      if (!tensor) continue;
      const int64_t count = tensors[*tensor].shape.elements();
      Part* const part = add(name.c_str(), 0, "", count, 1, false);
      fill(part, rope_factors[i]);
      if (part == nullptr) continue;
      part->is_setting = true;
      model->info.parameters -= count;
    }
  }

  // Reads the frequencies again, with the factors in place of the ones in `config`.
  Status apply_rope_factors() {
    for (size_t i = 0; i < std::size(kRopeFactors); ++i) {
      const Vector& numbers = rope_factors[i];
      for (int64_t at = 0; numbers.given() && at < numbers.size; ++at)
        set_rope_factor(config, kRopeFactors[i], at, static_cast<double>(numbers.data[at]));
    }
    Architecture read, no_encoder;
    MULTIHEAD_TRY(read_architecture(config, options.images, read, no_encoder));
    plan().ropes = std::move(read.ropes);
    return {};
  }

  bool written_for(std::string_view part) const {
    return stack->architecture.architecture.find(part) != std::string::npos;
  }

  // Decides by the name of the class and by the tensors of the files.
  Output find_output() const {
    const Architecture& a = stack->architecture;
    const Names& n = a.family->names;
    if (written_for("TokenClassification")) return Output::kTokenClassification;
    if (written_for("ForQuestionAnswering")) return Output::kQuestionAnswering;
    if (written_for("ForSequenceClassification") || written_for("ForImageClassification") ||
        written_for("ForNextSentencePrediction")) {
      return Output::kClassification;
    }
    if (a.family->causal && n.output != nullptr) {
      if (has(n.output, ".weight")) return Output::kLanguageModel;
      // Decoders without a head are stored to embed texts, often under the class with one.
      if (!a.tied) return Output::kNone;
      const bool expected = written_for("ForCausalLM") || written_for("LMHead") ||
                            written_for("ForConditionalGeneration") || written_for("MTModel");
      return expected || !a.architecture.ends_with("Model") ? Output::kLanguageModel
                                                            : Output::kNone;
    }
    const bool masked = n.transform != nullptr
                            ? has(n.transform, ".weight")
                            : has(n.output, ".weight") || written_for("ForMaskedLM");
    if (masked) return Output::kMaskedLanguageModel;
    if (has(n.question, ".weight")) return Output::kQuestionAnswering;
    return has(n.classifier, ".weight") ? Output::kClassification : Output::kNone;
  }

  void add_output() {
    const Architecture& a = plan();
    const Family& family = *a.family;
    const Names& n = family.names;
    Parameters& p = stack->parameters;
    ModelInfo& info = stack->info;
    info.output = find_output();
    const bool pooled =
        info.output == Output::kClassification && family.classifier == Classifier::kPooler;
    if (n.pooler != nullptr && (pooled || has(n.pooler, ".weight"))) {
      add_projection(n.pooler, 0, a.width, a.width, true, p.pooler);
      info.has_pooler = true;
    }
    if (n.attention_pooler != nullptr) add_attention_pooler(n.attention_pooler);
    in_heads = true;
    const bool transforms =
        family.classifier == Classifier::kTransform &&
        (info.output == Output::kClassification || info.output == Output::kTokenClassification);
    if (n.transform != nullptr && (transforms || info.output == Output::kMaskedLanguageModel)) {
      add_projection(n.transform, 0, a.embedding_width, a.width, a.transform_bias, p.transform);
      add_norm(n.transform_norm, 0, a.embedding_width, p.transform_norm, true);
    }
    switch (info.output) {
      case Output::kNone:
        break;
      case Output::kLanguageModel:
        if (!a.tied || (family.tied_by_files && has(n.output, ".weight"))) {
          add_projection(n.output, 0, a.vocabulary, a.width, false, p.output);
        }
        if (family.logit_bias) add_vector(n.output, 0, ".bias", a.vocabulary, p.output.bias);
        if (has(n.logits_bias, "")) {
          fill(add(n.logits_bias, 0, "", 1, a.vocabulary, false), p.output.bias);
        }
        break;
      case Output::kMaskedLanguageModel:
        if (!a.tied) {
          add_projection(n.output, 0, a.vocabulary, a.embedding_width, has(n.output, ".bias"),
                         p.output);
        }
        if (!p.output.bias.given() && has(n.output_bias, "")) {
          add_vector(n.output_bias, 0, "", a.vocabulary, p.output.bias);
        } else if (a.tied && has(n.output, ".bias")) {
          add_vector(n.output, 0, ".bias", a.vocabulary, p.output.bias);
        }
        break;
      case Output::kQuestionAnswering:
        add_classifier(n.question, 2);
        break;
      case Output::kTokenClassification:
        add_classifier(n.classifier);
        break;
      case Output::kClassification:
        if (written_for("ForNextSentencePrediction")) {
          add_classifier(n.next_sentence, 2);
          break;
        }
        if (family.classifier == Classifier::kFirstTanh ||
            family.classifier == Classifier::kFirstRelu ||
            family.classifier == Classifier::kFirstGelu) {
          add_projection(n.classifier_dense, 0, a.width, a.width, true, p.classifier_dense);
        }
        add_classifier(n.classifier);
        if (has(n.distilled, ".weight")) {
          add_projection(n.distilled, 0, info.num_labels, a.width, true, p.distilled);
        }
        break;
    }
  }

  void add_attention_pooler(const std::string& path) {
    const Architecture& a = plan();
    AttentionPooler& p = model->parameters.attention_pooler;
    if (!has((path + "probe").c_str(), "")) return;
    const std::string in = path + "attention.in_proj", out = path + "attention.out_proj";
    add_vector((path + "probe").c_str(), 0, "", a.width, p.probe);
    add_matrix(in.c_str(), 0, "_weight", 3 * a.width, a.width, p.qkv.weight);
    add_vector(in.c_str(), 0, "_bias", 3 * a.width, p.qkv.bias);
    add_projection(out.c_str(), 0, a.width, a.width, true, p.o);
    add_norm((path + "layernorm").c_str(), 0, a.width, p.norm, true);
    add_projection((path + "mlp.fc1").c_str(), 0, a.mlp, a.width, true, p.up);
    add_projection((path + "mlp.fc2").c_str(), 0, a.width, a.mlp, true, p.down);
    model->info.has_pooler = true;
    model->sentence.pooling = Pooling::kPooler;
  }

  // The matrix tells the number of classes unless it is known.
  void add_classifier(const char* names, int64_t classes = 0) {
    const Architecture& a = plan();
    const std::optional<size_t> tensor = find(names, 0, ".weight");
    if (!tensor) {
      append(missing, names == nullptr ? "a classifier" : std::string(names) + ".weight");
      return;
    }
    const Dims& shape = tensors[*tensor].shape;
    int64_t& labels = stack->info.num_labels;
    labels = classes > 0 ? classes : shape.rank() == 2 ? shape[0] : std::max<int64_t>(1, a.labels);
    labels = std::clamp<int64_t>(labels, 1, kMostWidth);
    const bool both = a.family->classifier == Classifier::kFirstAndMean;
    add_projection(names, 0, labels, (both ? 2 : 1) * a.width, has(names, ".bias"),
                   stack->parameters.classifier);
  }

  void describe() {
    const Architecture& a = plan();
    ModelInfo& info = stack->info;
    info.model_type = a.model_type;
    info.causal = a.causal;
    info.takes_pixels = a.family->names.patch != nullptr;
    info.has_images = a.has_towers && !info.takes_pixels;
    info.num_layers = static_cast<int64_t>(a.layers.size());
    info.embed_dim = a.width;
    info.num_heads = a.heads;
    info.num_kv_heads = a.kv_heads;
    info.head_dim = a.head_dim;
    info.mlp_dim = a.mlp;
    info.vocab_size = a.vocabulary;
    const Sentence& sentence = stack->sentence;
    info.max_tokens = info.takes_pixels ? a.image_tokens()
                      : a.positions > 0 ? a.positions - a.first_position
                                        : 0;
    info.token_types = a.token_types;
    info.image_size = a.image_size;
    info.patch_size = a.patch_size;
    info.channels = a.channels;
    info.end_ids = a.end_ids;
    info.has_encoder = model->encoder != nullptr && stack == model.get();
    info.decoder_start = a.decoder_start;
    info.rules = a.rules;
    info.generation = a.generation;
    info.pooling = sentence.pooling;
    info.pools_prompt = sentence.pools_prompt;
    info.vector_dim = sentence.width;
    info.max_seq_length = sentence.max_tokens;
    if (info.max_tokens > 0) {
      info.max_seq_length = std::min(info.max_seq_length, info.max_tokens);
    }
  }

  // The last step of embed(), and what makes similarities of its vectors.
  void add_projection_of_vectors() {
    const Architecture& a = plan();
    const char* const name = a.family->names.projection;
    Sentence& sentence = model->sentence;
    if (name == nullptr || !sentence.steps.empty()) return;
    const std::optional<size_t> tensor = find(name, 0, ".weight");
    if (!tensor && !a.has_towers) return;
    SentenceStep& step = sentence.steps.emplace_back();
    step.name = name;
    step.in = a.width;
    step.out = tensor && tensors[*tensor].shape.rank() == 2 ? tensors[*tensor].shape[0] : a.width;
    step.out = std::clamp<int64_t>(step.out, 1, kMostWidth);
    step.bias = has(name, ".bias");
    sentence.width = step.out;
    if (!has("logit_scale", "")) return;
    add_vector("logit_scale", 0, "", 1, model->parameters.logit_scale);
    if (has("logit_bias", "")) add_vector("logit_bias", 0, "", 1, model->parameters.logit_bias);
  }

  void plan_stack() {
    stack->parameters.layers.resize(static_cast<size_t>(plan().parameter_sets));
    in_heads = false;
    add_rope_factors();
    add_embeddings();
    for (int64_t layer = 0; layer < plan().parameter_sets; ++layer) {
      if (missing.size() + wrong.size() > 500) break;
      add_layer(layer);
    }
    add_output();
  }

  // Leaves a model whose files have an encoder alone that stack. Errors: kOption for what is only
  // known with both.
  Status choose_stacks(Architecture&& encoder) {
    if (encoder.family == nullptr) return {};
    // The configuration is judged before there are tensors.
    const bool has_decoder = has(plan().family->names.cross_q, ".weight") || tensors.empty();
    if (!has_decoder && !written_for("ForConditionalGeneration") && !written_for("MTModel")) {
      plan() = std::move(encoder);
      return {};
    }
    for (const char* const part : {"Classification", "QuestionAnswering", "ForCausalLM"}) {
      if (!written_for(part)) continue;
      return {StatusCode::kOption, "architectures.0",
              "a class with encoder and decoder that gives logits of tokens or none",
              '"' + plan().architecture + '"'};
    }
    model->encoder = std::make_unique<Model::Internals>();
    model->encoder->architecture = std::move(encoder);
    return {};
  }

  Status plan_parts() {
    plan_stack();
    const size_t decoder_parts = parts.size();
    if (model->encoder != nullptr) {
      stack = model->encoder.get();
      plan_stack();
      describe();
      stack = model.get();
      model->info.parameters += model->encoder->info.parameters;
      model->info.weight_bytes += model->encoder->info.weight_bytes;
    }
    add_projection_of_vectors();
    for (SentenceStep& step : sentence().steps) {
      if (step.out == 0) continue;
      add_projection(step.name.c_str(), 0, step.out, step.in, step.bias, step.dense);
    }
    describe();
    if (!missing.empty()) {
      std::string got = "none of the names " + missing;
      const auto quantized = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
        return tensor.name.ends_with(".scales") || tensor.name.ends_with(".qweight");
      });
      if (quantized != tensors.end()) {
        got = "quantized ones, which are not read: " + engine::printable(quantized->name, 120);
      } else if (!tensors.empty()) {
        got += "; the first of " + std::to_string(tensors.size()) + " is " +
               engine::printable(tensors.front().name, 120);
      }
      return format_error("weights", "the tensors of " + model->info.model_type, got);
    }
    if (!wrong.empty()) {
      return format_error("weights", "the shapes that config.json says", wrong);
    }
    for (size_t at = 0; plan().from_gguf && at < tensors.size(); ++at) {
      // Without them the numbers would be others. The head of a classifier changes nothing else,
      // and what reads images and sounds, which Ollama has in the same file, not the text.
      const std::string& name = tensors[at].name;
      const bool is_known = std::any_of(std::begin(kOtherParts), std::end(kOtherParts),
                                        [&](const char* part) { return name.starts_with(part); });
      if (part_of[at] < parts.size() || is_known || name.find(kRotations) != std::string::npos)
        continue;
      return format_error("weights", "only the tensors of " + model->info.model_type,
                          engine::printable(name, 120));
    }
    const Parameters& p = model->parameters;
    for (size_t at = 0; at < parts.size(); ++at) {
      const Part& part = parts[at];
      model->info.weight_bytes += part.memory_bytes();
      if (at >= decoder_parts && model->encoder != nullptr) {
        model->encoder->info.weight_bytes += part.memory_bytes();
        continue;
      }
      if (part.once) continue;
      // A token reads one row of a table, unless the table is the output matrix, too.
      const WeightMatrix* const matrix = part.matrix;
      const bool row = matrix == &p.position || matrix == &p.token_type ||
                       (matrix == &p.embedding && p.output.given());
      model->info.step_bytes +=
          row ? weight_row_bytes(matrix->type, matrix->columns) : part.memory_bytes();
    }
    return {};
  }

  // Leaves this member of a team only its rows of the embedding and of each matrix of a product.
  Status divide(const engine::Team& team) {
    if (model->encoder != nullptr) MULTIHEAD_TRY(divide(team, model->encoder->parameters));
    return divide(team, model->parameters);
  }

  Status divide(const engine::Team& team, Parameters& p) {
    std::vector<Projection*> all = {
        &p.embedding_projection, &p.patch,  &p.pooler,     &p.transform,
        &p.classifier_dense,     &p.output, &p.classifier, &p.distilled};
    for (LayerParameters& layer : p.layers) {
      all.insert(all.end(), {&layer.qkv, &layer.q, &layer.k, &layer.v, &layer.o, &layer.cross_q,
                             &layer.cross_kv, &layer.cross_k, &layer.cross_v, &layer.cross_o,
                             &layer.gate_up, &layer.gate, &layer.up, &layer.down});
    }
    for (SentenceStep& step : sentence().steps) {
      if (step.out > 0 && &p == &model->parameters) all.push_back(&step.dense);
    }
    MULTIHEAD_TRY(divide(team, p.embedding, p.embedding_is_share));
    for (Projection* const projection : all) {
      MULTIHEAD_TRY(divide(team, projection->weight, projection->is_share));
    }
    return {};
  }

  Status divide(const engine::Team& team, WeightMatrix& matrix, bool& is_share) {
    if (!engine::Team::divides(matrix.rows)) return {};
    const int64_t first = team.first_output(matrix.rows), end = team.end_output(matrix.rows);
    for (Part& part : parts) {
      if (part.matrix != &matrix) continue;
      part.kept = std::clamp<int64_t>(first - part.first, 0, part.kept_end);
      part.kept_end = std::clamp<int64_t>(end - part.first, part.kept, part.kept_end);
      part.first -= first;
    }
    matrix.rows = end - first;
    is_share = true;
    // linear() refuses a null address, even for no rows.
    std::byte* memory = nullptr;
    return matrix.rows == 0 ? allocate(matrix, memory) : Status();
  }

  // ---- Filling the memory. ----

  // Computes the table of positions of a stack whose files need not have it.
  Status fill_sinusoids(Model::Internals& of) {
    WeightMatrix& table = of.parameters.position;
    if (of.architecture.family->sinusoids == Sinusoids::kNone || table.data != nullptr) return {};
    std::byte* memory = nullptr;
    MULTIHEAD_TRY(allocate(table, memory));
    compute_sinusoids(of.architecture, reinterpret_cast<float*>(memory));
    return {};
  }

  // Returns memory for a matrix, null if there is none. Matrices follow one another in large
  // blocks: with pages of 2 MB one thread decodes 1.6 times as fast in f32 and f16, 1.4 times in
  // int8, 1.1 times in int4 (SmolLM2-135M's shape, Zen 4).
  std::byte* take(uint64_t bytes) {
    bytes = rules::round_up(bytes, uint64_t{cpu::kScratchAlignment});
    if (bytes > unused.size()) {
      engine::Buffer block;
      const auto wanted = static_cast<uint64_t>(std::min(kBlock, model->info.weight_bytes));
      if (!block.reserve(std::max(bytes, wanted)) && !block.reserve(bytes)) return nullptr;
      unused = {static_cast<std::byte*>(block.data()), block.bytes()};
      model->memory.push_back(std::move(block));
    }
    std::byte* const memory = unused.data();
    unused = unused.subspan(static_cast<size_t>(bytes));
    return memory;
  }

  Status allocate(Vector& vector) {
    if (vector.data != nullptr) return {};
    const uint64_t bytes = static_cast<uint64_t>(vector.size) * sizeof(float);
    vector.data = reinterpret_cast<float*>(take(bytes));
    return vector.data == nullptr ? Status::out_of_memory(bytes) : Status();
  }

  Status allocate(WeightMatrix& matrix, std::byte*& memory) {
    std::byte*& kept = own[&matrix];
    if (kept == nullptr) {
      const auto bytes = static_cast<uint64_t>(std::max<int64_t>(1, matrix.bytes()));
      if (!separates) {
        kept = take(bytes);
      } else if (engine::Buffer& alone = separate[&matrix]; alone.reserve(bytes)) {
        kept = static_cast<std::byte*>(alone.data());
      }
      if (kept == nullptr) return Status::out_of_memory(bytes);
      matrix.data = kept;
    }
    memory = kept;
    return {};
  }

  // Takes `count` stored rows from `from`, which is aligned for its type, and writes those that are
  // kept.
  Status take_rows(Part& part, const std::byte* from, int64_t count) {
    const int64_t begin = part.done, end = begin + count;
    if (part.pairs > 0) {
      // Rows 0, 1, 2, 3, ... of a head in the file are rows 0, n / 2, 1, n / 2 + 1, ... in memory.
      const int64_t n = part.pairs;
      for (int64_t row = begin; row < end; ++row, from += part.row_bytes()) {
        const bool paired = row < part.paired_rows;
        part.done = paired ? row - row % n + row % n / 2 + row % 2 * (n / 2) : row;
        if (part.done < part.kept || part.done >= part.kept_end) continue;
        MULTIHEAD_TRY(write_rows(part, from, 1));
      }
      part.done = end;
      return {};
    }
    if (part.matrix == nullptr || part.transposed) return write_rows(part, from, count);
    const int64_t first = std::max(begin, part.kept), last = std::min(end, part.kept_end);
    if (first < last) {
      part.done = first;
      MULTIHEAD_TRY(write_rows(part, from + static_cast<size_t>(first - begin) * part.row_bytes(),
                               last - first));
    }
    part.done = end;
    return {};
  }

  // Writes rows as take_rows() has them, and counts them as done.
  Status write_rows(Part& part, const std::byte* from, int64_t count) {
    if (rules::kOrderOfFiles) return write_native_rows(part, from, count);
    std::vector<std::byte> rows(from, from + static_cast<size_t>(count) * part.row_bytes());
    for (size_t at = 0; part.is_rows() && at < rows.size(); at += part.row_bytes())
      turn_scales(same_type(part.stored), rows.data() + at, part.columns);
    if (!part.is_rows()) rules::turn_numbers(rows, number_bytes(part.stored));
    return write_native_rows(part, rows.data(), count);
  }

  Status write_native_rows(Part& part, const std::byte* from, int64_t count) {
    if (part.keeps_bytes()) {
      std::byte* memory = nullptr;
      MULTIHEAD_TRY(allocate(*part.matrix, memory));
      std::memcpy(memory + static_cast<size_t>(part.first + part.done) * part.row_bytes(), from,
                  static_cast<size_t>(count) * part.row_bytes());
      part.done += count;
      return {};
    }
    if (part.matrix != nullptr && has_stored_blocks(part.stored) && !part.is_rows() &&
        packed_type(part.stored) == part.matrix->type) {
      std::byte* memory = nullptr;
      MULTIHEAD_TRY(allocate(*part.matrix, memory));
      const int64_t row_bytes = weight_row_bytes(part.matrix->type, part.columns);
      for (int64_t row = 0; row < count; ++row, from += part.row_bytes(), ++part.done)
        pack_blocks(part.stored, from, part.columns, memory + (part.first + part.done) * row_bytes);
      return {};
    }
    if (part.stored != Stored::kF64 && !has_stored_blocks(part.stored)) {
      return write_floats(part,
                          {from, dtype_of(part.stored), {count, part.columns}, {part.columns, 1}});
    }
    float* narrowed = nullptr;
    MULTIHEAD_TRY(reserve(narrowed_row, part.columns, narrowed));
    for (int64_t row = 0; row < count; ++row, from += part.row_bytes()) {
      if (has_stored_blocks(part.stored)) {
        read_blocks(part.stored, from, part.columns, narrowed);
      } else {
        for (int64_t c = 0; c < part.columns; ++c) {
          double value = 0;
          std::memcpy(&value, from + static_cast<size_t>(c) * sizeof(double), sizeof(double));
          narrowed[c] = static_cast<float>(value);
        }
      }
      MULTIHEAD_TRY(write_floats(part, ConstAnyTensor(narrowed, {1, part.columns})));
    }
    return {};
  }

  // Writes the next rows (n, columns) at their place.
  Status write_floats(Part& part, const ConstAnyTensor& from) {
    const int64_t count = from.shape[0], first = part.done;
    part.done += count;
    if (part.vector != nullptr) {
      MULTIHEAD_TRY(allocate(*part.vector));
      float* const to = part.vector->data + part.first + first;
      rules::read_floats(from.data, from.dtype, 0, count, to);
      const bool adds_one = part.plus_one && !plan().from_gguf;
      for (int64_t i = 0; adds_one && i < count; ++i) to[i] += 1.0F;
      return {};
    }
    std::byte* memory = nullptr;
    MULTIHEAD_TRY(allocate(*part.matrix, memory));
    const WeightType type = part.matrix->type;
    const int64_t row = part.transposed ? 0 : part.first + first;
    std::byte* const to = memory + row * weight_row_bytes(type, part.matrix->columns);
    if (!part.transposed) return quantize(from, type, to, context);
    // Column `first + i` of the target is row i of `from`. A transposed matrix is one part.
    const bool direct = type == WeightType::kF32;
    const int64_t kept_rows = part.kept_end - part.kept;
    float* turned = reinterpret_cast<float*>(to);
    if (!direct) MULTIHEAD_TRY(reserve(part.turned, kept_rows * part.rows, turned));
    float* row_of_file = nullptr;
    MULTIHEAD_TRY(reserve(floats, part.columns, row_of_file));
    for (int64_t i = 0; i < count; ++i) {
      rules::read_floats(from.data, from.dtype, i * part.columns, part.columns, row_of_file);
      for (int64_t c = part.kept; c < part.kept_end; ++c) {
        turned[(c - part.kept) * part.rows + first + i] = row_of_file[c];
      }
    }
    if (direct || part.done < part.rows) return {};
    MULTIHEAD_TRY(quantize(ConstAnyTensor(turned, {kept_rows, part.rows}), type, to, context));
    part.turned = {};
    return {};
  }

  // Memory of a buffer, which keeps its contents if it is large enough already.
  template <class T>
  static Status reserve(engine::Buffer& buffer, int64_t count, T*& memory) {
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
    if (!buffer.reserve(bytes)) return Status::out_of_memory(bytes);
    memory = static_cast<T*>(buffer.data());
    return {};
  }

  Status find_part(size_t tensor, size_t& index) const {
    if (tensor >= part_of.size() || part_of[tensor] >= parts.size()) {
      return format_error("tensor", "one that is needed", std::to_string(tensor));
    }
    index = part_of[tensor];
    return {};
  }

  Status report(int64_t bytes) {
    given_bytes += bytes;
    if (!options.progress || options.progress(given_bytes, all_bytes)) return {};
    return {StatusCode::kAborted, "open", "to be continued", "aborted"};
  }

  static bool is_aligned(const Part& part, std::span<const std::byte> bytes) {
    return reinterpret_cast<uintptr_t>(bytes.data()) % number_bytes(part.stored) == 0;
  }

  // Takes bytes of a tensor of a group. With the last ones, the matrix is read. `found` is false
  // for other tensors.
  Status give_to_group(size_t tensor, std::span<const std::byte> bytes, bool& found) {
    for (size_t i = 0; i < groups.size(); ++i) {
      GroupedWeights& group = groups[i];
      const auto members = group.tensors();
      const auto member = std::find(members.begin(), members.end(), tensor);
      const size_t matrix = tensors.size() - groups.size() + i;
      if (member == members.end() || part_of[matrix] >= parts.size()) continue;
      found = true;
      std::vector<std::byte>& to = group.bytes[member - members.begin()];
      const uint64_t left = group_bytes(tensors[tensor]) - to.size();
      if (bytes.size() > left) {
        return format_error(tensors[tensor].name, std::to_string(left) + " more bytes at most",
                            std::to_string(bytes.size()));
      }
      to.insert(to.end(), bytes.begin(), bytes.end());
      const bool is_whole = std::all_of(members.begin(), members.end(), [&](const size_t& each) {
        return each == GroupedWeights::kNone ||
               group.bytes[&each - members.data()].size() == group_bytes(tensors[each]);
      });
      return is_whole ? read_group(matrix, group) : Status();
    }
    return {};
  }

  Status read_group(size_t matrix, GroupedWeights& group) {
    constexpr int64_t kRows = 64;  // outputs are neighbours in the files of GPTQ and AWQ
    std::vector<float> floats_of_rows(static_cast<size_t>(kRows * group.columns));
    for (int64_t row = 0; row < group.rows; row += kRows) {
      const int64_t count = std::min(kRows, group.rows - row);
      const auto numbers =
          std::span(floats_of_rows).first(static_cast<size_t>(count * group.columns));
      read_groups(group, tensors, row, count, numbers.data());
      const auto in_order = std::as_writable_bytes(numbers);
      rules::turn_numbers(in_order, sizeof(float));
      MULTIHEAD_TRY(give(matrix, in_order));
    }
    for (std::vector<std::byte>& bytes : group.bytes) bytes = {};
    return {};
  }

  Status give(size_t tensor, std::span<const std::byte> bytes) {
    bool of_group = false;
    MULTIHEAD_TRY(give_to_group(tensor, bytes, of_group));
    if (of_group) return {};
    size_t index = 0;
    MULTIHEAD_TRY(find_part(tensor, index));
    Part& part = parts[index];
    const size_t size = part.row_bytes();
    const auto left = static_cast<uint64_t>(part.rows - part.done) * size - part.begun_bytes;
    if (bytes.size() > left) {
      return format_error(tensors[tensor].name, std::to_string(left) + " more bytes at most",
                          std::to_string(bytes.size()));
    }
    const auto all = static_cast<int64_t>(bytes.size());
    // Writing fails only for want of memory, or at a number that the type cannot hold. Status could
    // write that sentence, but brings the texts of all errors and 100 kB of tables for decimal
    // digits into the WebAssembly module.
    const auto named = [&](const Status& status) {
      if (status.ok() || status.code() == StatusCode::kMemory) return status;
      const Status::Record& record = *status.record();
      std::string expected = "finite numbers";
      if (record.message == engine::Message::kNumbersBelow) {
        expected += " of magnitudes below " + std::to_string(record.numbers[0]);
      }
      return format_error(tensors[tensor].name, expected, text_of(record.real));
    };
    while (!bytes.empty()) {
      const bool aligned = is_aligned(part, bytes);
      const size_t whole = bytes.size() / size;
      if (part.begun_bytes == 0 && aligned && whole > 0) {
        MULTIHEAD_TRY(named(take_rows(part, bytes.data(), static_cast<int64_t>(whole))));
        bytes = bytes.subspan(whole * size);
        continue;
      }
      std::byte* begun = nullptr;
      MULTIHEAD_TRY(reserve(part.begun, static_cast<int64_t>(size), begun));
      const size_t more = std::min(bytes.size(), size - part.begun_bytes);
      std::memcpy(begun + part.begun_bytes, bytes.data(), more);
      part.begun_bytes += more;
      bytes = bytes.subspan(more);
      if (part.begun_bytes < size) break;
      MULTIHEAD_TRY(named(take_rows(part, begun, 1)));
      part.begun_bytes = 0;
    }
    if (part.done == part.rows) part.begun = {};
    return report(all);
  }

  Status view(size_t tensor, std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
    bool of_group = false;
    MULTIHEAD_TRY(give_to_group(tensor, bytes, of_group));
    if (of_group) return {};
    size_t index = 0;
    MULTIHEAD_TRY(find_part(tensor, index));
    Part& part = parts[index];
    const size_t expected = static_cast<size_t>(part.rows) * part.row_bytes();
    if (bytes.size() != expected || part.done != 0 || part.begun_bytes != 0) {
      return format_error(tensors[tensor].name, std::to_string(expected) + " bytes, once",
                          std::to_string(bytes.size()));
    }
    if (!is_aligned(part, bytes) || !rules::kOrderOfFiles || !part.can_be_matrix()) {
      // In pieces, so that progress moves and an abort is soon.
      constexpr size_t kPiece = size_t{1} << 22;
      const size_t piece = std::max<size_t>(1, kPiece / part.row_bytes()) * part.row_bytes();
      while (!bytes.empty()) {
        const auto next = bytes.first(std::min(bytes.size(), piece));
        MULTIHEAD_TRY(give(tensor, next));
        bytes = bytes.subspan(next.size());
      }
      return {};
    }
    part.matrix->data = bytes.data();
    part.done = part.rows;
    viewed_bytes += static_cast<int64_t>(bytes.size());
    if (model->owners.empty() || model->owners.back() != owner) {
      model->owners.push_back(std::move(owner));
    }
    return report(static_cast<int64_t>(bytes.size()));
  }
};

ModelLoader::ModelLoader() = default;
ModelLoader::~ModelLoader() = default;
ModelLoader::ModelLoader(ModelLoader&&) noexcept = default;
ModelLoader& ModelLoader::operator=(ModelLoader&&) noexcept = default;

Status ModelLoader::create(const Config& config, std::span<const StoredTensor> tensors,
                           const OpenOptions& options, ModelLoader& loader) {
  return Internals::create(config, tensors, options, nullptr, loader);
}

Status ModelLoader::Internals::create(const Config& config, std::span<const StoredTensor> tensors,
                                      const OpenOptions& options, const engine::Team* team,
                                      ModelLoader& loader) {
  return engine::memory_guard([&]() -> Status {
    for (const auto& type : {options.weights, options.embedding_weights}) {
      if (type > WeightType::kInt4)
        return {StatusCode::kOption, "weights", "f32, f16, bf16, int8 or int4", name_of(*type)};
    }
    auto state = std::make_unique<State>();
    state->options = options;
    state->in_team = team != nullptr;
    state->config = config;
    state->tensors.assign(tensors.begin(), tensors.end());
    if (is_gguf(config)) MULTIHEAD_TRY(from_gguf(state->config, state->tensors));
    const auto has_scales = [](const StoredTensor& each) { return each.name.ends_with(".scales"); };
    if (std::ranges::any_of(tensors, has_scales))
      MULTIHEAD_TRY(find_groups(state->config, state->tensors, state->groups));
    // The matrices of groups come first: MLX has tensors of their names.
    const size_t count = state->tensors.size(), groups = state->groups.size();
    for (size_t i = 0; i < count; ++i) {
      const size_t at = i < groups ? count - groups + i : i - groups;
      state->by_name.emplace(without_wrappers(state->tensors[at].name), at);
    }
    Architecture encoder;
    MULTIHEAD_TRY(
        read_architecture(state->config, options.images, state->model->architecture, encoder));
    MULTIHEAD_TRY(state->choose_stacks(std::move(encoder)));
    Model::Internals& first =
        state->model->encoder != nullptr ? *state->model->encoder : *state->model;
    MULTIHEAD_TRY(read_sentence(state->config, first.architecture, first.sentence));
    constexpr size_t kNotNeeded = ~size_t{0};
    state->part_of.assign(state->tensors.size(), kNotNeeded);
    MULTIHEAD_TRY(state->plan_parts());
    if (team != nullptr) MULTIHEAD_TRY(state->divide(*team));
    loader.state_ = std::move(state);
    return {};
  });
}

std::shared_ptr<Model::Internals> ModelLoader::Internals::model(const ModelLoader& loader) {
  return loader.state_->model;
}

void ModelLoader::Internals::separate_matrices(ModelLoader& loader) {
  loader.state_->separates = true;
  for (const Part& part : loader.state_->parts) {
    // GPUs multiply no blocks of GGUF but Q8_0 and Q4_0, which are int8 and int4.
    if (part.matrix == nullptr || part.matrix->type <= WeightType::kInt4) continue;
    const int64_t before = part.matrix->bytes();
    part.matrix->type = WeightType::kInt8;
    loader.state_->model->info.weight_bytes += part.matrix->bytes() - before;
  }
}

bool ModelLoader::Internals::is_complete(const ModelLoader& loader, const WeightMatrix& matrix) {
  const auto lacks = [&](const Part& p) { return p.matrix == &matrix && p.done < p.rows; };
  return matrix.data != nullptr && std::ranges::none_of(loader.state_->parts, lacks);
}

void ModelLoader::Internals::free(ModelLoader& loader, WeightMatrix& matrix) {
  loader.state_->own.erase(&matrix);
  loader.state_->separate.erase(&matrix);
  matrix.data = nullptr;
}

std::span<const size_t> ModelLoader::needed() const {
  return state_ == nullptr ? std::span<const size_t>() : std::span<const size_t>(state_->needed);
}

int64_t ModelLoader::bytes(bool viewed) const {
  if (state_ == nullptr) return 0;
  int64_t sum = state_->computed_bytes;
  for (const Part& part : state_->parts)
    sum += viewed && rules::kOrderOfFiles && part.can_be_matrix() ? 0 : part.memory_bytes();
  return sum;
}

int64_t ModelLoader::viewed_bytes() const { return state_ == nullptr ? 0 : state_->viewed_bytes; }

Status ModelLoader::give(size_t tensor, std::span<const std::byte> bytes) {
  return engine::memory_guard([&]() -> Status {
    if (state_ == nullptr) return format_error("loader", "one that was created", "none");
    return state_->give(tensor, bytes);
  });
}

Status ModelLoader::view(size_t tensor, std::span<const std::byte> bytes,
                         std::shared_ptr<const void> owner) {
  return engine::memory_guard([&]() -> Status {
    if (state_ == nullptr) return format_error("loader", "one that was created", "none");
    return state_->view(tensor, bytes, std::move(owner));
  });
}

Status ModelLoader::finish(Model& model) {
  return engine::memory_guard([&]() -> Status {
    if (state_ == nullptr) return format_error("loader", "one that was created", "none");
    std::string missing;
    for (const Part& part : state_->parts) {
      if (part.done < part.rows) State::append(missing, state_->tensors[part.tensor].name);
    }
    if (!missing.empty())
      return format_error("weights", "all of their bytes", "less of " + missing);
    MULTIHEAD_TRY(state_->fill_unit_weights());
    MULTIHEAD_TRY(state_->resize_positions());
    Model::Internals& made = *state_->model;
    if (made.architecture.from_gguf) MULTIHEAD_TRY(state_->apply_rope_factors());
    MULTIHEAD_TRY(state_->fill_sinusoids(made));
    if (const Vector& scale = made.parameters.logit_scale; scale.given())
      made.info.logit_scale = std::exp(scale.data[0]);
    if (const Vector& bias = made.parameters.logit_bias; bias.given())
      made.info.logit_bias = bias.data[0];
    for (Model::Internals* const each : {&made, made.encoder.get()}) {
      if (each == nullptr || each->parameters.layers.empty()) continue;
      each->graph = layer_graph(each->architecture, each->parameters.layers.front());
    }
    if (made.encoder != nullptr) {
      Parameters& p = made.encoder->parameters;
      MULTIHEAD_TRY(state_->fill_sinusoids(*made.encoder));
      if (p.embedding.rows == 0 && !p.embedding_is_share) {
        p.embedding = made.parameters.embedding;
        p.embedding_is_share = made.parameters.embedding_is_share;
      }
    }
    for (const Part& part : state_->parts) {
      if (part.is_setting) continue;
      const StoredTensor& tensor = state_->tensors[part.tensor];
      const bool turned = part.stands_transposed;
      Dims matrix = turned ? Dims{part.columns, part.rows} : Dims{part.rows, part.columns};
      const Architecture& a = made.architecture;
      if (part.matrix == &made.parameters.patch.weight)
        matrix = {a.width, a.channels, a.patch_size, a.patch_size};
      made.stored.push_back({.name = tensor.name,
                             .shape = part.is_rows() ? matrix : tensor.shape,
                             .matrix = part.matrix,
                             .vector = part.vector,
                             .first = part.first,
                             .rows = part.is_rows() && turned ? part.columns : part.rows,
                             .transposed = turned,
                             .plus_one = part.plus_one});
    }
    for (auto& [matrix, buffer] : state_->separate) made.memory.push_back(std::move(buffer));
    model.internals_ = std::move(state_->model);
    state_.reset();
    return {};
  });
}

const ModelInfo& Model::info() const {
  static const ModelInfo kNone;
  return internals_ == nullptr ? kNone : internals_->info;
}

}  // namespace multihead::models
