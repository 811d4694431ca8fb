#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "synchronizer/plan/sync_plan.h"

// The parts that the rigs of all transports share.
namespace syncopate::synchronizer {

// Runs receivers 0 to count - 1 at once, each on a thread of its own, and returns their results.
inline std::vector<absl::Status> ReceiveAtOnce(size_t count, const std::function<absl::Status(int32_t)>& receive) {
  std::vector<absl::Status> statuses(count);
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([i, &statuses, &receive] { statuses[i] = receive(static_cast<int32_t>(i)); });
  }
  threads.clear();
  return statuses;
}

// Checks that `received` equals the sources' bytes and that each byte was announced once.
inline void ExpectCopied(const std::vector<Copy>& copies, const std::function<const char*(int32_t)>& source,
                         const char* received, const std::vector<int>& arrivals, int32_t receiver) {
  for (const Copy& copy : copies) {
    ASSERT_EQ(std::memcmp(received + copy.destination_offset, source(copy.source) + copy.source_offset,
                          static_cast<size_t>(copy.bytes)),
              0)
        << "receiver " << receiver << ", source " << copy.source;
    for (int64_t at = copy.destination_offset; at < copy.destination_offset + copy.bytes; ++at) {
      ASSERT_EQ(arrivals[static_cast<size_t>(at)], 1) << "receiver " << receiver << ", byte " << at;
    }
  }
}

}  // namespace syncopate::synchronizer
