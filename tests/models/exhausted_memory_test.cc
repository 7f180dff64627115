// Sessions of models while the n-th memory request fails.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/golden_models.h"
#include "multihead/models.h"
#include "support/allocations.h"
#include "support/exhaustion.h"

namespace multihead {
namespace {

// phi3_long computes all keys again (LongRoPE), and mistral's ring caches overwrite tokens.
TEST(ExhaustedMemory, SessionsAreUnchanged) {
  for (const char* name : {"phi3_long", "mistral", "llama3"}) {
    const models::Model model = testing::open_golden(name);
    const int64_t vocabulary = model.info().vocab_size;
    std::vector<int32_t> ids(70);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>((i * 37 + 9) % static_cast<size_t>(vocabulary));
    }
    for (const auto& [before, piece] : {std::pair<size_t, size_t>{8, 4}, {64, 3}, {9, 1}}) {
      testing::expect_survives_exhaustion(name, [&]() -> testing::Attempt {
        auto session = std::make_shared<models::Session>();
        auto logits = std::make_shared<std::vector<float>>(static_cast<size_t>(vocabulary));
        auto own = std::make_shared<Context>(1);
        EXPECT_TRUE(models::Session::create(model, {.capacity = 80}, *session).ok());
        EXPECT_TRUE(session->append(std::span(ids).first(before), {}, *own).ok());
        const auto next = std::span(ids).subspan(before, piece);
        return {.call =
                    [=] {
                      return session->append(next, {logits->data(), {vocabulary}}, *own);
                    },
                .result = [=] { return testing::bits_of(*logits); },
                .state = [=] { return testing::bits_of(session->ids()); }};
      });
    }
  }
}

TEST(ExhaustedMemory, SessionsWithASourceAreUnchanged) {
  for (const char* name : {"t5_seq2seq", "m2m_100"}) {
    const models::Model model = testing::open_golden(name);
    const int64_t vocabulary = model.info().vocab_size;
    const std::vector<int32_t> source = {5, 9, 30, 41, 12}, ids = {7, 20, 33, 8};
    testing::expect_survives_exhaustion(name, [&]() -> testing::Attempt {
      auto session = std::make_shared<models::Session>();
      auto logits = std::make_shared<std::vector<float>>(static_cast<size_t>(vocabulary));
      auto own = std::make_shared<Context>(1);
      EXPECT_TRUE(models::Session::create(model, {.capacity = 20}, *session).ok());
      EXPECT_TRUE(session->encode(source, {}, *own).ok());
      // The keys and values of the source are computed here.
      return {.call =
                  [=] {
                    return session->append(ids, {logits->data(), {vocabulary}}, *own);
                  },
              .result = [=] { return testing::bits_of(*logits); },
              .state = [=] { return testing::bits_of(session->ids()); }};
    });
    testing::expect_survives_exhaustion(name, [&]() -> testing::Attempt {
      auto session = std::make_shared<models::Session>();
      auto own = std::make_shared<Context>(1);
      EXPECT_TRUE(models::Session::create(model, {.capacity = 20}, *session).ok());
      return {.call = [=] { return session->encode(source, {}, *own); },
              .result = [=] { return testing::bits_of(session->ids()); },
              .state = [=] { return testing::bits_of(session->ids()); }};
    });
  }
}

}  // namespace
}  // namespace multihead
