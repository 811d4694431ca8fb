#include "trainer/ranks/leading_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "ranks/late_ranks.h"
#include "ranks/thread_ranks.h"

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;

// Records its calls, with the name of its owner.
class NotingPolicy final : public Policy {
 public:
  NotingPolicy(std::string name, std::vector<std::string>* notes) : name_(std::move(name)), notes_(notes) {}

  const Manifest& manifest() const override { return manifest_; }
  int64_t updates() const override { return 3; }
  absl::StatusOr<StepFigures> Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) override {
    Note("step " + std::to_string(step) + " of " + std::to_string(groups.size()));
    return StepFigures();
  }
  absl::StatusOr<StepFigures> SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) override {
    Note("supervised step of " + std::to_string(groups.size()));
    return StepFigures();
  }
  absl::StatusOr<HeldOutLoss> MeasureSupervised(const std::vector<const TrajectoryGroup*>& groups) override {
    Note("measure " + std::to_string(groups.size()));
    return HeldOutLoss{1.5, 2};
  }
  absl::Status WriteTensor(PolicyPart part, size_t index, const model::ByteSink&) const override {
    Note("write " + std::to_string(static_cast<int>(part)) + "/" + std::to_string(index));
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeSnapshot(const std::string& folder) const override {
    Note("copy for " + folder);
    return std::make_shared<const PolicySnapshot>();
  }
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeWeights(const std::string& folder) const override {
    Note("weights for " + folder);
    return std::make_shared<const PolicySnapshot>();
  }
  absl::Status SetReader(std::function<absl::Status()>) override {
    Note("set reader");
    return absl::OkStatus();
  }
  absl::Status ReadShard(DType dtype, const ShardSink&) const override {
    Note(absl::StrCat("read shard in ", DTypeName(dtype)));
    return absl::OkStatus();
  }
  absl::Status ReadTrained(DType dtype, const ShardSink&) const override {
    Note(absl::StrCat("read trained in ", DTypeName(dtype)));
    return absl::OkStatus();
  }
  DType GetShardDType(const Manifest&) const override { return DType::kBFloat16; }
  absl::StatusOr<uint64_t> Digest() const override {
    Note("digest");
    return 5;
  }
  absl::Status CheckFinite() const override {
    Note("check");
    return Error(absl::StatusCode::kDataLoss, reason::kNonFinite, "NaN");
  }
  absl::Status BeginUse() override {
    Note("begin use");
    return absl::OkStatus();
  }
  absl::Status EndUse() override {
    Note("end use");
    return absl::OkStatus();
  }
  absl::StatusOr<StateMoves> EnterRolloutMode() override {
    Note("rollout mode");
    return StateMoves{.offload_seconds = 1};
  }
  absl::StatusOr<StateMoves> EnterTrainerMode() override {
    Note("trainer mode");
    return StateMoves{.load_seconds = 2};
  }
  PolicyMemory memory() const override { return {.parameter_bytes = 5}; }
  PolicyMoves TakeMoves() override { return {.cache_flushes = 6}; }

 private:
  void Note(const std::string& what) const { notes_->push_back(name_ + " " + what); }

  const Manifest manifest_;
  const std::string name_;
  std::vector<std::string>* const notes_;
};

// Another rank in this process, which carries out commands at once; or a rank that is gone.
class NearFollower final : public PolicyFollowers {
 public:
  explicit NearFollower(Policy* policy) : policy_(policy) {}
  absl::Status Send(const PolicyCommand& command, const std::vector<const TrajectoryGroup*>& groups) override {
    if (policy_ == nullptr) return RankLost("gone");
    if (command.kind == PolicyCommand::Kind::kSave) return policy_->TakeSnapshot(command.folder).status();
    if (command.kind == PolicyCommand::Kind::kExport) return policy_->TakeWeights(command.folder).status();
    return ObeyCommand(*policy_, command, groups);
  }

 private:
  Policy* const policy_;
};

