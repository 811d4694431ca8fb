#include "base/daemon/host_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/uuid.h"

namespace syncopate::daemon {
namespace {

std::string NewName() { return absl::StrCat("syncopate-test-", RandomUuid()); }

TEST(HostLockTest, ASecondOneOfTheNameIsRefusedUntilTheFirstIsFreed) {
  const std::string name = NewName();
  auto first = HostLock::Acquire(name, absl::ZeroDuration());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = HostLock::Acquire(name, absl::Milliseconds(30));
  EXPECT_EQ(ErrorReason(second.status()), "HOST_LOCK_TAKEN");
  first->reset();
  EXPECT_TRUE(HostLock::Acquire(name, absl::ZeroDuration()).ok());
}

TEST(HostLockTest, OtherNamesAreFree) {
  const std::string name = NewName();
  const auto first = HostLock::Acquire(name, absl::ZeroDuration());
  ASSERT_TRUE(first.ok());
  // A name that only begins alike is another.
  EXPECT_TRUE(HostLock::Acquire(absl::StrCat(name, "0"), absl::ZeroDuration()).ok());
}

TEST(HostLockTest, AProcessThatEndsWithoutFreeingItLeavesItToTheOneThatWaits) {
  const std::string name = NewName();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto held = HostLock::Acquire(name, absl::ZeroDuration());
    const char ok = held.ok() ? 1 : 0;
    if (::write(ready[1], &ok, 1) != 1) _exit(1);
    ::pause();
    _exit(0);
  }
  char ok = 0;
  ASSERT_EQ(::read(ready[0], &ok, 1), 1);
  ASSERT_EQ(ok, 1);
  EXPECT_FALSE(HostLock::Acquire(name, absl::ZeroDuration()).ok());
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(HostLock::Acquire(name, absl::Seconds(20)).ok());
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace syncopate::daemon
