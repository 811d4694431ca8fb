#include "base/daemon/stop_deadline.h"

#include <gtest/gtest.h>

#include "tests/support/notification.h"

namespace syncopate::daemon {
namespace {

TEST(StopDeadlineTest, SpeaksOnceWhenTheStopDoesNotEnd) {
  Mailbox<int> expired;
  StopDeadline deadline(absl::Milliseconds(1), [&expired] { expired.Put(1); });
  EXPECT_TRUE(expired.WaitFor(1));
}

TEST(StopDeadlineTest, IsSilentWhenTheStopEndsInTime) {
  Mailbox<int> expired;
  {
    StopDeadline deadline(absl::Hours(1), [&expired] { expired.Put(1); });
  }
  EXPECT_EQ(expired.size(), 0u);  // the thread of the deadline is gone, so the number stays 0
}

}  // namespace
}  // namespace syncopate::daemon
