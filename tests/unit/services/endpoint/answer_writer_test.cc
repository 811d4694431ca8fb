#include "services/endpoint/answer_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace syncopate::endpoint {
namespace {

using Json = nlohmann::json;

AnswerWriter::Options ForKind(RequestKind kind) {
  return {.kind = kind, .id = "x-1", .model = "m", .created = 5, .prompt_ids = {{7, 8}}};
}

Json FromEvent(const std::string& event) {
  absl::string_view text = event;
  EXPECT_TRUE(absl::ConsumePrefix(&text, "data: ") && absl::ConsumeSuffix(&text, "\n\n")) << event;
  return Json::parse(text);
}

TEST(AnswerWriterTest, AChatStreamBeginsWithTheRoleAndEndsWithTheReason) {
  AnswerWriter writer(ForKind(RequestKind::kChat));
  const Json first = FromEvent(writer.TokenEvent(0, {.token = 1, .text = "a"}));
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"], Json({{"role", "assistant"}, {"content", "a"}}));
  EXPECT_EQ(first["choices"][0]["finish_reason"], nullptr);
  const Json next = FromEvent(writer.TokenEvent(0, {.token = 1, .text = "b"}));
  EXPECT_EQ(next["choices"][0]["delta"], Json({{"content", "b"}}));
  const Json end = FromEvent(writer.EndEvent(0, {.finish = FinishReason::kLength, .spans = {{{2, 3}, 0, 2}}}));
  EXPECT_EQ(end["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(end["choices"][0]["policy_versions"], Json::parse(R"([{"epoch": 2, "step": 3, "begin": 0, "end": 2}])"));
  EXPECT_EQ(writer.LastEvents({}), "data: [DONE]\n\n");
}

TEST(AnswerWriterTest, ATokenWithoutTextHasAnEventOnlyIfSomethingElseIsShown) {
  AnswerWriter quiet(ForKind(RequestKind::kCompletion));
  EXPECT_EQ(quiet.TokenEvent(0, {.token = 1}), "");
  auto options = ForKind(RequestKind::kCompletion);
  options.return_token_ids = true;
  AnswerWriter writer(options);
  const Json event = FromEvent(writer.TokenEvent(0, {.token = 4}));
  EXPECT_EQ(event["choices"][0]["token_ids"], Json({4}));
  EXPECT_EQ(event["choices"][0]["prompt_token_ids"], Json({7, 8}));
}

TEST(AnswerWriterTest, UsageComesInAnEventOfItsOwn) {
  auto options = ForKind(RequestKind::kCompletion);
  options.include_usage = true;
  const std::string last = AnswerWriter(options).LastEvents({.prompt_tokens = 2, .completion_tokens = 3});
  ASSERT_TRUE(absl::EndsWith(last, "data: [DONE]\n\n"));
  const Json usage = FromEvent(last.substr(0, last.size() - 14));
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["total_tokens"], 5);
}

TEST(AnswerWriterTest, AWholeAnswerHasEveryChoiceWithItsLogProbs) {
  auto options = ForKind(RequestKind::kCompletion);
  options.n = 2;
  options.logprobs = true;
  const std::vector<AnswerWriter::Choice> choices = {
      {.tokens = {{.token = 1, .logprob = -0.5f, .text = "ä", .top = {{1, -0.5f}}},
                  {.token = 2, .logprob = -1, .text = "b"}},
       .end = {.text = "c"}},
      {.tokens = {{.token = 3, .logprob = -2, .text = "d"}}, .end = {}}};
  const Json answer = Json::parse(AnswerWriter(options).Whole(choices, {2, 3}));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "äbc");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["text_offset"], Json({0, 1}));
  EXPECT_EQ(answer["choices"][0]["logprobs"]["top_logprobs"][0], Json({{"token_id:1", -0.5}}));
  EXPECT_EQ(answer["choices"][1]["index"], 1);
  EXPECT_EQ(answer["choices"][1]["logprobs"]["token_logprobs"], Json({-2}));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3);
}

TEST(AnswerWriterTest, ThoughtsAreApartFromTheContentAndCallsAreTakenFromTheContentAlone) {
  auto options = ForKind(RequestKind::kChat);
  options.reasoning = Reasoning::kBegun;
  options.tool_format = ToolFormat::kHermes;
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  AnswerWriter writer(options);
  EXPECT_EQ(FromEvent(writer.TokenEvent(0, {.text = "so " + call}))["choices"][0]["delta"],
            Json({{"role", "assistant"}, {"reasoning_content", "so " + call}}));
  EXPECT_EQ(writer.TokenEvent(0, {.text = "</think>\n"}), "");
  EXPECT_EQ(FromEvent(writer.TokenEvent(0, {.text = "yes"}))["choices"][0]["delta"], Json({{"content", "yes"}}));
  const Json called = FromEvent(writer.TokenEvent(0, {.text = call}))["choices"][0]["delta"];
  EXPECT_EQ(called["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(FromEvent(writer.EndEvent(0, {}))["choices"][0]["finish_reason"], "tool_calls");

  const std::vector<AnswerWriter::Choice> choices = {{.tokens = {{.text = "so</think>"}, {.text = "yes"}}, .end = {}}};
  const Json message = Json::parse(AnswerWriter(options).Whole(choices, {}))["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "so");
  EXPECT_EQ(message["content"], "yes");
  options.reasoning = Reasoning::kAtStart;
  const Json plain = Json::parse(AnswerWriter(options).Whole(choices, {}))["choices"][0]["message"];
  EXPECT_EQ(plain["content"], "so</think>yes");
  EXPECT_FALSE(plain.contains("reasoning_content"));
}

TEST(AnswerWriterTest, ErrorsHaveOpenAisFormAndCodes) {
  const absl::Status bad = Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", "n: expected", {{"param", "n"}});
  EXPECT_EQ(HttpCode(bad), 400);
  EXPECT_EQ(Json::parse(ErrorBody(bad)),
            Json::parse(R"({"error": {"message": "n: expected", "type": "invalid_request_error", "param": "n",
                            "code": "bad_request"}})"));
  EXPECT_EQ(HttpCode(absl::ResourceExhaustedError("")), 429);
  EXPECT_EQ(HttpCode(absl::UnavailableError("")), 503);
  EXPECT_EQ(HttpCode(absl::InternalError("")), 500);
  EXPECT_EQ(FromEvent(AnswerWriter::ErrorEvent(bad))["error"]["code"], "bad_request");
}

TEST(AnswerWriterTest, WhatIsNoUtf8IsReplaced) {
  AnswerWriter writer(ForKind(RequestKind::kChat));
  EXPECT_EQ(FromEvent(writer.TokenEvent(0, {.text = "\xff"}))["choices"][0]["delta"]["content"], "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace syncopate::endpoint