TEST(LeadingPolicyTest, EachCallIsToldToTheOthersAndThenMade) {
  std::vector<std::string> notes;
  NotingPolicy mine("0:", &notes), theirs("1:", &notes);
  NearFollower follower(&theirs);
  LeadingPolicy policy(&mine);
  policy.Lead(&follower);
  const TrajectoryGroup group;
  EXPECT_TRUE(policy.Step({&group, &group}, 7).ok());
  EXPECT_TRUE(policy.SupervisedStep({&group}).ok());
  EXPECT_EQ(policy.MeasureSupervised({&group}).value_or(HeldOutLoss()).loss, 1.5);
  EXPECT_TRUE(policy.WriteTensor(PolicyPart::kFirstMoment, 4, nullptr).ok());
  EXPECT_TRUE(policy.TakeSnapshot(".tmp-1").ok());
  EXPECT_TRUE(policy.TakeWeights(".tmp-2").ok());
  // These calls concern this rank alone.
  EXPECT_TRUE(policy.SetReader(nullptr).ok());
  EXPECT_TRUE(policy.ReadShard(DType::kFloat32, nullptr).ok());
  EXPECT_TRUE(policy.ReadTrained(DType::kBFloat16, nullptr).ok());
  EXPECT_EQ(policy.GetShardDType(policy.manifest()), DType::kBFloat16);
  EXPECT_EQ(policy.Digest().value_or(0), 5u);
  // Rank 0 reports its own finding; the others go on.
  EXPECT_EQ(ErrorReason(policy.CheckFinite()), "NON_FINITE");
  EXPECT_EQ(policy.updates(), 3);
  EXPECT_TRUE(policy.BeginUse().ok());
  EXPECT_TRUE(policy.EndUse().ok());
  EXPECT_EQ(policy.EnterRolloutMode().value_or(StateMoves()).offload_seconds, 1);
  EXPECT_EQ(policy.EnterTrainerMode().value_or(StateMoves()).load_seconds, 2);
  EXPECT_EQ(policy.memory().parameter_bytes, 5);  // the memory of this rank itself
  EXPECT_EQ(policy.TakeMoves().cache_flushes, 6);
  EXPECT_THAT(notes,
              ElementsAre("1: step 7 of 2", "0: step 7 of 2", "1: supervised step of 1", "0: supervised step of 1",
                          "1: measure 1", "0: measure 1", "1: write 1/4", "0: write 1/4", "1: copy for .tmp-1",
                          "0: copy for .tmp-1", "1: weights for .tmp-2", "0: weights for .tmp-2", "0: set reader",
                          "0: read shard in float32", "0: read trained in bfloat16", "1: digest", "0: digest",
                          "1: check", "0: check", "1: begin use", "0: begin use", "1: end use", "0: end use",
                          "1: rollout mode", "0: rollout mode", "1: trainer mode", "0: trainer mode"));
}

TEST(LeadingPolicyTest, NothingIsMadeThatTheOthersCannotBeTold) {
  std::vector<std::string> notes;
  NotingPolicy mine("0:", &notes);
  NearFollower gone(nullptr);
  LeadingPolicy policy(&mine);
  policy.Lead(&gone);
  const TrajectoryGroup group;
  EXPECT_EQ(ErrorReason(policy.Step({&group}, 1).status()), "RANK_LOST");
  EXPECT_EQ(ErrorReason(policy.Digest().status()), "RANK_LOST");
  EXPECT_EQ(ErrorReason(policy.BeginUse()), "RANK_LOST");
  EXPECT_TRUE(notes.empty());
}

TEST(LateRanksTest, CallsFailUntilTheRanksHaveMetAndAnAbortBeforeThatIsKept) {
  LateRanks late(0, 2), aborted(0, 2);
  EXPECT_EQ(ErrorReason(late.Barrier()), "RANKS_APART");
  auto ranks = MakeThreadRanks(2, absl::Seconds(20));
  late.Connect(std::move(ranks[0]));
  std::thread other([&] { EXPECT_TRUE(ranks[1]->Barrier().ok()); });
  EXPECT_TRUE(late.Barrier().ok());
  other.join();
  aborted.Abort("told to stop");
  aborted.Connect(std::move(MakeThreadRanks(2, absl::Seconds(20))[0]));
  EXPECT_EQ(ErrorReason(aborted.Barrier()), "RANK_LOST");
}

}  // namespace
}  // namespace syncopate::trainer
