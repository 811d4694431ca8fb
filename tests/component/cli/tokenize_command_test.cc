#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tools/cli/command.h"

namespace syncopate::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Outcome {
  int code = 0;
  std::string out, err;
};

// Runs `syncopate tokenize ...` with `input` on its standard input.
Outcome Tokenize(const std::vector<std::string>& words, const std::string& input) {
  CLI::App app;
  Command chosen;
  AddCommands(&app, "syncopate", &chosen);
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  reversed.push_back("tokenize");
  app.parse(reversed);
  std::istringstream in(input);
  std::ostringstream out, err;
  std::streambuf* const old_in = std::cin.rdbuf(in.rdbuf());
  std::streambuf* const old_out = std::cout.rdbuf(out.rdbuf());
  std::streambuf* const old_err = std::cerr.rdbuf(err.rdbuf());
  std::cin.clear();
  Outcome outcome;
  outcome.code = chosen();
  std::cin.rdbuf(old_in);
  std::cout.rdbuf(old_out);
  std::cerr.rdbuf(old_err);
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

const char kLlama3[] = SYNCOPATE_GOLDEN_DIR "/llama3";

TEST(TokenizeCommandTest, LinesBecomeListsAndListsTheSameLines) {
  const std::string text = "The trainer improves\n\nграница 中文 👩‍👩‍👧‍👦  <|eot_id|>\r\n";
  const Outcome ids = Tokenize({kLlama3}, text);
  EXPECT_EQ(ids.code, 0) << ids.err;
  EXPECT_THAT(ids.out, HasSubstr("]\n[]\n["));
  const Outcome back = Tokenize({kLlama3, "--decode"}, ids.out);
  EXPECT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(back.out, text);
}

TEST(TokenizeCommandTest, SpecialTokensAreAddedAndLeftOutOnRequest) {
  const std::string plain = Tokenize({kLlama3}, "a\n").out;
  const std::string special = Tokenize({kLlama3, "--add-special-tokens"}, "a\n").out;
  EXPECT_NE(plain, special);
  EXPECT_EQ(Tokenize({kLlama3, "--decode"}, special).out, "<|begin_of_text|>a\n");
  EXPECT_EQ(Tokenize({kLlama3, "--decode", "--skip-special-tokens"}, special).out, "a\n");
}

TEST(TokenizeCommandTest, NamesTheLineThatItCannotConvert) {
  const Outcome broken = Tokenize({kLlama3}, "good\n\xC3\n");
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.err, HasSubstr("line 2: the text is not UTF-8"));
  for (const char* line : {"1 2", "[1,-2]", "[1.5]", "{}", "[1", "[3000000000]"}) {
    const Outcome outcome = Tokenize({kLlama3, "--decode"}, line);
    EXPECT_EQ(outcome.code, 1) << line;
    EXPECT_THAT(outcome.err, HasSubstr("line 1: not a JSON list")) << line;
  }
}

TEST(TokenizeCommandTest, SaysWhatAModelDirectoryMustHold) {
  const Outcome outcome = Tokenize({"/nowhere"}, "a\n");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no file /nowhere/tokenizer.json"));
  EXPECT_THAT(outcome.out, IsEmpty());
}

}  // namespace
}  // namespace syncopate::cli
