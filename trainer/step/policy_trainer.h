#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "model/model_config.h"
#include "model/weight_files.h"
#include "trainer/step/options.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// The policy under training and everything that changes it: actor, loss, optimizer. The border to libtorch: this header
// needs none of it. Owned by the step thread; not thread-safe.
class PolicyTrainer final : public Policy {
 public:
  struct Options {
    model::ModelConfig model;
    AdamWOptions optimizer;
    TrainStepOptions step;
    uint64_t seed = 0;  // of the initial weights
    // The initial weights, opened for `model`; null: random ones. Not needed after Create().
    std::shared_ptr<const model::WeightFiles> weights = nullptr;
    int64_t bucket_bytes = Manifest::kDefaultBucketBytes;
    int threads = 1;             // intra-op threads of libtorch, for the whole process
    std::string device = "cpu";  // or "cuda:N", as model::ChooseDevice says
  };

  // Builds the model. INVALID_ARGUMENT for options that cannot be; DATA_LOSS (reason NON_FINITE) naming file and
  // tensor, before anything is allocated, if a weight is not finite; RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) saying
  // how much was needed.
  static absl::StatusOr<std::unique_ptr<PolicyTrainer>> Create(const Options& options);
  ~PolicyTrainer() override;
  PolicyTrainer(const PolicyTrainer&) = delete;
  PolicyTrainer& operator=(const PolicyTrainer&) = delete;

  const Manifest& manifest() const override;
  // INTERNAL (reason TORCH) is libtorch's own error, RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) one of memory. So for
  // all that follow.
  absl::StatusOr<TrainStepMetrics> Step(const std::vector<const TrajectoryGroup*>& groups) override;
  // These are float32, and valid until the next Step() or Restore(). From a GPU they are copies, whose memory is kept.
  absl::StatusOr<const void*> parameters() const override;
  absl::StatusOr<State> state() const override;
  // Copies from the pointers of `state`.
  absl::Status Restore(const State& state);

  // The current weights where the policy computes, laid out by manifest(): always this address. Work on them is queued
  // on the device's default stream.
  const void* device_parameters() const;

 private:
  class Core;
  explicit PolicyTrainer(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace syncopate::trainer
