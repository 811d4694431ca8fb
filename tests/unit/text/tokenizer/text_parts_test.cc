// The parts of encoding, each tested separately.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/philox.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/code_point_set.h"
#include "text/tokenizer/merge_table.h"
#include "text/tokenizer/normal_form.h"

namespace syncopate::text::tokenizer {
namespace {

using ::testing::ElementsAre;

TEST(NormalFormTest, TakesApartAndPutsTogether) {
  EXPECT_EQ(Normalized("e\u0301", NormalForm::kComposed), "\u00e9");
  EXPECT_EQ(Normalized("\u00e9", NormalForm::kDecomposed), "e\u0301");
  EXPECT_EQ(Normalized("\u1112\u1161\u11ab", NormalForm::kComposed), "\ud55c");
  EXPECT_EQ(Normalized("\ud55c", NormalForm::kDecomposed), "\u1112\u1161\u11ab");
  EXPECT_EQ(Normalized("\u212b", NormalForm::kComposed), "\u00c5");
}

TEST(NormalFormTest, PutsMarksInOrderAndLeavesABlockedOneAlone) {
  EXPECT_EQ(Normalized("a\u0301\u0323", NormalForm::kComposed), "\u1ea1\u0301");
  EXPECT_EQ(Normalized("a\u0305\u0301", NormalForm::kComposed), "a\u0305\u0301");
  EXPECT_EQ(Normalized("\u0301a", NormalForm::kComposed), "\u0301a");
}

TEST(NormalFormTest, LeavesWhatIsNewerThanTheReferencesUnicode) {
  // This mark is from Unicode 13, a version that would put it before the other mark.
  EXPECT_EQ(Normalized("a\u0305\u1abf", NormalForm::kDecomposed), "a\u0305\u1abf");
}

TEST(NormalFormTest, TheBaseOfHangulTailsIsNoTail) {
  EXPECT_EQ(Normalized("\uac00\u11a7", NormalForm::kComposed), "\uac00\u11a7");
}

TEST(CodePointClassesTest, AreThoseOfTheReference) {
  const CodePointClasses& classes = CodePointClasses::Get();
  EXPECT_EQ(classes['a'], CodePointClasses::kLetter);
  EXPECT_EQ(classes[0x00B2], CodePointClasses::kNumber);
  EXPECT_EQ(classes[0x180E], 0) << "no blank, though PCRE2 takes it for one";
  EXPECT_EQ(classes[0x85], CodePointClasses::kSpace);
  EXPECT_EQ(classes[0x1C], 0) << "a blank of Python's alone";
  EXPECT_EQ(classes[0x1C89], CodePointClasses::kLetter) << "of Unicode 16";
}

TEST(MergeTableTest, ManySymbolsMergeAsFewDo) {
  // Tokens 0 to 3, and the results of the merges.
  MergeTable table;
  table.Reserve(6);
  table.Add(0, 1, 2, 4);
  table.Add(4, 0, 1, 5);
  table.Add(1, 1, 3, 6);
  table.Add(5, 6, 0, 7);
  table.Add(2, 2, 4, 8);
  table.Add(8, 8, 5, 9);
  for (uint64_t i = 0; i < 300; ++i) {
    // A token that merges with no other ends the short parts.
    std::vector<int32_t> all, expected;
    for (uint64_t part = 0; part < 8; ++part) {
      std::vector<int32_t> few;
      for (uint64_t j = 0; j < 9; ++j) few.push_back(static_cast<int32_t>(Philox4x32(i, part * 9 + j)[0] % 3));
      few.push_back(3);
      all.insert(all.end(), few.begin(), few.end());
      table.Merge(&few);
      expected.insert(expected.end(), few.begin(), few.end());
    }
    table.Merge(&all);
    ASSERT_EQ(all, expected) << i;
  }
}

TEST(MergeTableTest, TheLowestRankGoesFirstAndThenTheLeftmost) {
  MergeTable table;
  table.Reserve(2);
  table.Add(1, 2, 0, 10);
  table.Add(0, 1, 1, 11);
  std::vector<int32_t> symbols = {0, 1, 2, 0, 1};
  table.Merge(&symbols);
  EXPECT_THAT(symbols, ElementsAre(0, 10, 11));
  table.Reserve(1);
  table.Add(1, 1, 0, 2);
  symbols = {1, 1, 1};
  table.Merge(&symbols);
  EXPECT_THAT(symbols, ElementsAre(2, 1));
}

std::vector<std::string> CutBy(const AddedTokens& tokens, const std::string& text) {
  std::vector<std::string> parts;
  tokens.Cut(
      text, [&](absl::string_view part, size_t at) { parts.push_back(std::string(part) + "@" + std::to_string(at)); },
      [&](const AddedToken& token) { parts.push_back("#" + std::to_string(token.id)); });
  return parts;
}

TEST(AddedTokensTest, TheLongestWinsAndBlanksGoWithTokensThatTakeThem) {
  AddedTokens tokens;
  tokens.Add({.content = "<a>", .id = 1}, "<a>");
  tokens.Add({.content = "<a>b", .id = 2}, "<a>b");
  tokens.Add({.content = "<l>", .id = 3, .takes_blanks_before = true}, "<l>");
  tokens.Add({.content = "<r>", .id = 4, .takes_blanks_after = true}, "<r>");
  EXPECT_THAT(CutBy(tokens, "x<a>b<a><"), ElementsAre("x@0", "#2", "#1", "<@8"));
  EXPECT_THAT(CutBy(tokens, "x \u00a0<l>  <r> \n y"), ElementsAre("x@0", "#3", "  @7", "#4", "y@15"));
  EXPECT_THAT(CutBy(tokens, "<a <a"), ElementsAre("<a <a@0"));
}

TEST(ByteAlphabetTest, OnlyCharactersOfTheAlphabetStandForBytes) {
  EXPECT_EQ(FromByteAlphabet("\u0120a\u010a"), " a\n");
  EXPECT_EQ(FromByteAlphabet("\u00c3\u00a9"), "\u00e9");
  EXPECT_EQ(FromByteAlphabet(" a"), std::nullopt);
  EXPECT_EQ(FromByteAlphabet("\u4e2d"), std::nullopt);
}

}  // namespace
}  // namespace syncopate::text::tokenizer
