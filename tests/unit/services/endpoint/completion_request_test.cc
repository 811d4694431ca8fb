#include "services/endpoint/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace syncopate::endpoint {
namespace {

using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kText = RequestKind::kCompletion;
constexpr auto kTalk = RequestKind::kChat;

// The parameter that an error names, and its reason.
struct Blame {
  std::string param, reason;
};

Blame BlameFor(const std::string& body, RequestKind kind) {
  const auto request = ParseCompletionRequest(body, kind);
  if (request.ok()) return {};
  const ErrorMetadata details = ErrorDetails(request.status());
  return {details.contains("param") ? details.at("param") : "", ErrorReason(request.status())};
}

TEST(CompletionRequestTest, APromptIsATextOrIdsOrAListOfThese) {
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt": "Hi"})", kText)->prompts[0].text, "Hi");
  EXPECT_THAT(ParseCompletionRequest(R"({"prompt": [1, 2]})", kText)->prompts[0].ids, ElementsAre(1, 2));
  const auto both = ParseCompletionRequest(R"({"prompt": ["a", [3]]})", kText);
  ASSERT_THAT(both, IsOk());
  ASSERT_EQ(both->prompts.size(), 2u);
  EXPECT_TRUE(both->prompts[0].is_text);
  EXPECT_THAT(both->prompts[1].ids, ElementsAre(3));
}

TEST(CompletionRequestTest, EachPartOfARequestIsRead) {
  const auto request = ParseCompletionRequest(
      R"({"model": "m", "prompt": "a", "n": 3, "seed": -7, "max_tokens": 9, "temperature": 0, "top_p": 0.5, "top_k": -1,
          "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5,
          "logit_bias": {"5": -100}, "logprobs": 2, "stop": "x", "stop_token_ids": [4], "stream": true,
          "stream_options": {"include_usage": true}, "return_token_ids": true, "user": "me", "echo": false,
          "best_of": null, "response_format": {"type": "text"}})",
      kText);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->n, 3);
  EXPECT_EQ(request->seed, static_cast<uint64_t>(-7));
  EXPECT_EQ(request->max_tokens, 9);
  EXPECT_EQ(request->sampling.temperature, 0);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_FLOAT_EQ(request->sampling.min_p, 0.1f);
  EXPECT_FLOAT_EQ(request->sampling.repetition_penalty, 1.5f);
  EXPECT_THAT(request->sampling.logit_bias, ElementsAre(TokenBias{5, -100}));
  EXPECT_EQ(request->sampling.top_logprobs, 2);
  EXPECT_TRUE(request->logprobs);
  EXPECT_THAT(request->stops, ElementsAre("x"));
  EXPECT_THAT(request->sampling.stop_token_ids, ElementsAre(4));
  EXPECT_TRUE(request->stream && request->include_usage && request->return_token_ids);
}

TEST(CompletionRequestTest, NullIsAKeyThatIsNotThere) {
  const auto request = ParseCompletionRequest(
      R"({"prompt": "a", "stop": null, "seed": null, "logprobs": null, "max_tokens": null, "stream_options": null})",
      kText);
  ASSERT_THAT(request, IsOk());
  EXPECT_FALSE(request->logprobs);
  EXPECT_FALSE(request->max_tokens.has_value());
}

TEST(CompletionRequestTest, AWrongValueNamesItsParameter) {
  for (const auto& [param, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"n", "0"},
                                                                  {"n", "1025"},
                                                                  {"n", "1.5"},
                                                                  {"n", "\"1\""},
                                                                  {"temperature", "-1"},
                                                                  {"temperature", "1e999"},
                                                                  {"top_p", "2"},
                                                                  {"seed", "1e30"},
                                                                  {"max_tokens", "0"},
                                                                  {"stop", "[1]"},
                                                                  {"stop", "\"\""},
                                                                  {"logit_bias", "[]"},
                                                                  {"logit_bias", "{\"a\": 1}"},
                                                                  {"logprobs", "21"},
                                                                  {"stream", "1"},
                                                                  {"stream_options", "true"},
                                                                  {"top_k", "-2"},
                                                                  {"stop_token_ids", "[-1]"},
                                                                  {"model", "3"},
                                                                  {"prompt", "[]"},
                                                                  {"prompt", "[-1]"},
                                                                  {"prompt", "[[]]"},
                                                                  {"prompt", "{}"}}) {
    const std::string prompt = std::string(param) == "prompt" ? "" : R"("prompt": "a", )";
    EXPECT_EQ(BlameFor(absl::StrCat("{", prompt, "\"", param, "\": ", value, "}"), kText).param,
              std::string(value) == "1e999" ? "" : param)
        << param << " " << value;
  }
}

