// Golden cases that look into a model and change what it computes: lens_cases.json and
// lens_expected.safetensors of a model's folder. Operations: captures, edits, lens, patch,
// attribution, logit_attribution.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "conformance_case.h"
#include "multihead/analysis.h"

namespace multihead::conformance {
namespace {

using models::Site;

// Arrays of a case, by output name; addresses stay valid.
struct Results {
  std::map<std::string, Values> arrays;

  Tensor add(const std::string& name, const Dims& shape) {
    return arrays.insert_or_assign(name, Values(shape)).first->second.tensor();
  }
  void set(const std::string& name, const std::vector<float>& values) {
    const Tensor to = add(name, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), to.data);
  }
};

class LensCase {
 public:
  LensCase(const Case& c, const Safetensors& tensors, const models::Model& model, Context& context)
      : c_(c), tensors_(tensors), model_(model), context_(context) {}

  std::string run(double& worst) {
    const std::string op = c_["op"];
    Status status;
    if (op == "captures" || op == "edits") {
      status = forward();
    } else if (op == "lens") {
      status = lens();
    } else if (op == "patch") {
      status = patch();
    } else if (op == "attribution") {
      status = attribution();
    } else if (op == "logit_attribution") {
      status = logit_attribution();
    } else {
      return "not supported yet: op " + op;
    }
    if (!status.ok()) return status.message();
    for (const auto& [name, tensor] : c_["outputs"].items()) {
      const auto found = results_.arrays.find(name);
      if (found == results_.arrays.end()) return "not supported yet: output " + name;
      std::vector<float> golden = Case::floats_of(c_.golden(name)).data;
      std::vector<float> result = found->second.data;
      leave_out(name, found->second.shape, golden, result);
      const std::string problem =
          compare(name, golden, result, {.atol = c_["tolerance"].value(name, 1e-5)}, {}, worst);
      if (!problem.empty()) return problem;
    }
    return {};
  }

 private:
  Dims shape_of(const std::string& output) const { return c_.golden(output)->shape; }

  models::ModelInputs inputs(const std::string& name) {
    ids_.push_back(c_.integers(name));
    const Dims& shape = c_.input(name)->shape;
    mask_.clear();
    if (c_.has_input("attention_mask")) {
      for (const int32_t value : c_.integers("attention_mask")) mask_.push_back(value != 0 ? 1 : 0);
    }
    return {.ids = ids_.back(), .batch = shape[0], .mask = mask_};
  }

  // Rows of padding, and hidden keys of scores and weights, do not count.
  void leave_out(const std::string& name, const Dims& shape, std::vector<float>& golden,
                 std::vector<float>& result) const {
    const bool weights =
        name.find("scores.") != std::string::npos || name.find("pattern.") != std::string::npos;
    if (weights && c_.has_field("visible")) {
      const auto layer = name.substr(name.rfind('.') + 1);
      if (c_["visible"].contains(layer)) {
        const auto seen = Case::integers_of(tensors_.find(c_["visible"][layer].get<std::string>()));
        const int64_t heads = shape[1], map = shape[2] * shape[3];
        for (int64_t i = 0; i < shape.elements(); ++i) {
          const int64_t b = i / (heads * map);
          if (seen[static_cast<size_t>(b * map + i % map)] == 0) {
            golden[static_cast<size_t>(i)] = result[static_cast<size_t>(i)] = 0.0F;
          }
        }
      }
    }
    if (mask_.empty() || shape.rank() < 3) return;
    const int axis = weights ? 2 : 1;
    const Dims strides = contiguous_strides(shape);
    for (int64_t i = 0; i < shape.elements(); ++i) {
      const int64_t b = i / strides[0], token = i / strides[axis] % shape[axis];
      if (mask_[static_cast<size_t>(b * shape[axis] + token)] != 0) continue;
      golden[static_cast<size_t>(i)] = result[static_cast<size_t>(i)] = 0.0F;
    }
  }

  static std::vector<int64_t> list(const json& object, const char* field) {
    return object.value(field, std::vector<int64_t>());
  }

