#include "services/endpoint/tool_calls.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace syncopate::endpoint {
namespace {

// The text and the calls of an answer that comes in parts of `size` bytes, as "text|name(arguments)|...".
std::string Parsed(ToolFormat format, const std::string& answer, size_t size) {
  ToolCallParser parser(format);
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
  EXPECT_EQ(FindToolFormat("<|python_tag|>"), ToolFormat::kLlama3);
  EXPECT_EQ(FindToolFormat("[TOOL_CALLS] ["), ToolFormat::kMistral);
  EXPECT_EQ(FindToolFormat("[TOOL_CALLS]name[ARGS]"), ToolFormat::kNone);
  EXPECT_EQ(FindToolFormat("{{ messages }}"), ToolFormat::kNone);
}

}  // namespace
}  // namespace syncopate::endpoint
