#include "trainer/data/text_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/data/text_files.h"

namespace syncopate::trainer {
namespace {

using Readiness = PromptSource::Readiness;
using ::testing::AllOf;
using testing::HasMessage;
using testing::HasReason;
using ::testing::HasSubstr;
using testing::IsOk;

class TextSourceTest : public ::testing::Test {
 protected:
  std::unique_ptr<TextSource> Open(const std::vector<std::string>& paths, const TextSource::Options& options = {}) {
    return TextSource::Create(options, files_.Rows(paths)).value();
  }
  // The text of the prompt; "skipped", or why there is none.
  static std::string Next(const PromptSource& source, const GroupId& group) {
    const Readiness readiness = source.Await(group);
    if (readiness == Readiness::kReady) return source.Render(source.At(group).prompt_ids);
    return readiness == Readiness::kUnusable ? "skipped" : source.failure().ToString();
  }

  TextFiles files_;
};

TEST_F(TextSourceTest, GivesEachRowOfAPassOnceAndTheSameAgain) {
  const std::string path = files_.WriteRows("a", 50);
  const auto source = Open({path}, {.seed = 3}), again = Open({path}, {.seed = 3});
  EXPECT_EQ(source->prompts_per_pass(), 50);
  std::set<std::string> seen;
  for (int64_t pass = 0; pass < 2; ++pass) {
    seen.clear();
    for (int64_t i = 0; i < 50; ++i) {
      const std::string text = Next(*source, {pass, i});
      seen.insert(text);
      EXPECT_EQ(text, Next(*again, {pass, i}));
    }
    EXPECT_EQ(seen.size(), 50u);
  }
}

TEST_F(TextSourceTest, ACallerThatAsksTooEarlyIsCalledWhenThePromptIsThere) {
  const auto source = Open({files_.WriteRows("a", 50)});
  Mailbox<bool> called;
  source->SetListener([&called] { called.Put(true); });
  if (source->CheckReadiness({0, 7}) != Readiness::kReady) {
    ASSERT_TRUE(called.WaitFor(1));
  }
  EXPECT_EQ(source->CheckReadiness({0, 7}), Readiness::kReady);
  source->SetListener(nullptr);
}

TEST_F(TextSourceTest, ReadsAheadOfItsCallersWithinItsRoom) {
  const auto source = Open({files_.WriteRows("a", 500)}, {.ahead = 16});
  for (int64_t i = 0; i < 500; ++i) EXPECT_THAT(Next(*source, {0, i}), HasSubstr("a "));
}

TEST_F(TextSourceTest, APromptThatWasGivenCanBeAskedForAgain) {
  const auto source = Open({files_.WriteRows("a", 50)}, {.ahead = 4});
  std::vector<std::string> first;
  for (int64_t i = 0; i < 20; ++i) first.push_back(Next(*source, {0, i}));
  for (const int64_t i : {19, 3, 0, 11}) EXPECT_EQ(Next(*source, {0, i}), first[i]);
  EXPECT_EQ(Next(*source, {0, 20}), Next(*Open({files_.Path("a")}), {0, 20}));
}

// The order after a restore: prompts that were put back, then new ones much later in the file. The rows that were read
// between them must not occupy the room for ever.
TEST_F(TextSourceTest, GoesOnFarAheadWithoutHoldingWhatWasPassedOver) {
  const auto source = Open({files_.WriteRows("a", 100)}, {.ahead = 8});
  Next(*source, {0, 3});
  for (int64_t i = 0; i < 100; ++i) EXPECT_THAT(Next(*source, {7, i}), HasSubstr("a "));
  // All prompts were read ahead: the last one was ready before it was asked for.
  EXPECT_THAT(Next(*source, {8, 0}), HasSubstr("a "));
}

TEST_F(TextSourceTest, BadRowsAreSkippedInTheirTurn) {
  const std::string path =
      files_.Write("rows", "{\"prompt\": \"good\"}\n{\"prompt\": 7}\nno json\n{\"prompt\": \"\\ud800\"}\n");
  const auto source = Open({path});
  std::multiset<std::string> seen;
  for (int64_t i = 0; i < 4; ++i) seen.insert(Next(*source, {0, i}));
  EXPECT_EQ(seen, (std::multiset<std::string>{"good", "skipped", "skipped", "skipped"}));
  EXPECT_THAT(source->failure(), IsOk());
}

TEST_F(TextSourceTest, ABadRowEndsTheRunInItsTurnIfThatIsWanted) {
  const std::string path = files_.Write("rows", "{\"prompt\": \"good\"}\n{\"prompt\": 7}\n");
  const auto source = Open({path}, {.bad_rows_end_run = true});
  std::vector<std::string> seen = {Next(*source, {0, 0}), Next(*source, {0, 1})};
  EXPECT_THAT(source->failure(), AllOf(HasReason("BAD_DATA_ROW"), HasMessage(HasSubstr("rows:2"))));
  EXPECT_EQ(source->CheckReadiness({0, 0}), Readiness::kComing);
}

TEST_F(TextSourceTest, APassWithoutAGoodRowIsAFailure) {
  const auto source = Open({files_.Write("rows", "1\n2\n3\n")});
  for (int64_t i = 0; i < 12 && source->failure().ok(); ++i) Next(*source, {i / 3, i % 3});
  EXPECT_THAT(source->failure(), AllOf(HasReason("NO_ROWS"), HasMessage(HasSubstr("rows:"))));
}

TEST_F(TextSourceTest, AFileThatIsChangedIsAFailureAndItsListenerHears) {
  const std::string path = files_.WriteRows("a", 50);
  const auto source = Open({path}, {.ahead = 2});
  EXPECT_THAT(Next(*source, {0, 0}), HasSubstr("a "));
  Mailbox<bool> called;
  // The listener may still be called for the row before.
  source->SetListener([&called, &source] {
    if (!source->failure().ok()) called.Put(true);
  });
  files_.WriteRows("a", 51);
  source->CheckReadiness({3, 0});
  ASSERT_TRUE(called.WaitFor(1));
  EXPECT_THAT(source->failure(), AllOf(HasReason("DATA_FILE_CHANGED"), HasMessage(HasSubstr(path))));
  EXPECT_EQ(source->Await({0, 1}), Readiness::kComing);  // the call does not block
  source->SetListener(nullptr);
}

TEST_F(TextSourceTest, AWeightThatLeavesNoRowIsRefused) {
  TextRows rows = files_.Rows({files_.WriteRows("a", 2)});
  rows.files[0].weight = 0.1;
  EXPECT_THAT(TextSource::Create({}, rows), HasReason("NO_ROWS"));
}

TEST_F(TextSourceTest, ChosenPromptsAreAFixedFewOfTheGoodRows) {
  const std::string path = files_.Write(
      "rows", "{\"prompt\": \"a\"}\n1\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n2\n{\"prompt\": \"d\"}\n");
  const TextRows rows = files_.Rows({path});
  const auto three = ChosenPrompts::Read({.seed = 9, .prompts = 3}, rows).value();
  const auto all = ChosenPrompts::Read({.seed = 9, .prompts = 300}, rows).value();
  ASSERT_EQ(three->size(), 3);
  ASSERT_EQ(all->size(), 4);
  std::set<std::string> seen;
  for (int64_t i = 0; i < 4; ++i) {
    const GroupId group{PromptSource::kEvaluationPass, i};
    if (i < 3) {
      EXPECT_EQ(three->At(group).prompt_ids, all->At(group).prompt_ids);
    }
    seen.insert(all->Render(all->At(group).prompt_ids));
  }
  EXPECT_EQ(seen, (std::set<std::string>{"a", "b", "c", "d"}));
  EXPECT_THAT(ChosenPrompts::Read({.bad_rows_end_run = true, .prompts = 300}, rows), HasMessage(HasSubstr("rows:")));
  EXPECT_THAT(ChosenPrompts::Read({}, files_.Rows({files_.Write("bad", "1\n")})), HasReason("NO_ROWS"));
}

TEST_F(TextSourceTest, APromptSaysWhichFileAndDataSourceItIsFrom) {
  const std::string path = files_.Write("rows", "{\"prompt\": \"a\", \"data_source\": \"gsm8k\"}\n");
  const std::string other = files_.Write("other", "{\"prompt\": \"a\", \"data_source\": {\"name\": 3}}\n");
  const std::string none = files_.Write("none", "{\"prompt\": \"a\", \"data_source\": null}\n");
  const auto source_of = [this](const std::string& file) {
    const Prompt prompt = ChosenPrompts::Read({}, files_.Rows({file})).value()->At({PromptSource::kEvaluationPass, 0});
    EXPECT_EQ(prompt.origin.file, file);
    return prompt.origin.data_source;
  };
  EXPECT_EQ(source_of(path), "gsm8k");
  EXPECT_EQ(source_of(other), "{\"name\":3}");
  EXPECT_EQ(source_of(none), "");
}

TEST_F(TextSourceTest, RendersPlainTextWithoutSpecialTokens) {
  const std::string path = files_.Write("rows", "{\"prompt\": \"<|im_start|>user Why?<|im_end|>\"}\n");
  const auto chosen = ChosenPrompts::Read({}, files_.Rows({path})).value();
  const std::vector<int32_t> ids = chosen->At({PromptSource::kEvaluationPass, 0}).prompt_ids;
  EXPECT_EQ(chosen->Render(ids), "<|im_start|>user Why?<|im_end|>");
  EXPECT_EQ(chosen->RenderPlain(ids), "user Why?");
}

}  // namespace
}  // namespace syncopate::trainer
