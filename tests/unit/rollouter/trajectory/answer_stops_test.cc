#include "rollouter/trajectory/answer_stops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "rollouter/trajectory/group_assembly.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using SharedTokenizer = std::shared_ptr<const text::tokenizer::Tokenizer>;

// Tokens of one byte each, such as the two bytes of an "é", and tokens of several bytes.
SharedTokenizer ByteTokenizer() {
  constexpr char kJson[] = R"({
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<": 2, "/": 3, ">": 4, "Ã": 5, "©": 6, "ab": 7, "/ab": 8},
              "merges": [["a", "b"], ["/", "ab"]]},
    "added_tokens": [{"id": 9, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "decoder": {"type": "ByteLevel"}})";
  auto tokenizer = text::tokenizer::Tokenizer::Parse(kJson);
  EXPECT_THAT(tokenizer, IsOk());
  return tokenizer.ok() ? *tokenizer : nullptr;
}

// The place of the token that ends the answer; -1 if no token does.
int FindEnd(const std::string& json, const std::vector<int32_t>& answer) {
  const auto rules = MakeStopRules(json, ByteTokenizer(), 10);
  EXPECT_THAT(rules, IsOk());
  AnswerStops stops(&*rules, 1);
  for (size_t i = 0; i < answer.size(); ++i) {
    if (stops.Completes(0, answer[i])) return static_cast<int>(i);
  }
  return -1;
}

TEST(AnswerStopsTest, ATextEndsWithTheTokenThatCompletesItHoweverItIsCutIntoTokens) {
  EXPECT_EQ(FindEnd(R"(["</ab>"])", {0, 2, 8, 4, 0}), 3);
  EXPECT_EQ(FindEnd(R"(["</ab>"])", {0, 2, 3, 0, 1, 4}), 5);
  EXPECT_EQ(FindEnd(R"(["</a"])", {2, 8, 4}), 1) << "in the middle of a token";
  EXPECT_EQ(FindEnd(R"(["</ab>"])", {2, 3, 2, 8, 1, 4}), -1);
  EXPECT_EQ(FindEnd(R"(["bab"])", {1, 7, 7}), 1);
  EXPECT_EQ(FindEnd(R"(["aab", "ba"])", {7, 0, 0}), 1) << "the first stop counts";
}

TEST(AnswerStopsTest, ATextMayBeginInTheTokensOfAnEarlierLease) {
  const auto rules = MakeStopRules(R"(["</ab>"])", ByteTokenizer(), 10);
  ASSERT_THAT(rules, IsOk());
  Lease lease;
  lease.starts = {{{0, 2, 8}}};
  GroupAssembly assembly(
      lease, {}, [](absl::StatusOr<TrajectoryGroup>) {}, std::make_shared<TokenCount>(0), &*rules);
  EXPECT_FALSE(assembly.OnToken(0, 4, -0.5f, {1, 1}, {}));
}

TEST(AnswerStopsTest, CharactersOfSeveralTokensAndSpecialTokensAreText) {
  EXPECT_EQ(FindEnd(R"(["é"])", {0, 5, 6}), 2);
  EXPECT_EQ(FindEnd(R"(["aé"])", {5, 6, 0, 5, 6}), 4);
  EXPECT_EQ(FindEnd(R"(["<end>"])", {0, 9}), 1);
}

TEST(AnswerStopsTest, TokenIdsNeedNoText) {
  EXPECT_EQ(FindEnd("[7, 3]", {0, 1, 7}), 2);
  EXPECT_EQ(FindEnd(R"(["ab", 6])", {5, 6}), 1);
  EXPECT_EQ(FindEnd("", {0, 1, 2}), -1);
  const StopRules rules{.token_ids = {1}};
  AnswerStops stops(&rules, 2);
  EXPECT_TRUE(stops.Completes(1, 1));
}

TEST(AnswerStopsTest, EachSampleHasATextOfItsOwn) {
  const auto rules = MakeStopRules(R"(["ab"])", ByteTokenizer(), 10);
  ASSERT_THAT(rules, IsOk());
  AnswerStops stops(&*rules, 2);
  EXPECT_FALSE(stops.Completes(0, 0));
  EXPECT_FALSE(stops.Completes(1, 1));
  EXPECT_TRUE(stops.Completes(0, 1));
}

// Compared with a search of the whole text, for random answers.
TEST(AnswerStopsTest, FindsTheFirstStopThatTheWholeTextHolds) {
  const auto rules = MakeStopRules(R"(["ab/", "b<>a", "éa"])", ByteTokenizer(), 10);
  ASSERT_THAT(rules, IsOk());
  int64_t found = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::vector<int32_t> answer;
    int expected = -1, got = -1;
    AnswerStops stops(&*rules, 1);
    for (int i = 0; i < 12; ++i) {
      answer.push_back(static_cast<int32_t>(HashCombine(seed, static_cast<uint64_t>(i)) % 10));
      const std::string text = rules->tokenizer->Decode(answer, /*skip_special_tokens=*/false);
      for (const std::string& stop : rules->texts) {
        if (expected < 0 && text.find(stop) != std::string::npos) expected = i;
      }
      if (got < 0 && stops.Completes(0, answer.back())) got = i;
    }
    ASSERT_EQ(got, expected) << rules->tokenizer->Decode(answer, false);
    found += got >= 0;
  }
  EXPECT_GT(found, 100);
  EXPECT_LT(found, 1900);
}

TEST(StopRulesTest, SayWhatIsNoStop) {
  EXPECT_THAT(ParseStopRules(R"(["a", 5])")->texts, ElementsAre("a"));
  EXPECT_TRUE(ParseStopRules("")->empty());
  EXPECT_TRUE(ParseStopRules("[]")->empty());
  EXPECT_THAT(ParseStopRules("</answer>"), HasMessage(HasSubstr("JSON list")));
  for (const char* bad : {"{}", "[\"\"]", "[-1]", "[1.5]", "[null]", "[[1]]", "[4294967296]"}) {
    EXPECT_THAT(ParseStopRules(bad), HasReason("BAD_STOP")) << bad;
  }
  EXPECT_THAT(ParseStopRules(absl::StrCat("[\"", std::string(257, 'a'), "\"]")), HasReason("BAD_STOP"));
  EXPECT_THAT(ParseStopRules("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"), HasReason("BAD_STOP"));
  EXPECT_THAT(MakeStopRules("[10]", nullptr, 10), HasReason("BAD_STOP"));
  EXPECT_THAT(MakeStopRules("[9]", nullptr, 10), IsOk());
  EXPECT_THAT(MakeStopRules("[\"a\"]", nullptr, 10), HasReason("NO_TOKENIZER"));
}

}  // namespace
}  // namespace syncopate::rollouter
