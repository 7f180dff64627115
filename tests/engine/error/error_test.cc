#include "engine/error/error.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "multihead/status.h"

namespace multihead {
namespace {

using engine::Axes;
using engine::Message;
using engine::Name;

constexpr Message kMessages[] = {
#define MULTIHEAD_MESSAGE(name, ...) Message::name,
#include "engine/error/messages.inc"
};

TEST(Status, IsEmptyWhenOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.record(), nullptr);
  EXPECT_EQ(status.argument() + status.expected() + status.got() + status.message(), "");
}

TEST(Status, SaysWhatItWasMadeOf) {
  const Status status(StatusCode::kFormat, "a {name}", "{0} of {them", "none}");
  EXPECT_EQ(status.code(), StatusCode::kFormat);
  EXPECT_EQ(status.argument(), "a {name}");
  EXPECT_EQ(status.message(), "a {name}: expected {0} of {them, got none}");
}

TEST(Status, ShowsWordsInPrintableForm) {
  const std::string huge(1'000'000, 'x');
  const Status words(StatusCode::kFormat, "a\u202Eb\n", "c\xFF", "d\x1B[2J");
  EXPECT_EQ(words.message(), "a\\u202eb\\u000a: expected c\\xff, got d\\u001b[2J");
  EXPECT_LT(Status(StatusCode::kFormat, huge, huge, huge).message().size(), 13'000U);
  const auto got = [](const std::string& text) {
    return engine::text_error(StatusCode::kOption, Name::kTraceWanted, Message::kTraceName, text)
        .got();
  };
  EXPECT_EQ(got("\u2028y\xC3"), "\\u2028y\\xc3");
  EXPECT_LT(got(huge).size(), 5'000U);
}

TEST(Status, CopiesAndMovesKeepTheError) {
  Status copy;
  {
    const Status status = engine::option_error(Name::kNumHeads, Message::kDivisorOfEmbedDim, 12, 5);
    copy = status;
    const Status second = copy;
    EXPECT_EQ(second.message(), status.message());
  }
  EXPECT_EQ(copy.message(),
            "num_heads: expected a divisor of embed_dim = 12 (1, 2, 3, 4, 6 or 12), got 5");
  const Status moved = std::move(copy);
  EXPECT_EQ(moved.argument(), "num_heads");
  copy = Status();
  EXPECT_TRUE(copy.ok());
}

TEST(Status, OutOfMemorySaysHowMuchWasAskedFor) {
  const Status some = Status::out_of_memory(48), unknown = Status::out_of_memory();
  EXPECT_EQ(some.message(), "memory: there are no 48 bytes of memory left to allocate");
  EXPECT_EQ(unknown.message(),
            "memory: there is not enough memory left to allocate");
  EXPECT_EQ(some.code(), StatusCode::kMemory);
  EXPECT_EQ(unknown.code(), StatusCode::kMemory);
  // Makes a second error while the first exists, and a third after both.
  { EXPECT_EQ(Status::out_of_memory(64).expected(), "64 bytes"); }
  EXPECT_EQ(some.expected(), "48 bytes");
  EXPECT_EQ(Status::out_of_memory(80).expected(), "80 bytes");
}

TEST(Error, FillsInShapesNumbersAndNames) {
  EXPECT_EQ(engine::shape_error(Name::kK, Message::kKeysAsQueries, Axes::kK, {2, 4, 5, 8},
                                {2, 2, 7, 9}, 2, 8)
                .message(),
            "k: expected (B, H_kv, N_k, d_k) with B = 2, d_k = 8 as in q (2, 4, 5, 8), got (2, 2, "
            "7, 9)");
  EXPECT_EQ(engine::shape_error(Name::kX, Message::kRank3Or2, Axes::kStepX, {}, {3}, 1).message(),
            "x: expected rank 3, (B, n, embed_dim), or rank 2 without a batch, got rank 1, (3)");
  EXPECT_EQ(engine::shape_error(Name::kV, Message::kDtypeOfKeys, 1, 2).message(),
            "v: expected the element type of k, f16, got bf16");
  EXPECT_EQ(engine::text_error(StatusCode::kShape, Name::kStateDict, Message::kParameters,
                               "missing: {0}", 4)
                .message(),
            "state_dict: expected the 4 parameters of this module, got missing: {0}");
}

TEST(Error, NamesNumbersThatAreNone) {
  const auto got = [](double real) {
    return engine::real_error(Name::kScale, Message::kFinite, real).got();
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(got(std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(got(kInfinity), "infinity");
  EXPECT_EQ(got(-kInfinity), "-infinity");
  EXPECT_EQ(got(-0.5), "-0.5");
  EXPECT_EQ(got(double{0.1F}), "0.1");
}

TEST(Error, ListsDivisors) {
  const auto expected = [](int64_t of) {
    return engine::option_error(Name::kNumHeads, Message::kDivisorOfNumHeads, of, 0).expected();
  };
  EXPECT_EQ(expected(1), "a divisor of num_heads = 1 (1)");
  EXPECT_EQ(expected(7), "a divisor of num_heads = 7 (1 or 7)");
  EXPECT_EQ(expected(16), "a divisor of num_heads = 16 (1, 2, 4, 8 or 16)");
}

TEST(Error, EveryMessageSaysWhatWasExpectedAndWhatCame) {
  for (const Message message : kMessages) {
    if (message == Message::kWords) continue;
    const Status status =
        engine::text_error(StatusCode::kOption, Name::kX, message, "some text", 1);
    EXPECT_NE(status.expected(), "");
    EXPECT_NE(status.got(), "");
    EXPECT_EQ(status.message().find_first_of("{}"), std::string::npos) << status.message();
  }
}

TEST(Error, IsRenamedWhereTheArgumentIsThatOne) {
  const Status status = engine::shape_error(Name::kX, Message::kExact, Axes::kRows, {2, 3}, {2, 4});
  EXPECT_EQ(engine::renamed(status, Name::kX, Name::kTokens).message(),
            "tokens: expected (rows, width) = (2, 3), got (2, 4)");
  EXPECT_EQ(engine::renamed(status, Name::kY, Name::kTokens).message(), status.message());
  EXPECT_TRUE(engine::renamed({}, Name::kX, Name::kTokens).ok());
}

}  // namespace
}  // namespace multihead
