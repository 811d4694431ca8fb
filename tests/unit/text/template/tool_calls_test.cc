#include "text/template/tool_calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace syncopate::text::chat {
namespace {

// The text and the calls of an answer that comes in parts of `size` bytes, as "text|name(arguments)|...".
std::string Parsed(ToolFormat format, const std::string& answer, size_t size) {
  static const auto texts =
      std::make_shared<const TextParameters>(TextParameters{{"look", {"at"}}, {"other", {"count"}}});
  ToolCallParser parser(format, texts);
  std::string text;
  for (size_t i = 0; i < answer.size(); i += size) text += parser.Add(answer.substr(i, size));
  text += parser.End();
  for (const ToolCall& call : parser.TakeCalls()) absl::StrAppend(&text, "|", call.name, "(", call.arguments, ")");
  return text;
}

void ExpectParsed(ToolFormat format, const std::string& answer, const std::string& parsed) {
  for (const size_t size : {1, 2, 7, 1000}) EXPECT_EQ(Parsed(format, answer, size), parsed) << size;
}

TEST(ToolCallsTest, HermesCallsStandBetweenTheirMarks) {
  ExpectParsed(ToolFormat::kHermes, R"(I look. <tool_call>
{"name": "look", "arguments": {"at": "it"}}
</tool_call><tool_call>{"name": "go", "arguments": {}}</tool_call>!)",
               R"(I look. !|look({"at":"it"})|go({}))");
}

TEST(ToolCallsTest, WhatIsNoCallStaysText) {
  for (const std::string answer :
       {"<tool_call>{\"name\": 5}</tool_call>", "<tool_call>never closed {", "a < b <tool", "<tool_call></tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>"}) {
    ExpectParsed(ToolFormat::kHermes, answer, answer);
  }
  for (const std::string answer : {"{\"name\": \"f\"}", "{ no JSON", "hello {\"name\"", "; ;", "{};{}"}) {
    ExpectParsed(ToolFormat::kLlama3, answer, answer);
  }
  for (const std::string answer : {"[1, 2]", "[]", "[{\"name\": \"f\"", "text", "[], \"a\": [1"}) {
    ExpectParsed(ToolFormat::kMistral, answer, answer);
  }
  ExpectParsed(ToolFormat::kNone, "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>");
}

TEST(ToolCallsTest, AQwen35CallNamesItsParametersByMarks) {
  ExpectParsed(
      ToolFormat::kQwen35, R"(I look. <tool_call>
<function=look>
<parameter=at>
5
</parameter>
<parameter=count>
5
</parameter>
<parameter=how>
{"slow": true}
</parameter>
<parameter=note>
two
lines "quoted"
</parameter>
</function>
</tool_call>
<tool_call><function=go></function></tool_call>!)",
      "I look. \n!|look({\"at\":\"5\",\"count\":5,\"how\":{\"slow\":true},\"note\":\"two\\nlines \\\"quoted\\\"\"})"
      "|go({})");
  ExpectParsed(ToolFormat::kQwen35,
               "<tool_call><function=f><parameter=a>1, \"b\": 2</parameter></function></tool_call>",
               R"(|f({"a":"1, \"b\": 2"}))");
}

TEST(ToolCallsTest, WhatIsNoQwen35CallStaysText) {
  for (const std::string inside :
       {"", "<function=f>", "<function=></function>", "<function=f><parameter=a>1</function>",
        "<function=f>x</function>", "<function=f><parameter=>1</parameter></function>",
        "{\"name\": \"f\", \"arguments\": {}}",
        "<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>"}) {
    const std::string answer = absl::StrCat("<tool_call>", inside, "</tool_call>");
    ExpectParsed(ToolFormat::kQwen35, answer, answer);
  }
}

TEST(ToolCallsTest, TheToolsSayWhichParametersAreTexts) {
  const auto tools = nlohmann::ordered_json::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
      "a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": ["string", "null"]}, "d": {}, "e": 5}}}},
    {"type": "function", "function": {"name": "g"}}, {"function": 5}, "x"])");
  EXPECT_EQ(FindTextParameters(tools), (TextParameters{{"f", {"a", "c"}}}));
  EXPECT_EQ(FindTextParameters(nlohmann::ordered_json()), TextParameters());
}

TEST(ToolCallsTest, AFormatHasAName) {
  EXPECT_EQ(NamedToolFormat("qwen3.5"), ToolFormat::kQwen35);
  EXPECT_EQ(NamedToolFormat("none"), ToolFormat::kNone);
  EXPECT_EQ(NamedToolFormat("auto"), std::nullopt);
}

TEST(ToolCallsTest, ALlamaAnswerIsACallOrSeveral) {
  ExpectParsed(ToolFormat::kLlama3, R"({"name": "f", "parameters": {"a": "x;y"}})", R"(|f({"a":"x;y"}))");
  ExpectParsed(ToolFormat::kLlama3, R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}})",
               "|f({})|g({})");
}

TEST(ToolCallsTest, AMistralAnswerIsAListOfCalls) {
  ExpectParsed(ToolFormat::kMistral,
               R"([TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}])",
               R"(|f({"a":1})|g({}))");
  ExpectParsed(ToolFormat::kMistral, R"( [{"name": "f", "arguments": {}}])", "|f({})");
}

TEST(ToolCallsTest, TheTemplateSaysWhichFormatItsModelWrites) {
  EXPECT_EQ(FindToolFormat("... <tool_call>\\n{\"name\" ..."), ToolFormat::kHermes);
  EXPECT_EQ(FindToolFormat("<tool_call>\n<function=name>"), ToolFormat::kNone);
  EXPECT_EQ(FindToolFormat("<tool_call>\n<function=name>\n<parameter=key>"), ToolFormat::kQwen35);
  EXPECT_EQ(FindToolFormat("<|python_tag|>"), ToolFormat::kLlama3);
  EXPECT_EQ(FindToolFormat("[TOOL_CALLS] ["), ToolFormat::kMistral);
  EXPECT_EQ(FindToolFormat("[TOOL_CALLS]name[ARGS]"), ToolFormat::kNone);
  EXPECT_EQ(FindToolFormat("{{ messages }}"), ToolFormat::kNone);
}

}  // namespace
}  // namespace syncopate::text::chat
