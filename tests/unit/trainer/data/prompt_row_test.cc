#include "trainer/data/prompt_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using ::testing::AllOf;
using testing::HasMessage;
using testing::HasReason;
using ::testing::HasSubstr;
using testing::IsOk;
using Json = nlohmann::json;

absl::StatusOr<PromptRow> Parse(const std::string& line, const RowFields& fields = {}) {
  return ParsePromptRow(line, fields, 1 << 20);
}

Json Judged(const PromptRow& row) { return Json::parse(row.row_json); }

TEST(PromptRowTest, ReadsAPlainPromptWithItsAnswer) {
  const auto row = Parse(R"({"prompt": "2+3=", "answer": 5, "note": "x"})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->text, "2+3=");
  EXPECT_EQ(row->answer, 5);
  EXPECT_EQ(Judged(*row), Json({{"prompt", "2+3="}, {"answer", 5}, {"ground_truth", 5}, {"note", "x"}}));
}

TEST(PromptRowTest, GivesRewardsTheWholeRowWithTheAnswerThatCountsAsItsGroundTruth) {
  const std::string two =
      R"({"prompt": "2+3=", "answer": "2 and 3 make 5", "ground_truth": "5", "level": {"of": [1]}})";
  Json expected = Json::parse(two);
  auto row = Parse(two, {.answer = "ground_truth"});
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->answer, "5");
  EXPECT_EQ(Judged(*row), expected);

  // No option chooses between the two: the first name in the order is used, and the other field is replaced.
  row = Parse(two);
  EXPECT_EQ(row->answer, "2 and 3 make 5");
  expected["ground_truth"] = "2 and 3 make 5";
  EXPECT_EQ(Judged(*row), expected);

  row = Parse(R"({"prompt": "2+3=", "solution": 5, "ground_truth": 6})", {.answer = "solution"});
  EXPECT_EQ(Judged(*row), Json({{"prompt", "2+3="}, {"solution", 5}, {"ground_truth", 5}, {"answer", 5}}));
}

TEST(PromptRowTest, ARowWithoutAnAnswerHasANullGroundTruth) {
  const Json judged = Judged(*Parse(R"({"prompt": "Write a poem.", "style": "haiku"})"));
  EXPECT_TRUE(judged["ground_truth"].is_null());
  EXPECT_TRUE(judged.contains("ground_truth"));
  EXPECT_EQ(judged["style"], "haiku");
}

TEST(PromptRowTest, WhatTheRunNamesReplacesFieldsOfTheFixedNames) {
  const RowFields fields{.prompt = "chat", .data_source = "from"};
  const auto row = Parse(
      R"({"chat": [{"role": "user", "content": "Hi"}], "prompt": "old", "messages": 3, "from": "new", "data_source": "old",
          "extra_info": {"kept": true}})",
      fields);
  ASSERT_THAT(row, IsOk());
  const Json judged = Judged(*row);
  EXPECT_EQ(judged["prompt"], "Hi");
  EXPECT_EQ(judged["messages"], judged["chat"]);
  EXPECT_EQ(judged["data_source"], "new");
  EXPECT_EQ(judged["extra_info"]["kept"], true);
}

TEST(PromptRowTest, ReadsARowOfVerl) {
  const auto row = Parse(R"({"data_source": "openai/gsm8k",
      "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}],
      "ability": "math", "reward_model": {"style": "rule", "ground_truth": "72"},
      "extra_info": {"split": "train", "index": 0}})");
  ASSERT_THAT(row, IsOk());
  EXPECT_FALSE(row->text.has_value());
  ASSERT_EQ(row->messages.size(), 2u);
  EXPECT_EQ(row->answer, "72");
  const Json judged = Judged(*row);
  EXPECT_EQ(judged["prompt"], "How many?");
  EXPECT_EQ(judged["messages"].size(), 2u);
  EXPECT_EQ(judged["ground_truth"], "72");
  EXPECT_EQ(judged["reward_model"]["style"], "rule");
  EXPECT_EQ(judged["ability"], "math");
  EXPECT_EQ(judged["data_source"], "openai/gsm8k");
  EXPECT_EQ(judged["extra_info"]["split"], "train");
}

TEST(PromptRowTest, KeepsTheOrderOfKeysForTemplates) {
  const auto row = Parse(R"({"prompt": [{"role": "user", "content": "x", "zeta": 1, "alpha": 2}]})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->messages[0].dump(), R"({"role":"user","content":"x","zeta":1,"alpha":2})");
}

TEST(PromptRowTest, TakesFieldsByTheirNames) {
  const RowFields fields{.prompt = "question.text", .answer = "a.b", .data_source = "from", .extra_info = "more"};
  const auto row =
      Parse(R"({"question": {"text": "?"}, "a.b": "dotted", "a": {"b": "inner"}, "from": "f", "more": [1]})", fields);
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(row->text, "?");
  EXPECT_EQ(row->answer, "dotted");
  EXPECT_EQ(Judged(*row)["data_source"], "f");
  EXPECT_EQ(Judged(*row)["extra_info"], Json::array({1}));
  EXPECT_THAT(Parse(R"({"question": {"text": "?"}})", fields), HasMessage(HasSubstr("'a.b'")));
}

TEST(PromptRowTest, TextOfPartsIsTheirText) {
  const auto row = Parse(R"({"prompt": [{"role": "user", "content": [{"type": "text", "text": "Look "},
                             {"type": "image"}, {"type": "text", "text": "here"}]}]})");
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(Judged(*row)["prompt"], "Look here");
}

