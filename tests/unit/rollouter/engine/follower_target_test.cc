#include "rollouter/engine/follower_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "base/mutex.h"
#include "rollouter/engine/engine_backend.h"
#include "tests/support/small_model.h"

namespace syncopate::rollouter {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
const PolicyVersion kFirst{1, 1};

// The weights of a follower, and the messages that it sends to rank 0.
class FollowerTargetTest : public ::testing::Test {
 protected:
  FollowerTarget::Options Options() {
    return {.send_ready = [this](const PolicyVersion&) { Note("ready"); },
            .send_withdrawn = [this](const PolicyVersion&) { Note("withdrawn"); },
            .on_lost = [this](const absl::Status&) { Note("lost"); },
            .answer_within = absl::Milliseconds(50)};
  }
  void Note(const std::string& said) {
    MutexLock lock(&mutex_);
    said_.push_back(said);
  }
  void AwaitSaid(const std::string& wanted) {
    MutexLock lock(&mutex_);
    auto is_said = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !said_.empty() && said_.back() == wanted; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(Condition(&is_said), kPatience));
  }
  auto Install(absl::Duration deadline) {
    return std::async(std::launch::async, [this, deadline] { return target_.Install(kFirst, 17, deadline).status(); });
  }

  Mutex mutex_;
  std::vector<std::string> said_ ABSL_GUARDED_BY(mutex_);
  const model::ModelConfig config_ = testing::SmallModel();
  FollowerTarget target_{std::make_shared<HostBackend>(config_, *model::MakeManifest(config_, DType::kFloat32)),
                         Options()};
};

TEST_F(FollowerTargetTest, AVersionServesWhenRank0HasHadItExchanged) {
  EXPECT_EQ(ErrorReason(target_.CheckReady(kFirst)), "RANK_MISMATCH");
  auto installed = Install(kPatience);
  AwaitSaid("ready");
  EXPECT_TRUE(target_.CheckReady(kFirst).ok());
  EXPECT_TRUE(target_.serving().version.IsNone());
  target_.Exchanged(kFirst);
  EXPECT_TRUE(installed.get().ok());
  EXPECT_EQ(target_.serving().version, kFirst);
  EXPECT_EQ(target_.serving().digest, 17u);
}

TEST_F(FollowerTargetTest, ARankWithoutPatienceWaitsForRank0ToReleaseIt) {
  auto installed = Install(absl::Milliseconds(1));
  AwaitSaid("withdrawn");
  target_.EndWithoutExchange(kFirst, /*relabelled=*/false);
  EXPECT_EQ(ErrorReason(installed.get()), "INSTALL_DEADLINE");
  EXPECT_TRUE(target_.serving().version.IsNone());
}

TEST_F(FollowerTargetTest, ARankThatRank0DoesNotReleaseIsLost) {
  EXPECT_EQ(ErrorReason(Install(absl::Milliseconds(1)).get()), "RANK_LOST");
  AwaitSaid("lost");
}

TEST_F(FollowerTargetTest, TheEndOfTheReplicaEndsTheWait) {
  auto installed = Install(kPatience);
  AwaitSaid("ready");
  target_.End(absl::OkStatus());
  EXPECT_EQ(ErrorReason(installed.get()), "STOPPING");
}

TEST_F(FollowerTargetTest, AsleepItTakesNoWeightsAndASleepWaitsForThoseUnderWay) {
  ASSERT_TRUE(target_.BeginAttempt().ok());
  EXPECT_EQ(ErrorReason(target_.BeginSleep(/*keeps_weights=*/true, absl::Milliseconds(1))), "BUSY");
  EXPECT_FALSE(target_.serving().asleep) << "a replica that could not sleep still accepts weights";
  target_.EndAttempt();
  EXPECT_TRUE(target_.BeginSleep(/*keeps_weights=*/true, kPatience).ok());
  EXPECT_EQ(ErrorReason(target_.BeginAttempt()), "HELD");
  EXPECT_EQ(target_.LastSleep().sleep_level, 1);
  target_.EndSleep();
  EXPECT_TRUE(target_.BeginAttempt().ok());
}

}  // namespace
}  // namespace syncopate::rollouter
