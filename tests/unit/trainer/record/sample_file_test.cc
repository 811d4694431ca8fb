#include "trainer/record/sample_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/hand_clock.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using syncopate::testing::FaultyFileSystem;
using syncopate::testing::HandClock;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Line(const std::string& kind, int64_t step, const std::string& more = "") {
  return absl::StrCat("{\"kind\":\"", kind, "\",\"epoch\":1,\"step\":", step, ",\"more\":\"", more, "\"}");
}

class SampleFileTest : public ::testing::Test {
 protected:
  SampleFileTest() { EXPECT_THAT(disk_.CreateDirs("/run"), syncopate::testing::IsOk()); }
  std::unique_ptr<SampleFile> Open(int64_t restored_step = 0, int64_t max_bytes = 1 << 20) {
    return std::make_unique<SampleFile>(
        &disk_, SampleFile::Options{.folder = "/run", .max_bytes = max_bytes, .restored_step = restored_step}, &clock_);
  }
  std::vector<std::string> Lines(const std::string& name = "samples.jsonl") {
    const auto text = ReadFile(&disk_, "/run/" + name, 1 << 20);
    if (!text.ok()) return {};
    return absl::StrSplit(*text, '\n', absl::SkipEmpty());
  }

  FaultyFileSystem disk_;
  HandClock clock_;
};

TEST_F(SampleFileTest, ATrainerThatRepeatsStepsFirstRemovesTheirLines) {
  auto before = Open();
  const std::vector<std::string> lines = {Line("train", 1), Line("eval", 2), Line("train", 3), Line("drop", 3),
                                          Line("eval", 3)};
  for (const std::string& line : lines) before->Append(line);
  before.reset();
  auto after = Open(/*restored_step=*/2);
  after->Append(Line("train", 3, "again"));
  EXPECT_THAT(Lines(), ElementsAre(lines[0], lines[1], lines[3], lines[4], Line("train", 3, "again")));
}

TEST_F(SampleFileTest, HalfALineOfACrashIsRemoved) {
  ASSERT_THAT(disk_.PutFile("/run/samples.jsonl", Line("train", 1) + "\n" + Line("train", 2).substr(0, 40)),
              syncopate::testing::IsOk());
  auto file = Open(/*restored_step=*/9);
  file->Append(Line("train", 10));
  EXPECT_THAT(Lines(), ElementsAre(Line("train", 1), Line("train", 10)));
}

TEST_F(SampleFileTest, TheOldestSamplesGoFirstAndTwoFilesStayBelowTheLimit) {
  constexpr int64_t kLimit = 4096;
  auto file = Open(0, kLimit);
  for (int64_t step = 1; step <= 200; ++step) file->Append(Line("train", step, std::string(100, 'x')));
  const int64_t bytes = *disk_.FileBytes("/run/samples.jsonl") + *disk_.FileBytes("/run/samples.1.jsonl");
  EXPECT_LE(bytes, kLimit);
  EXPECT_GT(bytes, kLimit / 2);
  EXPECT_EQ(Lines().back(), Line("train", 200, std::string(100, 'x')));
  EXPECT_EQ(file->lost(), 0);
  file->Append(Line("train", 201, std::string(kLimit / 2, 'x')));
  EXPECT_EQ(file->lost(), 1) << "a line that is longer than half of the limit";
}

TEST_F(SampleFileTest, UndoneLinesAreRemovedFromTheOlderFileToo) {
  auto before = Open(0, 400);
  for (int64_t step = 1; step <= 8; ++step) before->Append(Line("train", step, "xxxx"));
  ASSERT_THAT(Lines("samples.1.jsonl"), ::testing::Not(IsEmpty()));
  before.reset();
  Open(/*restored_step=*/0, 400)->Begin();
  EXPECT_THAT(Lines(), IsEmpty());
  EXPECT_THAT(Lines("samples.1.jsonl"), IsEmpty());
}

TEST_F(SampleFileTest, AFullDiskCostsLinesWhichAreCountedAndNoHalfLineStays) {
  auto file = Open();
  file->Append(Line("train", 1));
  disk_.SetCapacity(static_cast<int64_t>(Line("train", 1).size()) + 20);
  file->Append(Line("train", 2));
  file->Append(Line("train", 3));
  EXPECT_EQ(file->lost(), 2);
  disk_.SetCapacity(1 << 20);
  file->Append(Line("train", 4));
  EXPECT_THAT(Lines(), ElementsAre(Line("train", 1), Line("train", 4)));
}

TEST_F(SampleFileTest, NothingIsWrittenBeforeUndoneLinesCouldBeRemoved) {
  auto before = Open();
  before->Append(Line("train", 1));
  before->Append(Line("train", 2));
  before.reset();
  auto file = Open(/*restored_step=*/1);
  disk_.FailOperations(disk_.operations(), 1, FaultyFileSystem::Fault::kNoSpace);
  file->Append(Line("train", 2, "again"));
  EXPECT_THAT(Lines(), ElementsAre(Line("train", 1), Line("train", 2)));
  clock_.Advance(SampleFile::kRetry);
  file->Append(Line("train", 3));
  EXPECT_EQ(file->lost(), 1);
  EXPECT_THAT(Lines(), ElementsAre(Line("train", 1), Line("train", 3)));
}

}  // namespace
}  // namespace syncopate::trainer
