#include "services/endpoint/reasoning.h"

#include <gtest/gtest.h>

#include <string>

namespace syncopate::endpoint {
namespace {

// The thoughts and the answer of a text that comes in parts of 1, 2, 7 and 1000 bytes, as "thoughts|answer".
void ExpectSplit(Reasoning reasoning, const std::string& text, const std::string& expected) {
  for (const size_t size : {1, 2, 7, 1000}) {
    ReasoningParser parser(reasoning);
    std::string thoughts, answer;
    const auto take = [&](const ReasoningParser::Parts& parts) {
      thoughts += parts.thoughts;
      answer += parts.answer;
    };
    for (size_t i = 0; i < text.size(); i += size) take(parser.Add(text.substr(i, size)));
    take(parser.End());
    EXPECT_EQ(thoughts + "|" + answer, expected) << size << " bytes at once";
  }
}

TEST(ReasoningTest, ThoughtsStandBetweenTheirMarksBeforeTheAnswer) {
  ExpectSplit(Reasoning::kAtStart, "<think>\nLet me see.\n\nYes.\n</think>\n\nIt is 4.\n",
              "Let me see.\n\nYes.|It is 4.\n");
  ExpectSplit(Reasoning::kAtStart, "\n <think>a < b </thin </think>c", "a < b </thin|c");
  ExpectSplit(Reasoning::kAtStart, "<think>\n\n</think>\n\nIt is 4.", "|It is 4.");
}

TEST(ReasoningTest, AfterAPromptThatHasOpenedThemThoughtsComeFirst) {
  ExpectSplit(Reasoning::kBegun, "\nLet me see.\n</think>\n\nIt is 4.", "Let me see.|It is 4.");
}

TEST(ReasoningTest, ThoughtsThatNeverCloseAreAllThereIs) {
  ExpectSplit(Reasoning::kBegun, "and so on", "and so on|");
  ExpectSplit(Reasoning::kAtStart, "<think>and </think", "and </think|");
}

TEST(ReasoningTest, MarksLaterInTheAnswerAreText) {
  ExpectSplit(Reasoning::kAtStart, "It is <think>4</think>.", "|It is <think>4</think>.");
  ExpectSplit(Reasoning::kAtStart, "<think>x</think>y <think>z</think>", "x|y <think>z</think>");
  ExpectSplit(Reasoning::kAtStart, " <thin", "| <thin");
  ExpectSplit(Reasoning::kNone, "<think>x</think>y", "|<think>x</think>y");
}

TEST(ReasoningTest, TheTemplateAndThePromptSayWhatToExpect) {
  EXPECT_EQ(FindReasoning("{{ content.split('</think>') }}"), Reasoning::kAtStart);
  EXPECT_EQ(FindReasoning("{{ messages }}"), Reasoning::kNone);
  EXPECT_EQ(ReasoningAfter(Reasoning::kAtStart, "<|im_start|>assistant\n<think>\n"), Reasoning::kBegun);
  EXPECT_EQ(ReasoningAfter(Reasoning::kAtStart, "<|im_start|>assistant\n<think>\n\n</think>\n\n"), Reasoning::kAtStart);
  EXPECT_EQ(ReasoningAfter(Reasoning::kNone, "<think>"), Reasoning::kNone);
}

}  // namespace
}  // namespace syncopate::endpoint
