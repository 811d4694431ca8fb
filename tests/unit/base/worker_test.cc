#include "base/worker.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/backoff.h"
#include "tests/support/notification.h"

namespace syncopate {
namespace {

TEST(WorkerTest, RunsTasksInOrderOnAnotherThread) {
  Mailbox<int> done;
  Worker worker;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(worker.Post([&done, i] { done.Put(i); }));
  ASSERT_TRUE(done.WaitFor(100));
  std::vector<int> all = done.All();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
}

TEST(WorkerTest, RefusesMoreThanItsCapacity) {
  Mailbox<int> started, release;
  Worker worker(2);
  ASSERT_TRUE(worker.Post([&] {
    started.Put(1);
    release.WaitFor(1);
  }));
  ASSERT_TRUE(started.WaitFor(1));
  EXPECT_TRUE(worker.Post([] {}));
  EXPECT_TRUE(worker.Post([] {}));
  EXPECT_FALSE(worker.Post([] {}));
  release.Put(1);
}

TEST(WorkerTest, RunsWhatWasPostedBeforeItStopsAndNothingAfter) {
  Mailbox<int> done;
  Worker worker;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(worker.Post([&done, i] { done.Put(i); }));
  worker.Stop();
  worker.Stop();
  EXPECT_EQ(done.size(), 10u);
  EXPECT_FALSE(worker.Post([] {}));
}

TEST(BackoffTest, DoublesUpToItsMaximumWithJitterAndBeginsAgainAfterSuccess) {
  Backoff backoff(absl::Milliseconds(100), absl::Seconds(1), /*seed=*/3);
  for (int round = 0; round < 2; ++round) {
    absl::Duration ceiling = absl::Milliseconds(100);
    for (int i = 0; i < 40; ++i) {
      absl::Duration wait = backoff.Next();
      EXPECT_GE(wait, ceiling / 2);
      EXPECT_LT(wait, ceiling);
      ceiling = std::min(ceiling * 2, absl::Duration(absl::Seconds(1)));
    }
    backoff.Reset();
  }
}

TEST(BackoffTest, SpreadsClientsThatBeginTogether) {
  Backoff first(absl::Seconds(1), absl::Seconds(1), 1), second(absl::Seconds(1), absl::Seconds(1), 2);
  EXPECT_NE(first.Next(), second.Next());
}

}  // namespace
}  // namespace syncopate
