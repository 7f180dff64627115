// Tests how errors write the numbers of config.json.
#include "models/config_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "multihead/models.h"
#include "support/random_case.h"

namespace multihead {
namespace {

std::string printed(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.10g", number);
  return text;
}

TEST(ConfigReader, NumbersOfErrorsAreThoseOfPrintf) {
  for (const double number :
       {0.0,    1.0,          -1.0,          10.0,         0.1,      1e-4,        9.9999e-5,
        1e-5,   9999999999.0, 1e10,          9999999999.6, -2.5e-7,  1e100,       1e-300,
        5e-324, 1.7e308,      0.99999999999, 1048576.0,    500000.0, 4294967296.5}) {
    EXPECT_EQ(models::text_of(number), printed(number));
  }
  EXPECT_EQ(models::text_of(NAN), "NaN");
  EXPECT_EQ(models::text_of(-std::numeric_limits<double>::infinity()), "-infinity");
}

TEST(ConfigReader, NumbersOfErrorsAreThoseOfPrintfOnRandomCalls) {
  for (const uint64_t seed : testing::random_seeds(50)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::Random random(seed);
    for (int i = 0; i < 100; ++i) {
      // Few digits, at which rounding to ten never decides.
      const auto digits = static_cast<double>(random.integer(-999999, 999999));
      const double number = digits * std::pow(10.0, static_cast<double>(random.integer(-30, 30)));
      EXPECT_EQ(models::text_of(number), printed(number));
    }
  }
}

TEST(ConfigReader, NullIsZeroOnlyWhereTheRangeSaysSo) {
  const models::Config config = {{"n", {}}};
  models::ConfigReader reader(config, "");
  EXPECT_EQ(reader.integer("n", 5, {.null_is_zero = true}), 0);
  EXPECT_EQ(reader.number("n", 5, {.null_is_zero = true}), 0);
  EXPECT_FALSE(reader.flag("n", true));
  EXPECT_TRUE(reader.status().ok());
  EXPECT_EQ(reader.integer("n", 5, {}), 5);
  EXPECT_EQ(reader.status().message(),
            "config.json: n: expected an integer from 1 to 1048576, got null");
  models::ConfigReader numbers(config, ""), texts(config, "");
  EXPECT_EQ(numbers.number("n", 5, {}), 5);
  EXPECT_EQ(numbers.status().got(), "null");
  EXPECT_EQ(texts.text("n", "absent"), "absent");
  EXPECT_EQ(texts.status().got(), "null");
}

}  // namespace
}  // namespace multihead
