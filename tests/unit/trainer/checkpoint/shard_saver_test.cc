#include "trainer/checkpoint/shard_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/faulty_file_system.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "trainer/checkpoint/policy_files.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;

// A snapshot of a policy without tensors, on the second rank of two.
std::shared_ptr<const PolicySnapshot> Snapshot() {
  auto snapshot = std::make_shared<PolicySnapshot>();
  snapshot->rank = 1;
  snapshot->world = 2;
  return snapshot;
}

class ShardSaverTest : public ::testing::Test {
 protected:
  ShardSaverTest() { EXPECT_THAT(disk_.CreateDirs("/checkpoints/.tmp-1"), IsOk()); }

  FaultyFileSystem disk_;
  Mailbox<absl::StatusOr<CheckpointStore::Files>> told_;
  ShardSaver saver_{&disk_, "/checkpoints", [this](const std::string&, const auto& written) { told_.Put(written); },
                    absl::Milliseconds(200)};
};

TEST_F(ShardSaverTest, WritesTheFilesOfItsRankAndTellsThem) {
  saver_.Save(".tmp-1", Snapshot());
  ASSERT_THAT(saver_.Wait(), IsOk());
  const auto told = told_.All();
  ASSERT_EQ(told.size(), 1u);
  ASSERT_THAT(told[0], IsOk());
  for (const auto& [name, file] : *told[0]) {
    EXPECT_EQ(disk_.FileBytes("/checkpoints/.tmp-1/" + name).value_or(-1), file.bytes) << name;
  }
  EXPECT_EQ(told[0]->count(ModelFileName(1, 2)), 1u);
}

TEST_F(ShardSaverTest, ADiskThatDoesNotAnswerIsNamedInsteadOfWaitedForForEver) {
  disk_.HoldOperations(true);
  saver_.Save(".tmp-1", Snapshot());
  const absl::Status waited = saver_.Wait();
  EXPECT_THAT(waited, HasReason("DISK_STUCK"));
  EXPECT_THAT(waited, HasMessage(HasSubstr("/checkpoints/.tmp-1/")));
  EXPECT_TRUE(told_.All().empty());
  disk_.HoldOperations(false);
  EXPECT_THAT(saver_.Wait(), IsOk());  // the save was slow and succeeded
  EXPECT_EQ(told_.All().size(), 1u);
}

}  // namespace
}  // namespace syncopate::trainer
