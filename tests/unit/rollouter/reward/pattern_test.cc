#include "rollouter/reward/pattern.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace syncopate::rollouter {
namespace {

TEST(PatternTest, GivesTheLastMatchAndItsFirstGroup) {
  EXPECT_EQ(Pattern::Compile("\\d+")->LastMatch("a 1 b 22 c"), "22");
  EXPECT_EQ(Pattern::Compile("=(\\d+)")->LastMatch("x=1 y=22;"), "22");
  EXPECT_EQ(Pattern::Compile("x(\\d)?")->LastMatch("x1 x"), "x") << "a group that took no part";
  EXPECT_EQ(Pattern::Compile("z")->LastMatch("abc"), std::nullopt);
  EXPECT_EQ(Pattern::Compile("a*")->LastMatch("bb"), "") << "an empty match is one, and ends";
}

TEST(PatternTest, KnowsCharactersNotBytes) {
  EXPECT_TRUE(Pattern::Compile("^.$")->MatchesAll("\u00e9"));
  EXPECT_EQ(Pattern::Compile("\\w+")->LastMatch("\u00e9t\u00e9!"), "\u00e9t\u00e9");
  EXPECT_EQ(Pattern::Compile("")->LastMatch("\u00e9\u00e9"), "");
}

TEST(PatternTest, TextThatIsCutInACharacterIsSearchedAroundIt) {
  EXPECT_EQ(Pattern::Compile("\\d+")->LastMatch("\xc3 12 \xff"), "12");
  EXPECT_FALSE(Pattern::Compile(".*")->MatchesAll("ab\xff"));
}

TEST(PatternTest, AMatchBeyondTheLimitsIsNoneAndTakesNoTime) {
  const Pattern pattern = Pattern::Compile("(a+)+b").value();
  const absl::Time begin = Clock::Real()->Now();
  EXPECT_EQ(pattern.LastMatch(std::string(50'000, 'a')), std::nullopt);
  EXPECT_FALSE(pattern.MatchesAll(std::string(50'000, 'a')));
  EXPECT_FALSE(Pattern::Compile("(?:a|b|c|d)*?z")->MatchesAll(std::string(900'000, 'a')));
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(10));
}

TEST(PatternTest, WhatIsNoPatternIsRefusedWithItsPlace) {
  const absl::Status bad = Pattern::Compile("a(b").status();
  EXPECT_EQ(ErrorReason(bad), "BAD_PATTERN");
  EXPECT_NE(bad.message().find("byte 3"), absl::string_view::npos) << bad;
  EXPECT_EQ(ErrorReason(Pattern::Compile("\\C").status()), "BAD_PATTERN") << "\\C would match half a character";
}

}  // namespace
}  // namespace syncopate::rollouter
