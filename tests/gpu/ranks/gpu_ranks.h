#pragma once

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "model/cuda/torch_stream.h"
#include "ranks/nccl/nccl_ranks.h"

namespace syncopate::trainer {

constexpr absl::Duration kMeetWithin = absl::Seconds(60);

// Calls `body` for each of `world` ranks, on a thread of its own; rank r uses GPU r of this process.
inline void OnGpus(int32_t world, const std::function<void(Communicator&)>& body,
                   absl::Duration deadline = absl::Seconds(60)) {
  const cuda::NcclId id = cuda::NewNcclId().value();
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&body, &id, rank, world, deadline] {
      const c10::DeviceGuard guard(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank)));
      auto ranks = JoinNcclRanks(
          {.device = rank, .rank = rank, .world = world, .deadline = deadline, .stream = model::TorchStream(rank)}, id,
          kMeetWithin);
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      body(**ranks);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline at::Device GetGpu(const Communicator& ranks) {
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(ranks.rank()));
}

}  // namespace syncopate::trainer
