#include "trainer/record/identity_file.h"

#include <gtest/gtest.h>

#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using testing::HasReason;
using testing::IsOk;

constexpr char kPath[] = "/run/identity.json";

class IdentityFileTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_THAT(files_.CreateDirs("/run"), IsOk()); }

  testing::FaultyFileSystem files_;
  const IdentityFile file_{&files_, kPath};
};

TEST_F(IdentityFileTest, IsEmptyBeforeATrainerHasWorkedThere) {
  const auto identity = file_.Read();
  ASSERT_THAT(identity, IsOk());
  EXPECT_EQ(identity->run_id, "");
  EXPECT_EQ(identity->epoch, 0);
}

TEST_F(IdentityFileTest, SaysWhatWasWrittenLast) {
  ASSERT_THAT(file_.Write({"run", 1}), IsOk());
  ASSERT_THAT(file_.Write({"run", 2}), IsOk());
  const auto identity = file_.Read();
  ASSERT_THAT(identity, IsOk());
  EXPECT_EQ(identity->run_id, "run");
  EXPECT_EQ(identity->epoch, 2);
}

// If a damaged file were taken for empty, the next trainer would use epoch 0.
TEST_F(IdentityFileTest, IsNotTakenForEmptyWhenItIsDamaged) {
  for (const char* text : {"", "{", "[]", "{}", R"({"run_id":"run"})", R"({"run_id":1,"epoch":1})",
                           R"({"run_id":"run","epoch":"1"})", R"({"run_id":"run","epoch":1.5})"}) {
    ASSERT_THAT(WriteFileAtomically(&files_, kPath, text), IsOk());
    EXPECT_THAT(file_.Read().status(), HasReason("BAD_IDENTITY")) << text;
  }
}

TEST_F(IdentityFileTest, KeepsTheOldOneWhenTheDiskIsFull) {
  ASSERT_THAT(file_.Write({"run", 1}), IsOk());
  files_.SetCapacity(1);
  EXPECT_FALSE(file_.Write({"run", 2}).ok());
  const auto identity = file_.Read();
  ASSERT_THAT(identity, IsOk());
  EXPECT_EQ(identity->epoch, 1);
}

}  // namespace
}  // namespace syncopate::trainer
