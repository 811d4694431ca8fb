#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "trainer/step/options.h"

namespace syncopate::trainer {

// A policy under training, as whoever takes its steps sees it: PolicyTrainer, or a test's own. Owned by one thread.
class Policy {
 public:
  // Everything a resumed run needs for the same bits: three arenas of manifest().arena_bytes() bytes in host memory and
  // a counter. The pointers are valid until the next Step().
  struct State {
    const void* parameters = nullptr;
    const void* first_moment = nullptr;
    const void* second_moment = nullptr;
    int64_t updates = 0;
  };

  virtual ~Policy() = default;

  virtual const Manifest& manifest() const = 0;
  // One training step on whole groups, in this order; a pure function of state, groups and `step`, the number of the
  // version it begins with, which the staleness of tokens is counted to. Blocks for its duration. After an error the
  // run cannot go on from this state.
  virtual absl::StatusOr<TrainStepMetrics> Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) = 0;
  // The same towards given answers, which each group has one of or more, with tokens alone: an update by the mean
  // cross-entropy of their tokens. A pure function of state and groups.
  virtual absl::StatusOr<TrainStepMetrics> SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) = 0;
  // The current weights in wire order: manifest().arena_bytes() bytes of host memory, valid until the next Step(). A
  // policy on another device copies them when they are asked for, and may fail to.
  virtual absl::StatusOr<const void*> parameters() const = 0;
  virtual absl::StatusOr<State> state() const = 0;
};

}  // namespace syncopate::trainer
