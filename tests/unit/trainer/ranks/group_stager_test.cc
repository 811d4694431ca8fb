#include "trainer/ranks/group_stager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/reasons.h"
#include "ranks/collective.h"

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr PolicyVersion kVersion = {1, 7};

absl::Status NotFinite(const std::string& tensor) {
  return Error(absl::StatusCode::kDataLoss, reason::kNonFinite, tensor + " is not finite", {{"tensor", tensor}});
}

// Stages what the test says, and records its calls.
class FakeStager final : public WeightStager {
 public:
  explicit FakeStager(std::vector<std::string>* calls) : calls_(calls) {}
  const Manifest& manifest() const override { return manifest_; }
  absl::Status Launch(const PolicyVersion& version) override {
    calls_->push_back("0 stages " + version.ToString());
    return absl::OkStatus();
  }
  absl::StatusOr<Staged> Await() override { return result; }
  absl::StatusOr<bool> LeaveDevice() override {
    calls_->push_back("0 leaves");
    return false;
  }
  double TakeWaitSeconds() override { return 0.0; }
  synchronizer::WeightStore* store() override { return nullptr; }
  std::string layout() const override { return "units:3:fp32"; }
  int64_t bytes() const override { return 5; }

  absl::StatusOr<Staged> result = Staged{.version = kVersion, .bucket_digests = {1, 2}, .seconds = 0.25};

 private:
  const Manifest manifest_;
  std::vector<std::string>* const calls_;
};

class FakeFollowers final : public PolicyFollowers, public StagingReports {
 public:
  explicit FakeFollowers(std::vector<std::string>* calls) : calls_(calls) {}
  absl::Status Send(const PolicyCommand& command, const std::vector<const TrajectoryGroup*>&) override {
    const bool stages = command.kind == PolicyCommand::Kind::kStage;
    EXPECT_TRUE(stages || command.move == PolicyCommand::Move::kStagedLeaves);
    calls_->push_back(stages ? "others stage " + command.version.ToString() : "others leave");
    return sent;
  }
  absl::StatusOr<OfRanks> AwaitStaged(const PolicyVersion& version) override {
    calls_->push_back("waits for " + version.ToString());
    return reports;
  }

  absl::Status sent;
  absl::StatusOr<OfRanks> reports =
      OfRanks{{1, WeightStager::Staged{.version = kVersion, .bucket_digests = {3}, .seconds = 0.5}},
              {2, WeightStager::Staged{.version = kVersion, .bucket_digests = {4, 5}, .seconds = 0.125}}};

 private:
  std::vector<std::string>* const calls_;
};

class GroupStagerTest : public ::testing::Test {
 protected:
  GroupStagerTest() {
    auto mine = std::make_unique<FakeStager>(&calls_);
    mine_ = mine.get();
    stager_ = std::make_unique<GroupStager>(std::move(mine));
    stager_->Lead(&followers_, &followers_);
  }

  std::vector<std::string> calls_;
  FakeStager* mine_ = nullptr;
  FakeFollowers followers_{&calls_};
  std::unique_ptr<GroupStager> stager_;
};

TEST_F(GroupStagerTest, TheOthersBeginFirstAndTheDigestsAreThoseOfAllRanksInTheirOrder) {
  const auto staged = stager_->Stage(kVersion);
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_THAT(calls_, ElementsAre("others stage e1-s7", "0 stages e1-s7", "waits for e1-s7"));
  EXPECT_THAT(staged->bucket_digests, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(staged->digest, CombineDigests({1, 2, 3, 4, 5}));
  EXPECT_EQ(staged->seconds, 0.5) << "the slowest rank's";
}

TEST_F(GroupStagerTest, ANumberThatIsNotFiniteOnAnyRankIsTheErrorOfAllWithItsTensor) {
  const absl::Status late = Error(absl::StatusCode::kUnavailable, "OUT_OF_SPACE", "trainer rank 1: no slot");
  for (int32_t rank : {0, 1, 2}) {
    mine_->result = WeightStager::Staged{.version = kVersion, .bucket_digests = {1}};
    followers_.reports = StagingReports::OfRanks{{1, late}, {2, late}};
    if (rank == 0) mine_->result = NotFinite("model.norm.weight");
    if (rank > 0) followers_.reports->insert_or_assign(rank, NotFinite("model.norm.weight"));
    const absl::Status status = stager_->Stage(kVersion).status();
    EXPECT_EQ(ErrorReason(status), reason::kNonFinite) << rank;
    EXPECT_EQ(ErrorDetails(status).at("tensor"), "model.norm.weight") << rank;
  }
}

TEST_F(GroupStagerTest, AnyOtherErrorOfARankIsTheErrorOfAll) {
  followers_.reports->insert_or_assign(1, Error(absl::StatusCode::kInternal, "TORCH", "trainer rank 1: broken"));
  const absl::Status status = stager_->Stage(kVersion).status();
  EXPECT_EQ(ErrorReason(status), "TORCH");
  EXPECT_THAT(status.message(), HasSubstr("trainer rank 1"));
}

TEST_F(GroupStagerTest, ALostRankIsTheErrorUnlessThisRankHasOneOfItsOwn) {
  followers_.reports = RankLost("trainer rank 2 is lost");
  EXPECT_EQ(ErrorReason(stager_->Stage(kVersion).status()), "RANK_LOST");
  mine_->result = NotFinite("model.norm.weight");
  EXPECT_EQ(ErrorReason(stager_->Stage(kVersion).status()), reason::kNonFinite);
}

TEST_F(GroupStagerTest, TheOthersAreToldToLeaveTheirDevicesOnceForEachVersion) {
  for (int i = 0; i < 2; ++i) EXPECT_EQ(stager_->LeaveDevice().value(), false);
  EXPECT_THAT(calls_, ElementsAre("others leave", "0 leaves", "0 leaves"));
  ASSERT_TRUE(stager_->Stage(kVersion).ok());
  calls_.clear();
  EXPECT_EQ(stager_->LeaveDevice().value(), false);
  EXPECT_THAT(calls_, ElementsAre("others leave", "0 leaves"));
}

TEST_F(GroupStagerTest, NothingIsStagedThatTheOthersCannotBeTold) {
  followers_.sent = RankLost("gone");
  EXPECT_EQ(ErrorReason(stager_->Stage(kVersion).status()), "RANK_LOST");
  EXPECT_THAT(calls_, ElementsAre("others stage e1-s7"));
}

}  // namespace
}  // namespace syncopate::trainer
