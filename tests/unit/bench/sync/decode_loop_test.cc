#include "bench/sync/decode_loop.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/clock.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"

namespace syncopate::bench {
namespace {

using ::syncopate::testing::HasReason;

// Steps that the test counts, and may hold up.
class Steps {
 public:
  absl::Status Run() {
    MutexLock lock(&mutex_);
    ++begun_;
    hangs_ = blocked_;
    auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !blocked_; };
    mutex_.AwaitWithTimeout(Condition(&free), kTestDeadline);
    hangs_ = false;
    return absl::OkStatus();
  }
  // True as soon as `more` further steps have begun; false after `deadline`.
  bool Await(int64_t more, absl::Duration deadline = kTestDeadline) {
    MutexLock lock(&mutex_);
    const int64_t wanted = begun_ + more;
    auto enough = [this, wanted]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return begun_ >= wanted; };
    return mutex_.AwaitWithTimeout(Condition(&enough), deadline);
  }
  // True as soon as a step hangs, until Free.
  bool Block() {
    MutexLock lock(&mutex_);
    blocked_ = true;
    return mutex_.AwaitWithTimeout(Condition(&hangs_), kTestDeadline);
  }
  void Free() {
    MutexLock lock(&mutex_);
    blocked_ = false;
  }

 private:
  Mutex mutex_;
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(DecodeLoopTest, RunsNoStepWhileItIsHeld) {
  Steps steps;
  DecodeLoop loop([&] { return steps.Run(); });
  ASSERT_TRUE(steps.Await(3));
  ASSERT_TRUE(loop.Hold(kTestDeadline).ok());
  EXPECT_FALSE(steps.Await(1, absl::Milliseconds(30)));
  EXPECT_GE(loop.Release(), absl::Milliseconds(30));
  EXPECT_TRUE(steps.Await(3));
}

TEST(DecodeLoopTest, GivesUpAHoldIfTheStepDoesNotEnd) {
  Steps steps;
  DecodeLoop loop([&] { return steps.Run(); });
  ASSERT_TRUE(steps.Block());
  EXPECT_THAT(loop.Hold(absl::Milliseconds(10)), HasReason("DEADLINE"));
  steps.Free();
  EXPECT_TRUE(steps.Await(5));  // the loop is not stopped
}

TEST(DecodeLoopTest, ActsBetweenTwoStepsAndSaysWhatThePauseWas) {
  std::atomic<bool> running = false;
  DecodeLoop loop([&] {
    running = true;
    running = false;
    return absl::OkStatus();
  });
  for (int i = 0; i < 100; ++i) {
    bool alone = false;
    auto pause = loop.Between(
        [&] {
          alone = !running;
          return absl::OkStatus();
        },
        kTestDeadline);
    ASSERT_TRUE(pause.ok());
    EXPECT_GE(*pause, 0);
    ASSERT_TRUE(alone);
  }
  EXPECT_THAT(loop.Between([] { return Error(absl::StatusCode::kInternal, "NO", "no"); }, kTestDeadline),
              HasReason("NO"));
}

TEST(DecodeLoopTest, CountsTheStepsOfAWindowInPart) {
  Steps steps;
  DecodeLoop loop([&] { return steps.Run(); });
  ASSERT_TRUE(steps.Await(100));
  ASSERT_TRUE(steps.Block());
  const absl::Time begin = Clock::Real()->Now();
  EXPECT_FALSE(steps.Await(1, absl::Milliseconds(40)));  // one step hangs, before the window, in it and after
  const absl::Time end = Clock::Real()->Now();
  steps.Free();
  ASSERT_TRUE(steps.Await(10));
  EXPECT_GT(loop.StepsWithin({{begin, end}}), 0.3);
  EXPECT_LT(loop.StepsWithin({{begin, end}}), 1.0);
  EXPECT_GE(loop.StepsWithin({{begin - absl::Seconds(10), Clock::Real()->Now()}}), 100);
  EXPECT_GE(loop.LongestGap(), end - begin);
  loop.Forget();
  EXPECT_EQ(loop.StepsWithin({{begin, end}}), 0);
}

TEST(DecodeLoopTest, StopsWithTheErrorOfAStep) {
  Mailbox<int> steps;
  DecodeLoop loop([&] {
    steps.Put(1);
    return Error(absl::StatusCode::kInternal, "CUDA_ERROR", "broken");
  });
  ASSERT_TRUE(steps.WaitFor(1));
  ASSERT_TRUE(loop.Hold(kTestDeadline).ok());
  EXPECT_THAT(loop.status(), HasReason("CUDA_ERROR"));
  loop.Release();
  EXPECT_EQ(steps.size(), 1u);
}

}  // namespace
}  // namespace syncopate::bench
