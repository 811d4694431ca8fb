#include "rollouter/trajectory/turn_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using testing::HasReason;
using ::testing::HasSubstr;
using testing::IsOk;
using text::chat::ChatFormat;
using text::tokenizer::Tokenizer;

constexpr char kChatMl[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class TurnFormatTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<const TurnFormat>> Make(const std::string& jinja) {
    return TurnFormat::Create(tokenizer_, ChatFormat::Parse("", jinja).value(), {.end_token_ids = {end_}});
  }
  std::string Text(const std::vector<int32_t>& ids) const { return tokenizer_->Decode(ids, false); }
  std::vector<int32_t> Ids(const std::string& text) const { return tokenizer_->Encode(text, false).value(); }
  // What the model reads behind a turn.
  static std::vector<int32_t> All(const EnvironmentAnswer& answer) {
    std::vector<int32_t> all = answer.opening;
    all.insert(all.end(), answer.content.begin(), answer.content.end());
    all.insert(all.end(), answer.closing.begin(), answer.closing.end());
    return all;
  }

  const std::shared_ptr<const Tokenizer> tokenizer_ =
      Tokenizer::Load(FileSystem::Real(), SYNCOPATE_SOURCE_DIR "/tests/unit/text/tokenizer/golden/qwen2").value();
  const int32_t end_ = *tokenizer_->FindToken("<|im_end|>");
};

TEST_F(TurnFormatTest, AMessageStandsBehindATurnAsTheTemplateWritesIt) {
  const auto format = Make(kChatMl);
  ASSERT_THAT(format, IsOk());
  std::vector<int32_t> turn = Ids("7");
  turn.push_back(end_);
  const auto answer = (*format)->Encode({.text = "higher"}, turn);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(Text(answer->opening), "\n<|im_start|>user\n");
  EXPECT_EQ(Text(answer->content), "higher");
  EXPECT_EQ(Text(answer->closing), "<|im_end|>\n<|im_start|>assistant\n");
  // The tokens of the whole conversation, rendered and encoded at once.
  std::vector<int32_t> whole = Ids("<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n");
  whole.insert(whole.end(), turn.begin(), turn.end());
  const std::vector<int32_t> given = All(*answer);
  whole.insert(whole.end(), given.begin(), given.end());
  EXPECT_EQ(whole, Ids("<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n7<|im_end|>\n<|im_start|>user\nhigher"
                       "<|im_end|>\n<|im_start|>assistant\n"));
}

TEST_F(TurnFormatTest, ATurnThatWasCutOffIsEndedFirst) {
  const auto format = Make(kChatMl).value();
  EXPECT_EQ(Text(format->Encode({.text = "higher"}, Ids("7"))->opening), "<|im_end|>\n<|im_start|>user\n");
  EXPECT_EQ(Text(format->Encode({.text = "welcome"}, {})->opening), "<|im_end|>\n<|im_start|>user\n") << "of a reset";
}

TEST_F(TurnFormatTest, WhatTheTemplateStripsIsNotThere) {
  const auto format = Make(
      "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  ASSERT_THAT(format, IsOk());
  EXPECT_EQ(Text((*format)->Encode({.text = "  4\n"}, {end_})->content), "4");
  const std::string stubs = "stub-answer-5f1c stub-message-8d2e";
  EXPECT_EQ(Text((*format)->Encode({.text = stubs}, {end_})->content), stubs);
  EXPECT_TRUE((*format)->Encode({.text = ""}, {end_})->content.empty());
  EXPECT_EQ(Text((*format)->Encode({.text = "a\xffz"}, {end_})->content), "a\xef\xbf\xbdz");
}

// Such a template writes an answer otherwise once a message of the user follows it, so nothing is rendered again.
TEST_F(TurnFormatTest, ATemplateThatDropsEarlierThoughtsCanBeExtended) {
  const auto format = Make(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
      "{% elif m.role == 'assistant' %}<think>\n\n</think>\n\n{{ m.content }}{% else %}{{ m.content }}{% endif %}"
      "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  ASSERT_THAT(format, IsOk());
  EXPECT_EQ(Text(All(*(*format)->Encode({.text = "no"}, {end_}))),
            "\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n");
}

// Qwen's templates write results that follow each other as one message of the user.
constexpr char kWithTools[] =
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' }}{{ m.content }}{{ '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST_F(TurnFormatTest, ResultsOfToolsAreMessagesOfTheirRole) {
  const auto format = Make(kWithTools).value();
  EXPECT_EQ(Text(All(*format->Encode({.tool_results = {"17"}}, {end_}))),
            "\n<|im_start|>user\n<tool_response>\n17\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
  const auto two = format->Encode({.tool_results = {"17", ""}}, Ids("7"));
  ASSERT_THAT(two, IsOk());
  EXPECT_EQ(Text(All(*two)),
            "<|im_end|>\n<|im_start|>user\n<tool_response>\n17\n</tool_response>\n<tool_response>\n\n</tool_response>"
            "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Text(two->content), "17\n</tool_response>\n<tool_response>\n") << "what may be cut";
  EXPECT_EQ(Text(All(*format->Encode({.text = "no"}, {end_}))),
            "\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(TurnFormatTest, ATemplateWithoutResultsOfToolsSaysMessagesOfTheUserAlone) {
  const auto format = Make(
      "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
      "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  ASSERT_THAT(format, IsOk());
  EXPECT_THAT((*format)->Encode({.tool_results = {"17"}}, {end_}), HasReason("TEMPLATE_NOT_EXTENDABLE"));
  EXPECT_THAT((*format)->Encode({.text = "no"}, {end_}), IsOk());
}

TEST_F(TurnFormatTest, ATemplateThatCannotBeExtendedIsRefused) {
  for (const auto& [jinja, why] : std::vector<std::pair<std::string, std::string>>{
           {"<{{ messages[-1].role }}>{{ messages[-1].content }}", "does not write the answer before"},
           {"{% for m in messages %}{% if not loop.last %}{{ m.content }}{% endif %}{% endfor %}",
            "does not write a message of the role user behind an answer"},
           {"{% for m in messages %}{{ loop.index }} {{ m.content }}\n{% endfor %}", "depends on the turns before it"},
           {"{% if messages | length > 2 %}{{ raise_exception('one question alone') }}{% endif %}",
            "one question alone"}}) {
    const auto format = Make(jinja);
    EXPECT_THAT(format, HasReason("TEMPLATE_NOT_EXTENDABLE")) << jinja;
    EXPECT_THAT(std::string(format.status().message()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace syncopate::rollouter
