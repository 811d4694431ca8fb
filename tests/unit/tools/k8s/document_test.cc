#include "tools/k8s/document.h"

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/tools/k8s/parsed.h"

namespace syncopate::k8s {
namespace {

using ::testing::HasSubstr;

TEST(DocumentTest, PlainScalarsHaveTheTypesThatKubectlGivesThem) {
  EXPECT_EQ(Parsed("a: 7\nb: -0.5\nc: true\nd: ~\ne: 0440\nf: text"),
            Document({{"a", 7}, {"b", -0.5}, {"c", true}, {"d", nullptr}, {"e", 288}, {"f", "text"}}));
}

TEST(DocumentTest, QuotedScalarsAreTextWhateverTheyLookLike) {
  EXPECT_EQ(Parsed("a: \"7\"\nb: 'true'\nc: |\n  12\n"), Document({{"a", "7"}, {"b", "true"}, {"c", "12\n"}}));
}

TEST(DocumentTest, WhatIsWrittenReadsBackTheSame) {
  const Document odd = {"",        "7",    "-1",        "true",       "null", "~",          "yes",    "no", "a: b",
                        "a #b",    "- a",  "*a",        "&a",         "!a",   "%a",         "@a",     "a:", "'a'",
                        "\"",      "\\",   "a\tb",      " a",         "a ",   "a\nb",       "a\nb\n", "\n", "a\n\n",
                        " a\nb\n", "1:2",  "1.5",       "1e3",        "0x10", "2026-01-01", "---",    "-",  "[a]",
                        "{a}",     "a,b",  "$(POD_IP)", "0.0.0.0:70", "a\rb", "ä\u2028",    "a=b:c",  "#a", "|",
                        "> a",     "0440", "=",         "25%",        "?",    "? a",        "<<",     ".",  "a/b~1"};
  const Document nested = {{"list", odd},
                           {"empty", {{"map", Document::object()}, {"list", Document::array()}}},
                           {"of lists", Document::array({Document::array({1, 2}), Document::array()})},
                           {"0", 0},
                           {"half", 0.5},
                           {"true", false}};
  EXPECT_EQ(Parsed(ToYaml(nested)), nested) << ToYaml(nested);
}

TEST(DocumentTest, EveryTextReadsBackAsAValueAndAsAKey) {
  for (int first = 1; first < 128; ++first) {
    for (const char* rest : {"", "a", " a", ": a", " #a"}) {
      const std::string text = std::string(1, static_cast<char>(first)) + rest;
      const Document map = {{"k", text}};
      EXPECT_EQ(Parsed(ToYaml(map)), map) << first << rest;
    }
  }
}

TEST(DocumentTest, EmptyDocumentsAreLeftOut) {
  auto documents = ParseDocuments("---\n# nothing\n---\na: 1\n---\n", "test");
  ASSERT_TRUE(documents.ok());
  EXPECT_EQ(*documents, std::vector<Document>({{{"a", 1}}}));
}

TEST(DocumentTest, BrokenYamlIsRefusedWithFileAndLine) {
  auto documents = ParseDocuments("a: 1\nb: [", "x.yaml");
  EXPECT_EQ(ErrorReason(documents.status()), "BAD_YAML");
  EXPECT_THAT(std::string(documents.status().message()), HasSubstr("x.yaml:2"));
}

}  // namespace
}  // namespace syncopate::k8s
