#include "rollouter/reward/math_verdict.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/philox.h"
#include "rollouter/reward/math_value.h"

namespace syncopate::rollouter {
namespace {

struct Case {
  const char* expected;
  const char* given;
};

TEST(MathVerdictTest, SaysYesToTheSameInAnotherForm) {
  for (const Case& c : std::vector<Case>{{"\\frac{1}{2}", "0.5"},
                                         {"1,000", "1000"},
                                         {"2\\sqrt{2}", "\\sqrt8"},
                                         {"\\sqrt{2}-1", "\\frac{1}{1+\\sqrt{2}}"},
                                         {"2\\pi", "\\frac{4\\pi}{2}"},
                                         {"\\frac{3}{2}", "1\\frac12"},
                                         {"x = 5", "5"},
                                         {"\\text{Paris}", "Paris"},
                                         {"5 \\text{ cm}", "5"},
                                         {"90^\\circ", "90"},
                                         {"50\\%", "0.5"},
                                         {"50", "50\\%"},
                                         {"1, 2 \\text{ and } 3", "\\{3, 2, 1\\}"},
                                         {"(-\\infty, \\frac{4}{2}]", "\\left(-\\infty,2\\right]"},
                                         {"\\sqrt[3]{27}", "3"},
                                         {"10^{-2}", "0.01"}}) {
    EXPECT_EQ(CompareMath(c.expected, c.given), Verdict::kYes) << c.expected << " and " << c.given;
  }
}

TEST(MathVerdictTest, SaysNoToWhatIsSomethingElse) {
  for (const Case& c : std::vector<Case>{{"\\frac{1}{2}", "0.3"},
                                         {"1/3", "0.33"},
                                         {"(1,2)", "(2,1)"},
                                         {"[1,2]", "(1,2)"},
                                         {"\\{1,2\\}", "\\{1,2,3\\}"},
                                         {"\\pi", "3.14"},
                                         {"2", "2,3"},
                                         {"(2,\\infty)", "(-\\infty,2)"},
                                         {"5", ""}}) {
    EXPECT_EQ(CompareMath(c.expected, c.given), Verdict::kNo) << c.expected << " and " << c.given;
  }
}

TEST(MathVerdictTest, IsUndecidedWhereItCannotBeCertain) {
  for (const Case& c : std::vector<Case>{{"x^2+1", "1+x^2"},
                                         {"\\frac{1}{3}", "0.333333"},
                                         {"1/2\\pi", "\\frac{\\pi}{2}"},
                                         {"5\\text{ million}", "5000000"},
                                         {"(1,2)", "\\{1,2\\}"},
                                         {"2^{1000}", "2^{1001}"},
                                         {"\\text{blue}", "5"},
                                         {"1 2", "12"},
                                         {"(1,000)", "1000"},
                                         {"10^{40}", "1"},
                                         {"\\frac{1}{0}", "0"},
                                         {"\\sqrt{-1}", "1"}}) {
    EXPECT_EQ(CompareMath(c.expected, c.given), Verdict::kUndecided) << c.expected << " and " << c.given;
  }
}

// The pairs come from tests/golden/math/make_pairs.py. math-verify computes with floats and guesses at words where our
// reward is undecided.
TEST(MathVerdictTest, IsOfOneMindWithMathVerifyWhereverItIsCertain) {
  std::ifstream file(SYNCOPATE_SOURCE_DIR "/tests/golden/math/pairs.tsv");
  int certain = 0, all = 0;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    ASSERT_EQ(columns.size(), 3u) << line;
    ++all;
    const Verdict verdict = CompareMath(columns[0], columns[1]);
    if (verdict == Verdict::kUndecided) continue;
    ++certain;
    EXPECT_EQ(verdict == Verdict::kYes ? "yes" : "no", columns[2]) << columns[0] << " and " << columns[1];
  }
  EXPECT_GE(all, 500);
  EXPECT_GE(certain, all * 3 / 4);
}

TEST(MathVerdictTest, TakesNoTimeForWhatIsMadeToTakeLong) {
  const absl::Time begin = Clock::Real()->Now();
  std::string boxes, powers = "2", roots = "3";
  for (int i = 0; i < 20'000; ++i) boxes += "\\boxed{";
  for (int i = 0; i < 300; ++i) powers = absl::StrCat("(", powers, ")");
  for (int i = 0; i < 60; ++i) roots = absl::StrCat("\\sqrt{", roots, "}");
  EXPECT_EQ(LastBoxed(boxes), std::nullopt);
  EXPECT_EQ(CompareMath(powers, "2"), Verdict::kUndecided);
  EXPECT_EQ(CompareMath(roots, "2"), Verdict::kUndecided);
  EXPECT_EQ(CompareMath("(" + std::string(3000, '('), "2"), Verdict::kUndecided);
  EXPECT_EQ(CompareMath("\\sqrt{9999999967}", "(1+\\sqrt{2}+\\sqrt{3}+\\sqrt{5})^{512}"), Verdict::kUndecided);
  EXPECT_FALSE(FinalNumber(std::string(1'000'000, '-')).has_value());
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(5));
}

// This test is for the sanitizers: a policy may write anything.
TEST(MathVerdictTest, IsTheSameBothWaysForWhateverIsWritten) {
  const std::vector<std::string> pieces = {
      "\\frac", "{", "}",        "1",    "23",  ".5",   "\\sqrt",  "[",     "]",      "(",       ")", ",",
      "^",      "-", "+",        "\\pi", "\\{", "\\}",  "\\text{", "x=",    "%",      "\\infty", " ", "\\",
      "/",      "*", "\\boxed{", "####", "$",   "\xff", "\u00e9",  "1,000", "\\left", "000"};
  constexpr uint64_t kSeed = 15;
  uint64_t draw = 0;
  auto text = [&] {
    std::string made;
    const double length = 12 * PhiloxUniform(kSeed, draw++);
    for (double i = 0; i < length; ++i) {
      made += pieces[static_cast<size_t>(PhiloxUniform(kSeed, draw++) * static_cast<double>(pieces.size()))];
    }
    return made;
  };
  for (int i = 0; i < 20'000; ++i) {
    const std::string a = text(), b = text();
    if (NormalizeMath(a).empty() || NormalizeMath(b).empty()) continue;
    EXPECT_EQ(CompareMath(a, b), CompareMath(b, a)) << a << " and " << b;
    EXPECT_EQ(CompareMath(a, a), Verdict::kYes) << a;
    LastBoxed(a + b);
    FinalNumber(a + b);
  }
}

TEST(MathVerdictTest, FindsTheLastBoxThatIsClosed) {
  EXPECT_EQ(LastBoxed("\\boxed{1} \\fbox{2}"), "2");
  EXPECT_EQ(LastBoxed("\\boxed {\\frac{1}{2}} and \\boxed{3"), "\\frac{1}{2}");
  EXPECT_EQ(LastBoxed("\\boxed{\\{1\\}}"), "\\{1\\}");
  EXPECT_EQ(LastBoxed("boxed{1}"), std::nullopt);
}

TEST(MathVerdictTest, FindsTheFinalNumber) {
  EXPECT_EQ(FinalNumber("2 apples and 3.50 dollars."), "3.50");
  EXPECT_EQ(FinalNumber("#### 1,234 of 5"), "1234");
  EXPECT_EQ(FinalNumber("it is -.5"), "-0.5");
  EXPECT_EQ(FinalNumber("x-3"), "3");
  EXPECT_EQ(FinalNumber("none"), std::nullopt);
  EXPECT_TRUE(SameNumber("7.0", "7"));
  EXPECT_FALSE(SameNumber("7.01", "7"));
}

}  // namespace
}  // namespace syncopate::rollouter
