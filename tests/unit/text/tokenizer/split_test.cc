#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/philox.h"
#include "base/utf8.h"
#include "tests/support/status_matchers.h"
#include "text/tokenizer/split_pattern.h"
#include "text/tokenizer/split_scanner.h"

namespace syncopate::text::tokenizer {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> MakePieces(const std::string& text, const std::vector<Piece>& pieces) {
  std::vector<std::string> parts;
  for (const Piece piece : pieces) parts.push_back(text.substr(piece.begin, piece.end - piece.begin));
  return parts;
}

std::vector<std::string> SplitBy(const std::string& pattern, const std::string& text) {
  auto compiled = SplitPattern::Parse(pattern);
  EXPECT_THAT(compiled, IsOk());
  std::vector<Piece> pieces;
  int64_t steps = SplitPattern::StepsFor(text.size());
  EXPECT_THAT(compiled->Split(text, {0, static_cast<uint32_t>(text.size())}, &steps, &pieces), IsOk());
  return MakePieces(text, pieces);
}

TEST(SplitPatternTest, GivesMatchesAndWhatLiesBetween) {
  EXPECT_THAT(SplitBy("b+", "abbac"), ElementsAre("a", "bb", "ac"));
  EXPECT_THAT(SplitBy(kGpt2, "It's 12  x"), ElementsAre("It", "'s", " 12", " ", " x"));
}

TEST(SplitPatternTest, UnderstandsWhatPatternsOfModelsAreMadeOf) {
  EXPECT_THAT(SplitBy("(?i:'S|k)", "a'\u017F\u212Ab"), ElementsAre("a", "'\u017F", "\u212A", "b"));
  EXPECT_THAT(SplitBy("x{2,3}", "xxxxx"), ElementsAre("xxx", "xx"));
  EXPECT_THAT(SplitBy("[一-龥]+", "a中文b"), ElementsAre("a", "中文", "b"));
  EXPECT_THAT(SplitBy(R"([\-\]x]+|\p{Lu})", "-]xAb"), ElementsAre("-]x", "A", "b"));
  EXPECT_THAT(SplitBy("a(?:b|bc)?d", "abcdad"), ElementsAre("abcd", "ad"));
  EXPECT_THAT(SplitBy("a++b|a(?=c)", "aabac"), ElementsAre("aab", "a", "c"));
}

TEST(SplitPatternTest, NamesWhatItDoesNotUnderstand) {
  for (const char* pattern :
       {"(a+)+",    "(ab)*",  "a*?",           "^a",           "a$",        R"(\bword)", "(?<=a)b",
        "(?P<n>a)", "[a&&b]", "[[:alpha:]]",   R"(\p{Greek})", "a**",       "*a",        "(a",
        "a)",       "[a",     R"(\x{110000})", "a{3,2}",       "a{1,2000}", R"(\)"}) {
    EXPECT_THAT(SplitPattern::Parse(pattern), HasReason("UNSUPPORTED_TOKENIZER")) << pattern;
  }
  EXPECT_THAT(SplitPattern::Parse(std::string(100, '(') + std::string(100, ')')), HasMessage(HasSubstr("nested")));
  EXPECT_THAT(SplitPattern::Parse(std::string(500, 'a')), HasMessage(HasSubstr("too many parts")));
  EXPECT_THAT(SplitPattern::Parse(std::string(5000, 'a')), HasMessage(HasSubstr("4,096")));
}

TEST(SplitPatternTest, APatternThatTakesTooLongIsAnErrorInsteadOfAHang) {
  auto pattern = SplitPattern::Parse("a*a*a*a*a*a*b");
  ASSERT_THAT(pattern, IsOk());
  const std::string text(2000, 'a');
  std::vector<Piece> pieces;
  int64_t steps = SplitPattern::StepsFor(text.size());
  EXPECT_THAT(pattern->Split(text, {0, 2000}, &steps, &pieces), HasReason("TEXT_TOO_COSTLY"));
  EXPECT_LT(steps, 0);
}

TEST(SplitScannerTest, CutsAsThePatternDoes) {
  const std::vector<std::string> parts = {
      " ",  "  ",  "\n", "\r\n", "\t",      "a", "B",  "é", "e\u0301", "\u0939\u093f", "1",      "23", "²",  "中",
      "'s", "'LL", "'",  "'x",   "'\u017F", "!", "->", "_", "👍",       ".\n",          "\u00A0", "7 ", " '", "\u180E"};
  for (const char* expression : {kGpt2, kLlama3}) {
    const auto scanner = SplitScanner::Recognise(expression);
    const auto pattern = SplitPattern::Parse(expression);
    ASSERT_TRUE(scanner.has_value());
    ASSERT_THAT(pattern, IsOk());
    for (uint64_t i = 0; i < 3000; ++i) {
      std::string text;
      for (const uint32_t random : Philox4x32(7, i))
        text += parts[random % parts.size()] + parts[random / 64 % parts.size()];
      const Piece all{0, static_cast<uint32_t>(text.size())};
      std::vector<Piece> scanned, matched;
      scanner->Split(text, all, &scanned);
      int64_t steps = SplitPattern::StepsFor(text.size());
      ASSERT_THAT(pattern->Split(text, all, &steps, &matched), IsOk());
      ASSERT_EQ(MakePieces(text, scanned), MakePieces(text, matched)) << text;
    }
  }
}

}  // namespace
}  // namespace syncopate::text::tokenizer
