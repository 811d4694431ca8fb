#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "model/model_config.h"
#include "trainer/step/options.h"

namespace syncopate::trainer {

// The policy under training and everything that changes it: actor, loss, optimizer. The border to libtorch: this header
// needs none of it. Owned by the step thread; not thread-safe.
class PolicyTrainer {
 public:
  struct Options {
    model::ModelConfig model;
    AdamWOptions optimizer;
    TrainStepOptions step;
    uint64_t seed = 0;  // of the initial weights
    int64_t bucket_bytes = Manifest::kDefaultBucketBytes;
    int threads = 1;  // intra-op threads of libtorch, for the whole process
  };

  // Builds the model with random initial weights. INVALID_ARGUMENT for options that cannot be.
  static absl::StatusOr<std::unique_ptr<PolicyTrainer>> Create(const Options& options);
  ~PolicyTrainer();
  PolicyTrainer(const PolicyTrainer&) = delete;
  PolicyTrainer& operator=(const PolicyTrainer&) = delete;

  const Manifest& manifest() const;

  // One training step on whole groups, in this order; a pure function of state and groups. Blocks for its duration.
  // After an error the run cannot go on from this state; INTERNAL (reason TORCH) is libtorch's own.
  absl::StatusOr<TrainStepMetrics> Step(const std::vector<const TrajectoryGroup*>& groups);

  // The current weights in wire order, float32: manifest().arena_bytes() bytes, valid until the next Step() or
  // Restore().
  const void* parameters() const;

  // Everything a resumed run needs for the same bits: three arenas of manifest().arena_bytes() bytes and a counter. The
  // pointers are valid until the next Step() or Restore().
  struct State {
    const void* parameters = nullptr;
    const void* first_moment = nullptr;
    const void* second_moment = nullptr;
    int64_t updates = 0;
  };
  State state() const;
  void Restore(const State& state);

 private:
  class Core;
  explicit PolicyTrainer(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace syncopate::trainer
