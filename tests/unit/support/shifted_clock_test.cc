// The library of tests/support/shifted_clock.cc in a process of its own: this program, started with the library.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace syncopate {
namespace {

constexpr int64_t kShiftSeconds = 3600;
constexpr char kTrueTime[] = "SYNCOPATE_TEST_TRUE_TIME";
constexpr std::chrono::milliseconds kShort(20);
constexpr std::chrono::seconds kLong(20);

// Waits for an event that does not happen. The wait must last about as long as its timeout.
void ExpectShort(const std::string& what, const std::function<void()>& wait) {
  const auto begun = std::chrono::steady_clock::now();
  wait();
  const auto took = std::chrono::steady_clock::now() - begun;
  EXPECT_GE(took, kShort / 2) << what;
  EXPECT_LT(took, kLong) << what;
}

// This test runs only in the other process.
TEST(ShiftedClockTest, DISABLED_InAProcessWithTheLibrary) {
  int64_t true_time = 0;
  ASSERT_TRUE(absl::SimpleAtoi(getenv(kTrueTime), &true_time));
  auto expect_shifted = [&](int64_t now) { EXPECT_NEAR(now, true_time + kShiftSeconds, 120); };
  expect_shifted(absl::ToUnixSeconds(absl::Now()));
  expect_shifted(static_cast<int64_t>(Clock::Real()->UnixSeconds()));
  expect_shifted(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
  expect_shifted(time(nullptr));
  ExpectShort("abseil", [] {
    Mutex mutex;
    const bool never = false;
    MutexLock lock(&mutex);
    EXPECT_FALSE(mutex.AwaitWithTimeout(Condition(&never), absl::FromChrono(kShort)));
  });
  ExpectShort("a condition variable", [] {
    std::mutex mutex;
    std::condition_variable condition;
    std::unique_lock<std::mutex> lock(mutex);
    condition.wait_until(lock, std::chrono::system_clock::now() + kShort, [] { return false; });
  });
  ExpectShort("a condition variable of the steady clock", [] {
    std::mutex mutex;
    std::condition_variable condition;
    std::unique_lock<std::mutex> lock(mutex);
    condition.wait_until(lock, std::chrono::steady_clock::now() + kShort, [] { return false; });
  });
  ExpectShort("a future", [] {
    std::promise<void> promise;
    EXPECT_EQ(promise.get_future().wait_until(std::chrono::system_clock::now() + kShort), std::future_status::timeout);
  });
  ExpectShort("a lock", [] {
    std::timed_mutex mutex;
    const std::unique_lock<std::timed_mutex> held(mutex);
    std::async(std::launch::async, [&] {
      EXPECT_FALSE(mutex.try_lock_until(std::chrono::system_clock::now() + kShort));
    }).get();
  });
  ExpectShort("sleep", [] {
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20'000'000;
    if (until.tv_nsec >= 1'000'000'000) {
      ++until.tv_sec;
      until.tv_nsec -= 1'000'000'000;
    }
    EXPECT_EQ(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, nullptr), 0);
  });
}

TEST(ShiftedClockTest, TheWallClockIsAheadAndWaitsLastAsLongAsTheyShould) {
  const testing::TempDir temp;
  auto process =
      testing::Process::Start({.program = "/usr/bin/env",
                               .args = {absl::StrCat("LD_PRELOAD=", SYNCOPATE_SHIFTED_CLOCK),
                                        absl::StrCat("SYNCOPATE_CLOCK_SHIFT=", kShiftSeconds),
                                        absl::StrCat(kTrueTime, "=", absl::ToUnixSeconds(absl::Now())),
                                        std::filesystem::read_symlink("/proc/self/exe").string(),
                                        "--gtest_also_run_disabled_tests", "--gtest_filter=*InAProcessWithTheLibrary"},
                               .log_path = temp.path() + "/log"});
  ASSERT_THAT(process, testing::IsOk());
  auto exit = (*process)->WaitExit(absl::Seconds(60));
  ASSERT_THAT(exit, testing::IsOk()) << (*process)->Log();
  EXPECT_EQ(*exit, testing::ExitStatus{}) << (*process)->Log();
  EXPECT_THAT((*process)->Log(), ::testing::HasSubstr("1 test"));
}

}  // namespace
}  // namespace syncopate
