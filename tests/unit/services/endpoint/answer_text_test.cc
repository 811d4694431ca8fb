#include "services/endpoint/answer_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"

namespace syncopate::endpoint {
namespace {

class AnswerTextTest : public ::testing::Test {
 protected:
  std::vector<int32_t> Ids(const std::string& text) { return *tokenizer_->Encode(text, /*add_special_tokens=*/false); }
  // The parts of the text of `ids` as they become final, with a bar between them, until a stop.
  std::string Parts(const std::vector<int32_t>& ids, const std::vector<std::string>& stops,
                    const std::vector<int32_t>& ends = {}) {
    AnswerText text(tokenizer_.get(), &stops, &ends);
    std::string all;
    for (const int32_t id : ids) {
      absl::StrAppend(&all, text.Add(id), "|");
      if (text.stopped()) break;
    }
    const bool stopped = text.stopped();
    const std::string rest = text.End();
    return absl::StrCat(all, rest, stopped || text.stopped() ? "!" : "");
  }
  std::string Whole(const std::vector<int32_t>& ids, const std::vector<std::string>& stops) {
    std::string parts = Parts(ids, stops);
    std::erase(parts, '|');
    return parts;
  }

  const std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer_ =
      *text::tokenizer::Tokenizer::Load(FileSystem::Real(), absl::StrCat(SYNCOPATE_GOLDEN_DIR, "/gpt2"));
};

TEST_F(AnswerTextTest, WithoutStopsTheTextIsThatOfTheTokens) {
  for (const std::string text : {"Hello, wide world", "Größe 😀 😀", ""}) EXPECT_EQ(Whole(Ids(text), {}), text);
}

TEST_F(AnswerTextTest, AStopEndsTheTextBeforeItWhereverTokensEnd) {
  const std::string text = "one two three";
  for (const std::string stop : {"two", "wo t", "one", "three", "e", " "}) {
    EXPECT_EQ(Whole(Ids(text), {stop}), text.substr(0, text.find(stop)) + "!") << stop;
  }
}

TEST_F(AnswerTextTest, TheFirstOfSeveralStopsCounts) { EXPECT_EQ(Whole(Ids("abcdef"), {"ef", "cd"}), "ab!"); }

TEST_F(AnswerTextTest, TextThatMayBeginAStopIsHeldBackUntilItIsNone) {
  const std::vector<int32_t> ids = {*tokenizer_->FindToken("a"), *tokenizer_->FindToken("b"),
                                    *tokenizer_->FindToken("a"), *tokenizer_->FindToken("c")};
  EXPECT_EQ(Parts(ids, {"abc"}), "||ab|ac|");
  EXPECT_EQ(Parts({ids[0], ids[1]}, {"abc"}), "||ab");
  EXPECT_EQ(Parts({ids[0], ids[1], ids[3]}, {"abc"}), "|||!");
}

TEST_F(AnswerTextTest, AnEndTokenHasNoText) {
  const int32_t b = *tokenizer_->FindToken("b");
  EXPECT_EQ(Parts({*tokenizer_->FindToken("a"), b}, {}, {b}), "a||");
}

TEST_F(AnswerTextTest, WithoutATokenizerThereIsNoText) {
  const std::vector<std::string> stops;
  const std::vector<int32_t> ends;
  AnswerText text(nullptr, &stops, &ends);
  EXPECT_EQ(text.Add(5) + text.End(), "");
}

}  // namespace
}  // namespace syncopate::endpoint
