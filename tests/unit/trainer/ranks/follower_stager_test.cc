#include "trainer/ranks/follower_stager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kWithin = absl::Seconds(20);

// Says what it was asked, and whether what is staged leaves the device. Thread-safe.
class LeavingStager final : public WeightStager {
 public:
  const Manifest& manifest() const override { return manifest_; }
  absl::Status Launch(const PolicyVersion& version) override {
    MutexLock lock(&mutex_);
    launched_.push_back(version.ToString() + " after " + std::to_string(asked_));
    return absl::OkStatus();
  }
  absl::StatusOr<Staged> Await() override { return Staged(); }
  double TakeWaitSeconds() override { return 0.0; }
  absl::StatusOr<bool> LeaveDevice() override {
    MutexLock lock(&mutex_);
    ++asked_;
    return leaves_;
  }
  synchronizer::WeightStore* store() override { return nullptr; }
  std::string layout() const override { return "units:2:fp32"; }
  int64_t bytes() const override { return 5; }

  void SetLeaves(absl::StatusOr<bool> leaves) {
    MutexLock lock(&mutex_);
    leaves_ = std::move(leaves);
  }
  // Whether it is asked so many times to leave the device before the deadline.
  bool AwaitAsked(int times) {
    MutexLock lock(&mutex_);
    auto is_asked = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return asked_ >= times; };
    return mutex_.AwaitWithTimeout(Condition(&is_asked), kWithin);
  }
  int asked() {
    MutexLock lock(&mutex_);
    return asked_;
  }
  std::vector<std::string> launched() {
    MutexLock lock(&mutex_);
    return launched_;
  }

 private:
  const Manifest manifest_ = {};
  Mutex mutex_;
  absl::StatusOr<bool> leaves_ ABSL_GUARDED_BY(mutex_) = false;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> launched_ ABSL_GUARDED_BY(mutex_);
};

class FollowerStagerTest : public ::testing::Test {
 protected:
  LeavingStager fake_;
  FollowerStager stager_{&fake_, [](const PolicyVersion&, const absl::StatusOr<WeightStager::Staged>&) {}};
};

// A receiver may still read what is staged, and one that comes later brings it back.
TEST_F(FollowerStagerTest, WhatIsStagedLeavesTheDeviceAgainAndAgainUntilTheNextTurn) {
  stager_.Leave(nullptr);
  EXPECT_TRUE(fake_.AwaitAsked(2));
  fake_.SetLeaves(true);
  stager_.Leave(nullptr);
  EXPECT_TRUE(fake_.AwaitAsked(4)) << "it may have been brought back";
  fake_.SetLeaves(absl::ResourceExhaustedError("no host memory"));
  EXPECT_TRUE(fake_.AwaitAsked(6)) << "and there may be room later";
  stager_.Stay();
  const int asked = fake_.asked();
  stager_.Stay();
  EXPECT_EQ(fake_.asked(), asked);
}

TEST_F(FollowerStagerTest, NothingLeavesWhileAVersionIsStaged) {
  stager_.Leave(nullptr);
  ASSERT_TRUE(fake_.AwaitAsked(1));
  stager_.Stage({1, 5});
  const int asked = fake_.asked();
  EXPECT_THAT(fake_.launched(), ElementsAre("e1-s5 after " + std::to_string(asked)));
  stager_.Leave(nullptr);
  EXPECT_TRUE(fake_.AwaitAsked(asked + 1));
}

TEST_F(FollowerStagerTest, NothingLeavesWhileAnotherProcessMeasuresTheDevice) {
  Mutex mutex;
  int looks = 0;
  bool measures = true;
  stager_.Leave([&]() -> std::shared_ptr<const void> {
    MutexLock lock(&mutex);
    ++looks;
    return measures ? nullptr : std::make_shared<int>(0);
  });
  {
    MutexLock lock(&mutex);
    auto has_looked = [&] { return looks >= 2; };
    EXPECT_TRUE(mutex.AwaitWithTimeout(Condition(&has_looked), kWithin));
    EXPECT_EQ(fake_.asked(), 0);
    measures = false;
  }
  EXPECT_TRUE(fake_.AwaitAsked(1));
  stager_.Stay();
}

}  // namespace
}  // namespace syncopate::trainer
