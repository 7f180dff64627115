// generate(): a session and a sampler, or a search with beams.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/error/error.h"
#include "models/generation_plan.h"
#include "multihead/models.h"

namespace multihead::models {
namespace {

Status search(const Model& model, std::span<const int32_t> prompt, const GenerateOptions& options,
              const std::function<bool(int32_t token)>& on_token, Context& context) {
  BeamSearch beams;
  MULTIHEAD_TRY(BeamSearch::create(model, prompt, options, beams, context));
  for (bool done = false; !done;) MULTIHEAD_TRY(beams.step(done, context));
  for (const int32_t token : beams.ids()) {
    if (on_token && !on_token(token)) break;
  }
  return {};
}

}  // namespace

Status generate(const Model& model, std::span<const int32_t> prompt, const GenerateOptions& options,
                const std::function<bool(int32_t token)>& on_token, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (options.num_beams != 1) return search(model, prompt, options, on_token, context);
    GenerationPlan plan;
    MULTIHEAD_TRY(plan_generation(model, prompt, options, plan));
    Session session;
    MULTIHEAD_TRY(Session::create(model, plan.session, session));
    const ModelInfo& info = model.info();
    if (info.has_encoder) MULTIHEAD_TRY(session.encode(prompt, options.source_edits, context));
    std::vector<float> numbers(static_cast<size_t>(info.vocab_size));
    const Tensor logits(numbers.data(), {info.vocab_size});
    const auto given = static_cast<int64_t>(plan.first.size());
    Sampler sampler(options.sampling, plan.rules, given, given + plan.most);
    std::span<const int32_t> next = plan.first;
    int32_t token = 0;
    for (int64_t count = 0; count < plan.most; ++count) {
      MULTIHEAD_TRY(session.append(next, logits, context));
      MULTIHEAD_TRY(sampler.choose(logits, session.ids(), token));
      next = {&token, 1};
      if (on_token && !on_token(token)) break;
      if (std::find(plan.stops.begin(), plan.stops.end(), token) != plan.stops.end()) break;
    }
    return {};
  });
}

}  // namespace multihead::models
