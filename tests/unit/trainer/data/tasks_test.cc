#include "trainer/data/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

std::unique_ptr<PromptSource> MustMake(const std::string& name, int64_t length = 4, int64_t alphabet = 8,
                                       uint64_t seed = 1) {
  auto task = MakeTask({.name = name, .length = length, .alphabet = alphabet, .seed = seed});
  EXPECT_TRUE(task.ok()) << task.status();
  return *std::move(task);
}

std::vector<int32_t> GetSymbols(const Prompt& prompt) {
  return {prompt.prompt_ids.begin() + 1, prompt.prompt_ids.end() - 1};
}

std::vector<int32_t> GetAnswer(const Prompt& prompt) {
  return {prompt.answer_ids.begin(), prompt.answer_ids.end() - 1};
}

TEST(TaskTest, PromptIsBosSymbolsSepAndAnswerEndsWithEos) {
  auto task = MustMake("reverse");
  for (int64_t i = 0; i < 50; ++i) {
    Prompt prompt = task->At({0, i});
    ASSERT_EQ(prompt.prompt_ids.size(), 6u);
    EXPECT_EQ(prompt.prompt_ids.front(), 8);
    EXPECT_EQ(prompt.prompt_ids.back(), 9);
    EXPECT_EQ(prompt.answer_ids.back(), 10);
    EXPECT_THAT(GetSymbols(prompt), ::testing::Each(::testing::AllOf(::testing::Ge(0), ::testing::Lt(8))));
  }
  EXPECT_EQ(task->vocab_size(), 11);
  EXPECT_THAT(task->stop_token_ids(), ElementsAre(10));
  EXPECT_EQ(task->max_prompt_tokens(), 6);
  EXPECT_EQ(task->max_answer_tokens(), 5);
}

TEST(TaskTest, GuessHidesItsNumberInTheRow) {
  auto task = MustMake("guess");
  std::set<std::string> rows;
  for (int64_t i = 0; i < 400; ++i) {
    const Prompt prompt = task->At({0, i});
    EXPECT_THAT(prompt.prompt_ids, ElementsAre(32, 33)) << "all prompts are the same";
    ASSERT_EQ(prompt.answer_ids.size(), 2u);
    EXPECT_EQ(prompt.answer_ids[1], 34);
    EXPECT_EQ(prompt.task.row_json, absl::StrCat("{\"ground_truth\": ", prompt.answer_ids[0] + 1, "}"));
    EXPECT_EQ(prompt.task, task->At({0, i}).task);
    rows.insert(prompt.task.row_json);
  }
  EXPECT_EQ(rows.size(), 32u);
  EXPECT_EQ(task->vocab_size(), 38);
  EXPECT_THAT(task->stop_token_ids(), ElementsAre(34));
  EXPECT_EQ(task->Render({32, 33, 15, 34, 35, 33, 23, 34, 36, 37, 38}), "? 16 . higher ? 24 . lower no number ?");
}

TEST(TaskTest, AnswersAreRight) {
  for (int64_t i = 0; i < 20; ++i) {
    Prompt reversed = MustMake("reverse")->At({0, i});
    std::vector<int32_t> symbols = GetSymbols(reversed);
    EXPECT_THAT(GetAnswer(reversed), ElementsAreArray(symbols.rbegin(), symbols.rend()));
    Prompt copied = MustMake("copy")->At({0, i});
    EXPECT_EQ(GetAnswer(copied), GetSymbols(copied));
    Prompt sorted = MustMake("sort")->At({0, i});
    EXPECT_THAT(GetAnswer(sorted), ::testing::WhenSorted(ElementsAreArray(GetAnswer(sorted))));
    EXPECT_THAT(GetAnswer(sorted), ::testing::UnorderedElementsAreArray(GetSymbols(sorted)));
  }
}

TEST(TaskTest, AddsTwoNumbersWithLeadingZeros) {
  auto task = MustMake("add", /*length=*/3);
  auto number = [](std::vector<int32_t>::const_iterator begin, int digits) {
    int value = 0;
    for (int i = 0; i < digits; ++i) value = 10 * value + *(begin + i);
    return value;
  };
  for (int64_t i = 0; i < 100; ++i) {
    Prompt prompt = task->At({0, i});
    ASSERT_EQ(prompt.prompt_ids.size(), 8u);
    ASSERT_EQ(prompt.answer_ids.size(), 5u);
    EXPECT_EQ(number(prompt.prompt_ids.begin() + 1, 3) + number(prompt.prompt_ids.begin() + 4, 3),
              number(prompt.answer_ids.begin(), 4));
  }
  EXPECT_EQ(task->vocab_size(), 13);
  EXPECT_EQ(task->max_answer_tokens(), 5);
}

TEST(TaskTest, PromptDependsOnSeedPassAndOrdinalAlone) {
  auto task = MustMake("reverse", 16, 26, 7);
  EXPECT_EQ(task->At({0, 5}).prompt_ids, MustMake("reverse", 16, 26, 7)->At({0, 5}).prompt_ids);
  std::set<std::vector<int32_t>> all = {
      task->At({0, 5}).prompt_ids, task->At({1, 5}).prompt_ids, task->At({0, 6}).prompt_ids,
      MustMake("reverse", 16, 26, 8)->At({0, 5}).prompt_ids, task->At({PromptSource::kEvaluationPass, 5}).prompt_ids};
  EXPECT_EQ(all.size(), 5u);
}

TEST(TaskTest, SymbolsAreUniform) {
  auto task = MustMake("copy", 5, 8);
  std::vector<int> counts(8);
  for (int64_t i = 0; i < 8000; ++i) {
    for (int32_t symbol : GetSymbols(task->At({0, i}))) ++counts[symbol];
  }
  EXPECT_THAT(counts, ::testing::Each(::testing::AllOf(::testing::Gt(4700), ::testing::Lt(5300))));
}

TEST(TaskTest, RendersForPeople) {
  auto letters = MustMake("reverse");
  EXPECT_EQ(letters->Render({8, 0, 3, 2, 7, 9}), "adch ->");
  EXPECT_EQ(letters->Render({7, 2, 3, 0, 10}), "hcda.");
  EXPECT_EQ(letters->Render({11, -1}), "??");
  auto add = MustMake("add", 2);
  EXPECT_EQ(add->Render({10, 1, 2, 3, 4, 11}), "12 + 34 =");
  EXPECT_EQ(add->Render({0, 4, 6, 12}), "046.");
}

TEST(TaskTest, NamesTheTasksThereAreWhenOneIsUnknown) {
  auto task = MakeTask({.name = "revers"});
  EXPECT_EQ(ErrorReason(task.status()), "UNKNOWN_TASK");
  EXPECT_THAT(std::string(task.status().message()), ::testing::HasSubstr("reverse, copy, sort, add"));
  EXPECT_EQ(ErrorReason(MakeTask({.length = 0}).status()), "BAD_OPTIONS");
  EXPECT_EQ(ErrorReason(MakeTask({.alphabet = 1}).status()), "BAD_OPTIONS");
}

}  // namespace
}  // namespace syncopate::trainer
