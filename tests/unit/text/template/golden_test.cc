// Compares templates and expressions with the output of Jinja (scripts/chat_template_reference.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/template_cases.h"

namespace syncopate::testing {
namespace {

using ::testing::Gt;
using ::testing::IsEmpty;

TEST(ChatTemplateGoldenTest, ConversationsRenderAsWithJinja) {
  const auto comparison = CompareTemplates(SYNCOPATE_GOLDEN_DIR "/cases.jsonl", SYNCOPATE_GOLDEN_DIR);
  ASSERT_THAT(comparison, IsOk());
  EXPECT_THAT(comparison->differences, IsEmpty());
  EXPECT_THAT(comparison->cases - comparison->refused, Gt(40));
}

TEST(ChatTemplateGoldenTest, ExpressionsGiveWhatJinjaGives) {
  const auto comparison = CompareTemplates(SYNCOPATE_GOLDEN_DIR "/expressions.jsonl", SYNCOPATE_GOLDEN_DIR);
  ASSERT_THAT(comparison, IsOk());
  EXPECT_THAT(comparison->differences, IsEmpty());
  EXPECT_THAT(comparison->refused, Gt(5));
}

}  // namespace
}  // namespace syncopate::testing