TEST(CompletionRequestTest, WhatIsNotServedIsRefusedByName) {
  EXPECT_EQ(BlameFor(R"({"prompt": "a", "temprature": 1})", kText).param, "temprature");
  EXPECT_EQ(BlameFor(R"({"prompt": "a", "temprature": 1})", kText).reason, "UNKNOWN_PARAMETER");
  EXPECT_EQ(BlameFor(R"({"prompt": "a", "echo": true})", kText).reason, "UNSUPPORTED_PARAMETER");
  const std::string hello = R"("messages": [{"role": "user", "content": "Hi"}])";
  EXPECT_EQ(BlameFor(absl::StrCat("{", hello, R"(, "response_format": {"type": "json_object"}})"), kTalk).param,
            "response_format");
  EXPECT_EQ(BlameFor(absl::StrCat("{", hello, R"(, "functions": []})"), kTalk).param, "functions");
  EXPECT_EQ(BlameFor(absl::StrCat("{", hello, R"(, "top_logprobs": 2})"), kTalk).param, "top_logprobs");
}

TEST(CompletionRequestTest, PromptsTimesAnswersHaveALimit) {
  std::string prompts = "\"a\"";
  for (int i = 1; i < 100; ++i) prompts += ", \"a\"";
  EXPECT_EQ(BlameFor(absl::StrCat("{\"n\": 10, \"prompt\": [", prompts, "]}"), kText).param, "");
  EXPECT_EQ(BlameFor(absl::StrCat("{\"n\": 11, \"prompt\": [", prompts, "]}"), kText).param, "n");
}

TEST(CompletionRequestTest, MessagesHaveTextAndCallsHaveObjects) {
  const auto request = ParseCompletionRequest(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
          {"role": "assistant", "content": null, "refusal": null,
           "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}],
          "max_completion_tokens": 4, "logprobs": true, "top_logprobs": 3, "chat_template_kwargs": {"think": false}})",
      kTalk);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->chat["messages"][0]["content"], "ab");
  EXPECT_EQ(request->chat["messages"][1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_FALSE(request->chat["messages"][1].contains("refusal"));
  EXPECT_EQ(request->max_tokens, 4);
  EXPECT_EQ(request->sampling.top_logprobs, 3);
  EXPECT_EQ(request->chat_arguments["think"], false);
}

TEST(CompletionRequestTest, MessagesOfAnotherFormAreRefused) {
  for (const char* messages :
       {"[]", "{}", "[1]", "[{}]", R"([{"role": 1}])", R"([{"role": "user", "content": 5}])",
        R"([{"role": "user", "content": [{"type": "image_url"}]}])", R"([{"role": "user", "content": [5]}])",
        R"([{"role": "assistant", "tool_calls": 5}])", R"([{"role": "assistant", "tool_calls": [{}]}])"}) {
    EXPECT_EQ(BlameFor(absl::StrCat("{\"messages\": ", messages, "}"), kTalk).param, "messages") << messages;
  }
  EXPECT_EQ(BlameFor("{}", kTalk).param, "messages");
  EXPECT_EQ(BlameFor("{}", kText).param, "prompt");
  EXPECT_EQ(BlameFor("[]", kText).reason, "BAD_JSON");
}

TEST(TokenizeRequestTest, ATextOrAConversationButNotBoth) {
  EXPECT_EQ(*ParseTokenizeRequest(R"({"prompt": "a", "add_special_tokens": false})")->text, "a");
  EXPECT_FALSE(ParseTokenizeRequest(R"({"messages": [{"role": "user"}]})")->text.has_value());
  EXPECT_FALSE(ParseTokenizeRequest("{}").ok());
  EXPECT_FALSE(ParseTokenizeRequest(R"({"prompt": "a", "messages": [{"role": "user"}]})").ok());
  EXPECT_THAT(ParseDetokenizeRequest(R"({"tokens": [5, 6]})")->ids, ElementsAre(5, 6));
  EXPECT_FALSE(ParseDetokenizeRequest("{}").ok());
}

}  // namespace
}  // namespace syncopate::endpoint
