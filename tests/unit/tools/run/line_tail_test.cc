#include "tools/run/line_tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace syncopate::run {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LineTailTest : public ::testing::Test {
 protected:
  LineTailTest() : path_(::testing::TempDir() + "/line_tail") { std::filesystem::remove(path_); }
  void Append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }
  const std::string path_;
};

TEST_F(LineTailTest, GivesEachWholeLineOnce) {
  LineTail tail(path_);
  EXPECT_THAT(tail.Next(), IsEmpty());
  Append("one\ntwo\nthr");
  EXPECT_THAT(tail.Next(), ElementsAre("one", "two"));
  EXPECT_THAT(tail.Next(), IsEmpty());
  Append("ee\n");
  EXPECT_THAT(tail.Next(), ElementsAre("three"));
}

TEST_F(LineTailTest, LeavesOutWhatWasThereBefore) {
  Append("old\n");
  LineTail tail(path_);
  Append("new\n");
  EXPECT_THAT(tail.Next(), ElementsAre("new"));
}

TEST_F(LineTailTest, ReadsMoreThanOneReadfulInTurns) {
  LineTail tail(path_);
  std::string line(300 << 10, 'x');
  for (int i = 0; i < 5; ++i) Append(line + "\n");
  size_t lines = 0;
  for (int i = 0; i < 3; ++i) lines += tail.Next().size();
  EXPECT_EQ(lines, 5u);
}

TEST_F(LineTailTest, LastLinesAreTheEndOfAFile) {
  EXPECT_THAT(LastLines(path_, 2), IsEmpty());
  Append("a\nb\n\nc\nd");
  EXPECT_THAT(LastLines(path_, 2), ElementsAre("c", "d"));
  EXPECT_THAT(LastLines(path_, 9), ElementsAre("a", "b", "c", "d"));
}

}  // namespace
}  // namespace syncopate::run
