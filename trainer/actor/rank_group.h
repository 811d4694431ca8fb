#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "base/status.h"

namespace syncopate::trainer {

// The trainer ranks that hold one actor together. Collective calls block until all ranks have made them.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;
  // values := their sum over the ranks, in rank order (the same bits on every rank).
  virtual absl::Status AllReduceSum(absl::Span<double> values) = 0;
  virtual absl::Status AllReduceSum(absl::Span<float> values) = 0;
};

// A group of one.
class SingleRank final : public RankGroup {
 public:
  int32_t rank() const override { return 0; }
  int32_t world() const override { return 1; }
  absl::Status AllReduceSum(absl::Span<double> values) override { return absl::OkStatus(); }
  absl::Status AllReduceSum(absl::Span<float> values) override { return absl::OkStatus(); }
};

}  // namespace syncopate::trainer
