#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace syncopate {
namespace {

TEST(Utf8Test, WritesAndReadsEveryLength) {
  for (const char32_t c : {0x0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF}) {
    std::string text;
    AppendUtf8(c, &text);
    EXPECT_TRUE(IsUtf8(text));
    EXPECT_EQ(DecodeCodePoint(text, 0).value, c);
    EXPECT_EQ(DecodeCodePoint(text, 0).bytes, text.size());
  }
}

TEST(Utf8Test, RefusesWhatIsNoCharacter) {
  for (const char* bad : {"\x80", "\xC1\x81", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80",
                          "\xFF", "\xC3", "\xE4\xB8", "\xC3(", "\xF8\x88\x80\x80\x80"}) {
    const std::string text = std::string("abcdefghijk") + bad;
    EXPECT_EQ(WellFormedPrefix(text), 11u) << text;
  }
}

TEST(Utf8Test, ReplacesEachPartThatCouldHaveBegunACharacter) {
  EXPECT_EQ(ReplaceMalformed("a\xE4\xB8z"), "a\uFFFDz");
  EXPECT_EQ(ReplaceMalformed("\xF0\x80\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceMalformed("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceMalformed("\xF0\x9F\x98"), "\uFFFD");
}

TEST(Utf8Test, HoldsBackOnlyWhatMayStillBecomeACharacter) {
  const std::string smile = "\xF0\x9F\x98\x80";
  for (size_t cut = 1; cut < smile.size(); ++cut) {
    std::string text = "ab" + smile.substr(0, cut);
    EXPECT_EQ(TakeWholeCharacters(&text), "ab");
    text += smile.substr(cut);
    EXPECT_EQ(TakeWholeCharacters(&text), smile);
    EXPECT_EQ(text, "");
  }
  std::string text = "\xE4\xB8\xE4";
  EXPECT_EQ(TakeWholeCharacters(&text), "\uFFFD");
  EXPECT_EQ(text, "\xE4");
  text = "\xED\xA0";
  EXPECT_EQ(TakeWholeCharacters(&text), "\uFFFD\uFFFD");
}

}  // namespace
}  // namespace syncopate