  Status forward() {
    std::vector<models::Capture> captures;
    std::vector<models::Edit> edits;
    std::deque<Values> values;
    for (const json& capture : c_.has_field("captures") ? c_["captures"] : json::array()) {
      const std::string site = capture["site"];
      const int64_t layer = capture["layer"];
      const std::string name = site + "." + std::to_string(layer);
      captures.push_back({.site = *models::site_of(site),
                          .layer = layer,
                          .out = results_.add(name, shape_of(name))});
    }
    for (const json& edit : c_.has_field("edits") ? c_["edits"] : json::array()) {
      using Action = models::Edit::Action;
      static const std::map<std::string, Action> kActions{{"set", Action::kSet},
                                                          {"add", Action::kAdd},
                                                          {"scale", Action::kScale},
                                                          {"replace", Action::kReplace}};
      models::Edit& to = edits.emplace_back();
      to.site = *models::site_of(edit["site"].get<std::string>());
      to.layer = edit["layer"];
      to.heads = list(edit, "heads");
      to.tokens = list(edit, "tokens");
      to.action = kActions.at(edit["action"]);
      to.factor = edit.value("factor", 1.0F);
      if (!edit.contains("value")) continue;
      values.push_back(Case::floats_of(tensors_.find(edit["value"].get<std::string>())));
      to.value = values.back().view();
    }
    models::ModelInputs in = inputs("input_ids");
    in.edits = edits;
    models::ModelOutputs out{.captures = captures};
    for (const char* name : {"logits", "last_hidden_state"}) {
      if (!c_.has_output(name)) continue;
      const Tensor to = results_.add(name, shape_of(name));
      (std::string(name) == "logits" ? out.logits : out.last_hidden_state) = to;
    }
    return model_.forward(in, out, context_);
  }

  Status lens() {
    models::Lens ignored;
    return models::lens(model_, inputs("input_ids"),
                        {.layers = c_["layers"].get<std::vector<int64_t>>(), .top = 3}, ignored,
                        results_.add("lens", shape_of("lens")), context_);
  }

  models::Metric metric() const {
    const json& metric = c_["metric"];
    return {
        .position = metric["position"], .token = metric["token_a"], .against = metric["token_b"]};
  }

  Status patch() {
    const models::ModelInputs clean = inputs("clean_ids"), corrupt = inputs("corrupt_ids");
    for (const auto& [name, site, by] : {std::tuple{"z", Site::kZ, models::By::kHead},
                                         {"resid_pre", Site::kResidPre, models::By::kPosition}}) {
      models::PartResults result;
      if (Status status =
              models::patch(model_, clean, corrupt, metric(), site, by, result, context_);
          !status.ok())
        return status;
      results_.set(name, result.values);
      results_.set("clean", {static_cast<float>(result.clean)});
      results_.set("corrupt", {static_cast<float>(result.corrupt)});
    }
    return {};
  }

  Status attribution() {
    const models::ModelInputs clean = inputs("clean_ids"), corrupt = inputs("corrupt_ids");
    models::PartResults result;
    if (Status status = models::attribution_patch(model_, clean, corrupt, metric(), Site::kZ,
                                                  models::By::kHead, true, result, context_);
        !status.ok())
      return status;
    results_.set("z", result.values);
    if (Status status = models::attribution_patch(model_, clean, corrupt, metric(), Site::kResidPre,
                                                  models::By::kPosition, false, result, context_);
        !status.ok())
      return status;
    results_.set("resid_pre", result.values);
    std::vector<models::GradientOutput> wanted;
    for (const json& gradient : c_["gradients"]) {
      const std::string site = gradient["site"];
      const std::string name = "gradient." + site + "." + gradient["layer"].dump();
      wanted.push_back({.site = *models::site_of(site),
                        .layer = gradient["layer"],
                        .out = results_.add(name, shape_of(name))});
    }
    return models::gradients(model_, clean, metric(), wanted, context_);
  }

  Status logit_attribution() {
    models::LogitAttribution result;
    if (Status status =
            models::logit_attribution(model_, inputs("input_ids"), metric(), result, context_);
        !status.ok())
      return status;
    results_.set("heads", result.heads);
    results_.set("mlp", result.mlp);
    results_.set("embedding", std::vector<float>{result.embedding});
    results_.set("rest", std::vector<float>{result.rest});
    results_.set("metric", std::vector<float>{result.metric});
    return {};
  }

  const Case& c_;
  const Safetensors& tensors_;
  const models::Model& model_;
  Context& context_;
  Results results_;
  std::deque<std::vector<int32_t>> ids_;
  std::vector<uint8_t> mask_;
};

}  // namespace

std::string run_lens_case(const Case& c, const Safetensors& tensors, const models::Model& model,
                          Context& context, double& worst) {
  return LensCase(c, tensors, model, context).run(worst);
}

}  // namespace multihead::conformance
