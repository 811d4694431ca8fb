#include "trainer/record/tensorboard_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "base/crc32c.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using syncopate::testing::FaultyFileSystem;
using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr char kFile[] = "/tensorboard/events.out.tfevents.0000000002.syncopate";

class StoppedClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch(); }
  double UnixSeconds() const override { return 1234.5; }
};

class TensorBoardFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<TensorBoardFile> Open() {
    return TensorBoardFile::Open(&disk_, "/tensorboard", {.epoch = 2, .step = 40}, &clock_).value();
  }
  std::string Contents() { return ReadFile(&disk_, kFile, 1 << 20).value(); }

  StoppedClock clock_;
  FaultyFileSystem disk_;
};

uint32_t Unmasked(const std::string& bytes, size_t at) {
  uint32_t masked = 0;
  for (int i = 0; i < 4; ++i) masked |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  const uint32_t rotated = masked - 0xa282ead8U;
  return (rotated << 15) | (rotated >> 17);
}

// The payloads of a file whose records all pass their checksums.
std::vector<std::string> Payloads(const std::string& bytes) {
  std::vector<std::string> payloads;
  for (size_t at = 0; at + 16 <= bytes.size();) {
    const size_t size = static_cast<uint8_t>(bytes[at]) + 256 * static_cast<uint8_t>(bytes[at + 1]);
    EXPECT_EQ(Unmasked(bytes, at + 8), Crc32c(bytes.substr(at, 8)));
    payloads.push_back(bytes.substr(at + 12, size));
    EXPECT_EQ(Unmasked(bytes, at + 12 + size), Crc32c(payloads.back()));
    at += 16 + size;
  }
  return payloads;
}

// The bytes equal those that TensorBoard's own writer makes of the same records.
TEST_F(TensorBoardFileTest, FramesRecordsAsTfRecordDoes) {
  EXPECT_EQ(absl::BytesToHexString(TfRecord("")), "000000000000000029039807d8ea82a2");
  EXPECT_EQ(absl::BytesToHexString(TfRecord("hello")), "0500000000000000eab2043e68656c6c6fbb1f1c19");
}

TEST_F(TensorBoardFileTest, AnEventHasTheBytesOfTensorFlowsMessage) {
  Open()->Write(7, {{"reward/reward_mean", 0.75}});
  EXPECT_EQ(absl::BytesToHexString(Payloads(Contents()).at(2)),
            "0900000000004a934010072a1b0a190a127265776172642f7265776172645f6d65616e150000403f");
}

TEST_F(TensorBoardFileTest, BeginsWithTheVersionAndTheStepFromWhichOlderFilesCountNoMore) {
  Open();
  const std::vector<std::string> payloads = Payloads(Contents());
  ASSERT_EQ(payloads.size(), 2u);
  EXPECT_THAT(payloads[0], EndsWith("brain.Event:2"));
  EXPECT_EQ(absl::BytesToHexString(payloads[1]), "0900000000004a934010293a020801");  // step 41, SessionLog.START
}

TEST_F(TensorBoardFileTest, AFileForEachEpochInOrderOfTheirNames) {
  Open();
  ASSERT_THAT(TensorBoardFile::Open(&disk_, "/tensorboard", {.epoch = 10, .step = 0}, &clock_), IsOk());
  EXPECT_THAT(disk_.List("/tensorboard").value(),
              ElementsAre("events.out.tfevents.0000000002.syncopate", "events.out.tfevents.0000000010.syncopate"));
}

TEST_F(TensorBoardFileTest, ADiskThatIsFullCostsEventsAndLeavesWholeRecords) {
  auto file = Open();
  file->Write(41, {{"loss", 1}});
  // Half an event is written, then cut off.
  disk_.FailOperations(disk_.operations(), 1, FaultyFileSystem::Fault::kNoSpace);
  file->Write(42, {{"loss", 2}});
  file->Write(43, {{"loss", 3}});
  EXPECT_EQ(file->lost(), 1);
  EXPECT_EQ(Payloads(Contents()).size(), 4u);
}

TEST_F(TensorBoardFileTest, AFolderThatCannotBeMadeIsAnError) {
  disk_.FailOperations(disk_.operations(), 1, FaultyFileSystem::Fault::kPermission);
  EXPECT_THAT(TensorBoardFile::Open(&disk_, "/tensorboard", {.epoch = 1, .step = 0}, &clock_).status().message(),
              HasSubstr("/tensorboard"));
}

}  // namespace
}  // namespace syncopate::trainer
