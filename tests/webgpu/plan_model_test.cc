// Plans of passes of the golden models: kernels run in the tests of bindings/src/gpu/.
#include "webgpu/plan_model.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/golden_models.h"
#include "models/parameters.h"
#include "models/sites.h"
#include "multihead/kv_cache.h"
#include "webgpu/model_buffers.h"
#include "webgpu/plan_attention.h"
#include "webgpu/plan_checks.h"

namespace multihead::plan_model_test {
namespace {

using models::Model;
using models::Output;
using models::Site;

// A pass of a model, with the operands of its plan.
struct PlannedPass {
  webgpu::Plan plan;
  std::vector<uint64_t> operands;
  size_t given = 0;
};

class Planned {
 public:
  explicit Planned(const Model& model) : model_(*Model::Internals::of(model)), buffers_(model_) {}

  const models::ModelInfo& info() const { return model_.info; }

  // `caches`: empty, or of a session.
  PlannedPass plan(int64_t tokens, std::vector<KVCache>& caches, bool captures,
                   const webgpu::Device& device) const {
    std::vector<int32_t> ids(static_cast<size_t>(tokens), 5);
    models::Pass pass{.inputs = {.ids = ids},
                      .tokens = tokens,
                      .caches = caches,
                      .in_session = !caches.empty(),
                      .end_layer = info().num_layers,
                      .only_token = caches.empty() ? -1 : tokens - 1};
    std::vector<models::Capture> wanted;
    for (int site = 0; captures && site < models::kSites; ++site) {
      const auto each = static_cast<Site>(site);
      if (!models::check_site(model_, "site", each).ok()) continue;
      models::Capture capture{.site = each, .layer = site % info().num_layers};
      Dims shape = models::shape_of(model_, pass, each).shape;
      const int axis = models::shape_of(model_, pass, each).head_axis;
      if (axis > 0) {
        capture.heads = {shape[axis] - 1};
        shape[axis] = 1;
      }
      capture.out = {nullptr, shape};
      wanted.push_back(capture);
    }
    pass.captures = wanted;
    const bool logits =
        info().output == Output::kLanguageModel || info().output == Output::kMaskedLanguageModel;
    PlannedPass made;
    for (uint32_t buffer = 0; buffer < buffers_.count(); ++buffer) {
      made.operands.push_back(buffers_.words(buffer));
    }
    for (const KVCache& cache : caches) {
      const auto rows = static_cast<uint64_t>(cache.config().num_kv_heads *
                                              cache.config().head_dim * cache.config().capacity);
      made.operands.insert(made.operands.end(), 2, rows);
    }
    // Keys and values of a cache are not read before they are written, but its buffer is.
    made.given = made.operands.size();
    const auto rows = static_cast<uint64_t>(caches.empty() ? tokens : 1);
    made.operands.push_back(rows * static_cast<uint64_t>(info().embed_dim));
    if (logits) made.operands.push_back(rows * static_cast<uint64_t>(info().vocab_size));
    for (const models::Capture& capture : wanted) {
      made.operands.push_back(static_cast<uint64_t>(capture.out.shape.elements()));
    }
    const Status status = webgpu::plan_model(
        model_, buffers_, {.pass = pass, .state = true, .logits = logits}, device, made.plan);
    EXPECT_TRUE(status.ok()) << status.message();
    return made;
  }

  std::vector<KVCache> caches(int64_t capacity) const {
    std::vector<KVCache> made(static_cast<size_t>(info().num_layers));
    for (KVCache& cache : made) {
      const Status status = webgpu::create_cache({.num_kv_heads = info().num_kv_heads,
                                                  .head_dim = info().head_dim,
                                                  .value_dim = info().head_dim,
                                                  .capacity = capacity},
                                                 cache);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return made;
  }

 private:
  const Model::Internals& model_;
  webgpu::ModelBuffers buffers_;
};

void check(const PlannedPass& pass, const webgpu::Device& device) {
  testing::check_plan(pass.plan, pass.operands, pass.given, device);
}

TEST(ModelPlan, GoldenModelsStayInBounds) {
  // With short bindings, which matrices are cut for, but not so short that values are refused.
  webgpu::Device narrow;
  narrow.binding_bytes = 1 << 14;
  const webgpu::Device device;
  int planned = 0;
  std::vector<KVCache> none;
  for (const auto& folder :
       std::filesystem::directory_iterator(std::string(MULTIHEAD_CONFORMANCE_FOLDER) + "/models")) {
    if (!std::filesystem::exists(folder.path() / "config.json")) continue;
    const std::string name = folder.path().filename().string();
    SCOPED_TRACE(name);
    const Model model = testing::open_golden(name);
    if (!webgpu::check_model(*Model::Internals::of(model)).ok()) continue;
    ++planned;
    const Planned plans(model);
    for (const int64_t tokens : {1, 7, 15}) {
      for (const bool captures : {false, true})
        check(plans.plan(tokens, none, captures, device), device);
    }
    if (plans.info().output != Output::kLanguageModel) continue;
    std::vector<KVCache> caches = plans.caches(32);
    for (const int64_t tokens : {9, 1, 3}) check(plans.plan(tokens, caches, false, device), device);
    EXPECT_EQ(caches.front().length(0), 13);
    check(plans.plan(1, none, false, narrow), narrow);
  }
  EXPECT_GE(planned, 65);
}

TEST(ModelPlan, ATokenTakesFewDispatches) {
  const webgpu::Device device;
  // Norm and product, heads, keys with values, attention, its parts, product and sum, norm and
  // gate and up, product and sum.
  struct Count {
    const char* model;
    size_t layer, other;
  };
  for (const Count& each : {Count{"llama3", 8, 4}, Count{"gpt2", 8, 5}, Count{"qwen3", 8, 4}}) {
    const Model model = testing::open_golden(each.model);
    const Planned plans(model);
    std::vector<KVCache> caches = plans.caches(32);
    EXPECT_EQ(plans.plan(1, caches, false, device).plan.dispatches.size(),
              static_cast<size_t>(plans.info().num_layers) * each.layer + each.other)
        << each.model;
  }
}

TEST(ModelPlan, SaysWhyAModelStaysOnTheCpu) {
  for (const char* name : {"bart", "vit", "deberta_v3"}) {
    const Model model = testing::open_golden(name);
    const Status status = webgpu::check_model(*Model::Internals::of(model));
    EXPECT_EQ(status.code(), StatusCode::kOption) << name;
  }
}

}  // namespace
}  // namespace multihead::plan_model_test
