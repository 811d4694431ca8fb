#include "trainer/data/prompt_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/data/text_files.h"

namespace syncopate::trainer {
namespace {

using testing::HasMessage;
using testing::HasReason;
using ::testing::HasSubstr;
using testing::IsOk;

PromptRow MakeRow(const std::string& line) { return ParsePromptRow(line, {}, 1 << 20).value(); }

// Returns the prompt's ids decoded to text, or the error.
std::string Written(const PromptWriter& writer, const std::string& line) {
  const auto prompt = writer.Write(MakeRow(line), nullptr);
  return prompt.ok() ? writer.tokenizer().Decode(prompt->prompt_ids, false) : prompt.status().ToString();
}

constexpr char kText[] = R"({"prompt": "Why?", "answer": "So."})";
constexpr char kChat[] = R"({"prompt": [{"role": "user", "content": "Why?"}]})";
constexpr char kWithSystem[] =
    R"({"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Why?"}]})";

TEST(PromptWriterTest, WithoutATemplateATextStandsAsItIsAndAConversationIsRefused) {
  const TextFiles files;
  EXPECT_EQ(Written(*files.Writer(), kText), "Why?");
  EXPECT_THAT(files.Writer()->Write(MakeRow(kChat), nullptr), HasReason("NO_CHAT_TEMPLATE"));
  EXPECT_EQ(Written(*files.Writer({.system_prompt = "Q: "}), kText), "Q: Why?");
}

TEST(PromptWriterTest, ATemplateWritesConversationsAndTexts) {
  const TextFiles files;
  files.WriteTemplate();
  EXPECT_EQ(Written(*files.Writer(), kChat), "<user>Why?\n<assistant>");
  EXPECT_EQ(Written(*files.Writer(), kText), "<user>Why?\n<assistant>");
  EXPECT_EQ(Written(*files.Writer({.use_chat_template = false}), kText), "Why?");
  EXPECT_EQ(Written(*files.Writer({.chat_arguments = {{"enable_thinking", true}}}), kText),
            "<user>Why?\n<assistant thinks>");
  const auto with_system = files.Writer({.system_prompt = "Be brief."});
  EXPECT_EQ(Written(*with_system, kText), "<system>Be brief.\n<user>Why?\n<assistant>");
  EXPECT_EQ(Written(*with_system, kWithSystem), "<system>S\n<user>Why?\n<assistant>");
}

TEST(PromptWriterTest, AnswersEndWithTheFirstStopToken) {
  const TextFiles files;
  const auto writer = files.Writer({.stop_token_ids = {3, 4}, .with_answer_ids = true});
  const auto prompt = writer->Write(MakeRow(kText), nullptr);
  ASSERT_THAT(prompt, IsOk());
  std::vector<int32_t> expected = writer->tokenizer().Encode("So.", false).value();
  expected.push_back(3);
  EXPECT_EQ(prompt->answer_ids, expected);
  EXPECT_THAT(prompt->task.row_json, HasSubstr("\"ground_truth\":\"So.\""));
  EXPECT_TRUE(files.Writer()->Write(MakeRow(kText), nullptr)->answer_ids.empty());
  EXPECT_TRUE(writer->Write(MakeRow(R"({"prompt": "x"})"), nullptr)->answer_ids.empty());
}

TEST(PromptWriterTest, ResponsesAreTheAnswerOrAFieldOfTheirOwnAndEndWithTheFirstStopToken) {
  const TextFiles files;
  const auto writer = files.Writer({.stop_token_ids = {3, 4}, .with_response_ids = true});
  auto expect = [&](const PromptRow& row, const std::string& text) {
    const auto prompt = writer->Write(row, nullptr);
    ASSERT_THAT(prompt, IsOk());
    std::vector<int32_t> expected = writer->tokenizer().Encode(text, false).value();
    expected.push_back(3);
    EXPECT_EQ(prompt->response_ids, expected);
    EXPECT_TRUE(prompt->answer_ids.empty());
  };
  expect(MakeRow(kText), "So.");
  const char* const with_text = R"({"prompt": "Why?", "answer": "So.", "text": "Because."})";
  expect(MakeRow(with_text), "So.");
  expect(ParsePromptRow(with_text, {.response = "text"}, 1 << 20).value(), "Because.");
  EXPECT_THAT(ParsePromptRow(kText, {.response = "text"}, 1 << 20), HasMessage(HasSubstr("data.response_field")));
  EXPECT_TRUE(files.Writer()->Write(MakeRow(kText), nullptr)->response_ids.empty());
}

TEST(PromptWriterTest, RefusesResponsesThatCannotBeLearned) {
  const TextFiles files;
  const auto writer = files.Writer({.stop_token_ids = {3}, .with_response_ids = true, .max_response_tokens = 3});
  EXPECT_THAT(writer->Write(MakeRow(R"({"prompt": "x"})"), nullptr), HasReason("NO_RESPONSE"));
  EXPECT_THAT(writer->Write(MakeRow(R"({"prompt": "x", "answer": "0 1 2 3 4"})"), nullptr),
              HasMessage(HasSubstr("rollout.max_new_tokens")));
  EXPECT_THAT(files.Writer({.with_response_ids = true})->Write(MakeRow(R"({"prompt": "x", "answer": ""})"), nullptr),
              HasReason("NO_RESPONSE"));
}

constexpr char kTurns[] =
    R"({"prompt": "2+2?", "answer": [{"role": "assistant", "content": "add 2 2"}, {"role": "tool", "content": "4"},)"
    R"( {"role": "assistant", "content": "Four."}]})";

// A writer for a model whose turns end with an end token, and that token.
std::pair<std::shared_ptr<const PromptWriter>, int32_t> WriterOfTurns(const TextFiles& files,
                                                                      int64_t max_response_tokens = 0) {
  files.Write("chat_template.jinja",
              "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>\n{% endfor %}"
              "{% if add_generation_prompt %}<assistant>{% endif %}");
  const int32_t end = files.Writer()->tokenizer().Encode("<|im_end|>", false).value().at(0);
  return {
      files.Writer({.stop_token_ids = {end}, .with_response_ids = true, .max_response_tokens = max_response_tokens}),
      end};
}

TEST(PromptWriterTest, OfAResponseOfSeveralTurnsThoseOfTheAssistantAreTaught) {
  const TextFiles files;
  const auto [writer, end] = WriterOfTurns(files);
  const auto prompt = writer->Write(MakeRow(kTurns), nullptr);
  ASSERT_THAT(prompt, IsOk());
  const auto text = [&writer = *writer](const std::vector<int32_t>& ids) {
    return writer.tokenizer().Decode(ids, false);
  };
  EXPECT_EQ(text(prompt->prompt_ids), "<user>2+2?<|im_end|>\n<assistant>");
  const std::vector<int32_t>& ids = prompt->response_ids;
  EXPECT_EQ(text(ids), "add 2 2<|im_end|>\n<tool>4<|im_end|>\n<assistant>Four.<|im_end|>");
  EXPECT_EQ(ids.back(), end);
  ASSERT_EQ(prompt->response_given.size(), 1u);
  const TokenRange given = prompt->response_given[0];
  EXPECT_EQ(text({ids.begin() + given.begin, ids.begin() + given.end}), "\n<tool>4<|im_end|>\n<assistant>");
  const TrajectoryGroup group = SupervisedGroup({}, *prompt);
  EXPECT_EQ(group.samples[0].given, prompt->response_given);
}

TEST(PromptWriterTest, OtherListsAreTheJsonTextThatTheyWere) {
  const TextFiles files;
  const auto [writer, end] = WriterOfTurns(files);
  const auto prompt = writer->Write(MakeRow(R"({"prompt": "x", "answer": [1, 2]})"), nullptr);
  ASSERT_THAT(prompt, IsOk());
  std::vector<int32_t> expected = writer->tokenizer().Encode("[1,2]", false).value();
  expected.push_back(end);
  EXPECT_EQ(prompt->response_ids, expected);
  EXPECT_TRUE(prompt->response_given.empty());
}

TEST(PromptWriterTest, RefusesTurnsThatCannotBeTaught) {
  const TextFiles files;
  const auto [writer, end] = WriterOfTurns(files);
  auto row = [](const std::string& turns) {
    return MakeRow(absl::StrCat(R"({"prompt": "x", "answer": )", turns, "}"));
  };
  const std::string answer = R"({"role": "assistant", "content": "a"})", tool = R"({"role": "tool", "content": "t"})";
  for (const std::string& turns :
       {absl::StrCat("[", tool, "]"), absl::StrCat("[", tool, ",", answer, "]"),
        absl::StrCat("[", answer, ",", tool, "]"), absl::StrCat("[", answer, ",", answer, "]")}) {
    EXPECT_THAT(writer->Write(row(turns), nullptr), HasReason("BAD_RESPONSE")) << turns;
  }
  const auto [brief, same_end] = WriterOfTurns(files, /*max_response_tokens=*/3);
  EXPECT_THAT(brief->Write(MakeRow(kTurns), nullptr), HasReason("RESPONSE_TOO_LONG"));
  // The template shows only the last message.
  files.Write("chat_template.jinja", "<{{ messages[-1].role }}>{{ messages[-1].content }}<|im_end|>");
  EXPECT_THAT(files.Writer({.stop_token_ids = {end}, .with_response_ids = true})->Write(MakeRow(kTurns), nullptr),
              HasReason("BAD_RESPONSE"));
}

TEST(PromptWriterTest, RefusesPromptsThatNoModelTakes) {
  const TextFiles files;
  EXPECT_THAT(files.Writer()->Write(MakeRow(R"({"prompt": ""})"), nullptr), HasReason("EMPTY_PROMPT"));
  EXPECT_THAT(files.Writer({.max_prompt_tokens = 2})->Write(MakeRow(R"({"prompt": "0 1 2 3 4"})"), nullptr),
              HasMessage(HasSubstr("data.max_prompt_tokens")));
  EXPECT_THAT(files.Writer({.vocab_size = 1})->Write(MakeRow(kText), nullptr), HasReason("TOKEN_OUTSIDE_MODEL"));
}

TEST(PromptWriterTest, ATemplateThatCannotBeReadIsAnErrorAtOnce) {
  const TextFiles files;
  files.Write("chat_template.jinja", "{% include 'x' %}");
  EXPECT_FALSE(PromptWriter::Load(FileSystem::Real(), files.folder(), {}).ok());
  EXPECT_THAT(PromptWriter::Load(FileSystem::Real(), files.folder(), {.use_chat_template = false}), IsOk());
  EXPECT_THAT(PromptWriter::Load(FileSystem::Real(), "/nowhere", {}), HasReason("NO_SUCH_FILE"));
}

PromptRow TooledRow() {
  return ParsePromptRow(R"({"prompt": "Why?", "tools": [{"type": "function", "function": {"name": "look"}}]})",
                        {.environment = "desk"}, 1 << 20)
      .value();
}

TEST(PromptWriterTest, TheTemplateShowsTheToolsOfARow) {
  const TextFiles files;
  files.Write("chat_template.jinja",
              "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
              "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
              "{% if add_generation_prompt %}<assistant>{% endif %}");
  const auto writer = files.Writer();
  const auto prompt = writer->Write(TooledRow(), nullptr);
  ASSERT_THAT(prompt, IsOk());
  EXPECT_EQ(writer->tokenizer().Decode(prompt->prompt_ids, false), "[look]<user>Why?\n<assistant>");
  EXPECT_EQ(Written(*files.Writer(), kText), "<user>Why?\n<assistant>");
}

TEST(PromptWriterTest, ToolsThatTheTemplateDoesNotShowAreABadRow) {
  const TextFiles files;
  EXPECT_THAT(files.Writer()->Write(TooledRow(), nullptr), HasReason("NO_CHAT_TEMPLATE"));
  files.WriteTemplate();
  const auto prompt = files.Writer()->Write(TooledRow(), nullptr);
  EXPECT_THAT(prompt, HasReason("TOOLS_NOT_SHOWN"));
  EXPECT_THAT(prompt, HasMessage(HasSubstr("does not show the tool look")));
}

}  // namespace
}  // namespace syncopate::trainer
