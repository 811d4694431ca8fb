#include "text/template/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/status_matchers.h"

namespace syncopate::text::chat {
namespace {

using Json = nlohmann::ordered_json;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;

std::string Golden(const std::string& name) {
  std::ifstream file(std::string(SYNCOPATE_GOLDEN_DIR "/") + name);
  return (std::ostringstream() << file.rdbuf()).str();
}

ChatRequest Question() {
  ChatRequest request;
  request.messages = {{{"role", "user"}, {"content", "Why?"}}};
  return request;
}

TEST(ChatFormatTest, RendersWithTheDirectorysSpecialTokens) {
  const auto format = ChatFormat::Parse(
      R"({"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>", "pad_token": null,
          "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token is defined }}"})",
      "");
  ASSERT_THAT(format, IsOk());
  EXPECT_EQ(format->Render(Question(), 0)->text, "<s>Why?</s>False");
}

TEST(ChatFormatTest, AFileOfItsOwnGoesBeforeTheConfiguration) {
  const auto format = ChatFormat::Parse(R"({"chat_template": "old"})", "new");
  ASSERT_THAT(format, IsOk());
  EXPECT_EQ(format->Render(Question(), 0)->text, "new");
}

TEST(ChatFormatTest, ToolsMayHaveATemplateOfTheirOwn) {
  const auto format = ChatFormat::Parse(
      R"({"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "{% unknown %}"},
                            {"name": "default", "template": "plain"}]})",
      "");
  ASSERT_THAT(format, IsOk());
  ChatRequest request = Question();
  EXPECT_EQ(format->Render(request, 0)->text, "plain");
  request.tools = Json::array();
  EXPECT_EQ(format->Render(request, 0)->text, "tools");
}

TEST(ChatFormatTest, GenerationPromptToolsAndOtherArgumentsReachTheTemplate) {
  const auto format = ChatFormat::Parse("", Golden("thinking.jinja"));
  ASSERT_THAT(format, IsOk());
  ChatRequest request = Question();
  EXPECT_EQ(format->Render(request, 0)->text, "[user]Why?[end]\n[assistant]");
  request.arguments["enable_thinking"] = false;
  EXPECT_EQ(format->Render(request, 0)->text, "[user]Why?[end]\n[assistant]<think>\n\n</think>\n\n");
  request.add_generation_prompt = false;
  EXPECT_EQ(format->Render(request, 0)->text, "[user]Why?[end]\n");
  const auto with_tools = ChatFormat::Parse("", Golden("tool_json.jinja"));
  ASSERT_THAT(with_tools, IsOk());
  request.tools = {{{"type", "function"}, {"function", {{"name", "look"}}}}};
  EXPECT_THAT(with_tools->Render(request, 0)->text,
              HasSubstr("\n{\"type\": \"function\", \"function\": {\"name\": \"look\"}}\n</tools>"));
}

TEST(ChatFormatTest, FindsWhetherATemplateKeepsPrefixes) {
  const auto keeps = ChatFormat::Parse("", Golden("tool_json.jinja"));
  ASSERT_THAT(keeps, IsOk());
  EXPECT_EQ(keeps->prefixes().tool_answer, true);
  EXPECT_EQ(keeps->prefixes().user_message, true);
  // The template drops the thoughts of earlier turns when the user goes on.
  const auto drops = ChatFormat::Parse("", Golden("thinking.jinja"));
  ASSERT_THAT(drops, IsOk());
  EXPECT_EQ(drops->prefixes().user_message, false);
  EXPECT_THAT(drops->prefixes().Describe(), HasSubstr("when the user goes on: no"));
  const auto refuses =
      ChatFormat::Parse("", "{% if messages|length > 2 %}{{ raise_exception('one turn') }}{% endif %}");
  ASSERT_THAT(refuses, IsOk());
  EXPECT_EQ(refuses->prefixes().tool_answer, std::nullopt);
  EXPECT_THAT(refuses->prefixes().Describe(), HasSubstr("refused by the template"));
}

TEST(ChatFormatTest, LoadsFromAModelDirectoryThroughLinks) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "chat_format";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_THAT(ChatFormat::Load(FileSystem::Real(), folder.string()), HasReason("NO_CHAT_TEMPLATE"));
  std::filesystem::create_symlink(SYNCOPATE_GOLDEN_DIR "/tool_json.jinja", folder / "chat_template.jinja");
  EXPECT_THAT(ChatFormat::Load(FileSystem::Real(), folder.string()), IsOk());
  std::ofstream(folder / "tokenizer_config.json") << "{";
  EXPECT_THAT(ChatFormat::Load(FileSystem::Real(), folder.string()), HasReason("BAD_JSON"));
}

TEST(ChatFormatTest, RefusesTemplatesOfAnotherForm) {
  for (const char* value : {"1", "{}", "[]", R"([{"name": "tool_use", "template": "x"}])"}) {
    EXPECT_THAT(ChatFormat::Parse(std::string(R"({"chat_template": )") + value + "}", ""), HasReason("BAD_TEMPLATE"))
        << value;
  }
  EXPECT_THAT(ChatFormat::Parse(R"({"chat_template": null})", ""), HasReason("NO_CHAT_TEMPLATE"));
}

}  // namespace
}  // namespace syncopate::text::chat
