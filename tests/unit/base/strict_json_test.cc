#include "base/strict_json.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace syncopate {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;

TEST(StrictJsonTest, ParsesAnObject) {
  auto value = ParseStrictJson(R"({"a": [1, 2], "b": {"c": "d"}})", {});
  ASSERT_THAT(value, IsOk());
  EXPECT_EQ((*value)["b"]["c"], "d");
}

TEST(StrictJsonTest, RefusesWhatIsNotOneWellFormedObject) {
  for (const char* text : {"", "{", "[]", "1", "{} {}", "{\"a\": nan}", "{\"a\": 1,}", "{\"\xff\": 1}"}) {
    EXPECT_THAT(ParseStrictJson(text, {}), HasReason("BAD_JSON")) << text;
  }
}

TEST(StrictJsonTest, RefusesAKeyGivenTwiceInOneObjectOnly) {
  EXPECT_THAT(ParseStrictJson(R"({"a": 1, "b": 2, "a": 3})", {}), HasMessage(HasSubstr("'a' comes twice")));
  EXPECT_THAT(ParseStrictJson(R"({"x": {"a": 1}, "y": {"a": 1}})", {}), IsOk());
}

TEST(StrictJsonTest, CountsDepthFromTheOutermostValue) {
  EXPECT_THAT(ParseStrictJson(R"({"a": [[1]]})", {.max_depth = 3}), IsOk());
  EXPECT_THAT(ParseStrictJson(R"({"a": [[1]]})", {.max_depth = 2}), HasMessage(HasSubstr("deeper than 2")));
}

TEST(StrictJsonTest, StopsAtTheLimitInATextThatIsAllBrackets) {
  std::string text = "{\"a\":" + std::string(1 << 20, '[');
  EXPECT_THAT(ParseStrictJson(text, {}), HasMessage(HasSubstr("deeper")));
}

TEST(StrictJsonTest, RefusesATextOverItsLimitUnread) {
  EXPECT_THAT(ParseStrictJson("{}     ", {.max_bytes = 6}), HasMessage(HasSubstr("over the limit")));
}

TEST(StrictJsonTest, WritesNoTextThatIsNotUtf8) {
  EXPECT_EQ(DumpJson({{"a", 1}}).value(), R"({"a":1})");
  EXPECT_THAT(DumpJson({{"a", "\xff"}}), HasReason("BAD_JSON"));
}

}  // namespace
}  // namespace syncopate
