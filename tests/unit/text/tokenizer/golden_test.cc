// Compares every kind of tokenizer with the reference's output for the same texts and ids
// (scripts/tokenizer_reference.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tokenizer_cases.h"

namespace syncopate::testing {
namespace {

using ::testing::IsEmpty;
using text::tokenizer::PieceCache;
using text::tokenizer::Tokenizer;

class TokenizerGoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return absl::StrCat(SYNCOPATE_GOLDEN_DIR, "/", GetParam()); }
};

TEST_P(TokenizerGoldenTest, AgreesWithTheReference) {
  const auto json = ReadFile(FileSystem::Real(), folder() + "/tokenizer.json", 1 << 20);
  ASSERT_THAT(json, IsOk());
  const auto cases = ReadTokenizerCases(folder() + "/cases.jsonl");
  ASSERT_THAT(cases, IsOk());
  const bool byte_level = json->find("<0x0A>") == std::string::npos;
  for (const bool use_scanner : {true, false}) {
    const auto tokenizer = Tokenizer::Parse(*json, {}, {.use_scanner = use_scanner});
    ASSERT_THAT(tokenizer, IsOk());
    PieceCache cache;
    for (const TokenizerCase& one : *cases) {
      EXPECT_THAT(Differences(**tokenizer, one, byte_level, &cache), IsEmpty());
      if (one.has_text) {
        const auto uncached = (*tokenizer)->Encode(one.text, true);
        ASSERT_THAT(uncached, IsOk());
        EXPECT_EQ(*uncached, one.ids);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGoldenTest,
                         ::testing::Values("qwen2", "qwen35", "llama3", "gpt2", "o200k", "deepseek", "digits", "llama2",
                                           "mistral", "metaspace"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace syncopate::testing
