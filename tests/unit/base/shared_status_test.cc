// A Status that threads share: its reference count alone orders the last use in one of them before its release in another.
// ThreadSanitizer cannot see that in a library that it did not instrument; tests/tsan.supp says so for it.

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace syncopate {
namespace {

constexpr int kRounds = 200, kThreads = 4;

TEST(SharedStatusTest, IsReleasedByWhoeverLetsItGoLast) {
  const std::string text = "a text that is too long to be kept without memory of its own";
  for (int round = 0; round < kRounds; ++round) {
    absl::Status status = absl::InternalError(text);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&text, status] { EXPECT_EQ(status.message(), text); });
    }
    status = absl::OkStatus();
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace syncopate