TEST(PromptRowTest, SaysWhatIsWrongWithARow) {
  EXPECT_THAT(Parse("{\"prompt\": \"\xff\"}"), AllOf(HasReason("BAD_UTF8"), HasMessage(HasSubstr("byte 12"))));
  EXPECT_THAT(Parse("{\"prompt\": \"\\ud800\"}"), HasReason("BAD_JSON"));  // a lone surrogate
  EXPECT_THAT(Parse("{\"prompt\": \"x\""), HasReason("BAD_JSON"));
  EXPECT_THAT(Parse("[1]"), HasReason("BAD_JSON"));
  EXPECT_THAT(Parse("{\"prompt\": \"x\", \"prompt\": \"y\"}"), HasReason("BAD_JSON"));
  EXPECT_THAT(Parse(absl::StrCat("{\"prompt\": ", std::string(100, '['), std::string(100, ']'), "}")),
              HasReason("BAD_JSON"));
  EXPECT_THAT(Parse("{\"text\": \"x\"}"), AllOf(HasReason("BAD_ROW"), HasMessage(HasSubstr("data.prompt_field"))));
  EXPECT_THAT(Parse("{\"prompt\": null}"), HasReason("BAD_ROW"));
  EXPECT_THAT(Parse("{\"prompt\": 5}"), HasReason("BAD_ROW"));
  EXPECT_THAT(Parse("{\"prompt\": []}"), HasReason("BAD_ROW"));
  EXPECT_THAT(Parse("{\"prompt\": [{\"content\": \"x\"}]}"), HasMessage(HasSubstr("message 0")));
  EXPECT_THAT(Parse("{\"prompt\": [\"x\"]}"), HasReason("BAD_ROW"));
  EXPECT_THAT(ParsePromptRow("{\"prompt\": \"xxxxxxxx\"}", {}, 10), HasReason("BAD_JSON"));
}

RowFields WithTools() {
  return {.environment = "desk",
          .tools = {{"desk", Json::parse(R"([{"type": "function", "function": {"name": "look"}}])")},
                    {"other", Json::parse(R"([{"type": "function", "function": {"name": "dig"}}])")}}};
}

TEST(PromptRowTest, ToolsAreTheRowsOwnOrThoseOfItsEnvironment) {
  const auto name = [](const std::string& line, const RowFields& fields) {
    const auto row = Parse(line, fields);
    EXPECT_THAT(row, IsOk()) << line;
    if (!row.ok() || row->tools.is_null()) return std::string();
    EXPECT_EQ(Judged(*row)["tools"], Json(row->tools)) << "the environment reads them, too";
    return row->tools[0]["function"]["name"].get<std::string>();
  };
  EXPECT_EQ(name(R"({"prompt": "?"})", WithTools()), "look");
  EXPECT_EQ(name(R"({"prompt": "?", "environment": "other"})", WithTools()), "dig");
  EXPECT_EQ(name(R"({"prompt": "?", "environment": "bare"})", WithTools()), "");
  EXPECT_EQ(name(R"({"prompt": "?", "tools": []})", WithTools()), "look");
  EXPECT_EQ(name(R"({"prompt": "?"})", {}), "");
  EXPECT_EQ(name(R"({"prompt": "?", "tools": ["of another kind"]})", {}), "") << "a row that is not played";
  const std::string own = R"([{"type": "function", "function": {"name": "own"}}])";
  EXPECT_EQ(name(R"({"prompt": "?", "tools": )" + own + "}", WithTools()), "own");
  EXPECT_EQ(name(Json({{"prompt", "?"}, {"tools", own}}).dump(), WithTools()), "own") << "as parquet has it: text";
}

TEST(PromptRowTest, WhatIsNoListOfToolsIsABadRow) {
  for (const char* tools : {R"({"name": "look"})", R"(["look"])", R"([{"function": {}}])", R"("[{")", "7"}) {
    const auto row = Parse(absl::StrCat(R"({"prompt": "?", "tools": )", tools, "}"), WithTools());
    EXPECT_THAT(row, HasReason("BAD_ROW")) << tools;
    EXPECT_THAT(row, HasMessage(HasSubstr("the field 'tools'"))) << tools;
  }
}

}  // namespace
}  // namespace syncopate::trainer
