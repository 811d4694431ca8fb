#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/reward/group_score.h"
#include "services/trainer/prompt_sources.h"
#include "synchronizer/transport/inproc_transport.h"
#include "synchronizer/transport/weight_receiver.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/staging/host_stager.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::twin {

// The whole of a run in one process, one thing after the other: generate with the current weights, train, install. It
// is the synchronous twin: a distributed run with max_staleness 0 must give the same bits, step by step. Uses the same
// engine, reward, step, weight sync (transport "inproc") and configuration as the daemons. Not thread-safe.
class SynchronousLoop {
 public:
  struct StepResult {
    int64_t step = 0;  // made by it
    trainer::StepFigures metrics;
    uint64_t weights_digest = 0;
  };

  // `config` has passed its checks.
  static absl::StatusOr<std::unique_ptr<SynchronousLoop>> Create(const v1::RunConfig& config);

  // One batch of prompts in order, one training step, one weight sync; a supervised one ends without a sync, unless it
  // is the last before those on rewards.
  absl::StatusOr<StepResult> Step();
  // The engine serves the weights of the last step, so that they can be evaluated.
  bool serves() const { return step_ >= supervised_steps_; }

  // Share of the evaluation prompts with answer ids that greedy decoding answers wholly right; none without any.
  absl::StatusOr<std::optional<double>> EvaluateExact();

  int64_t step() const { return step_; }
  // The trainer's own digest of its weights after the last step, as metrics.jsonl has it.
  uint64_t weights_digest() const { return weights_digest_; }

 private:
  struct Parts {
    trainerd::PromptSources prompts;
    std::unique_ptr<trainer::PolicyTrainer> trainer;
    std::unique_ptr<rollouter::EngineLoop> engine;
    std::unique_ptr<trainer::HostStager> stager;
    rollouter::RewardPlan rewards;
  };
  struct Asked {
    GroupId group;
    trainer::Prompt prompt;
  };
  SynchronousLoop(const v1::RunConfig& config, Parts parts);

  absl::Status SyncWeights();
  absl::StatusOr<trainer::StepFigures> TrainSupervised(std::vector<Asked> batch);
  absl::StatusOr<trainer::StepFigures> TrainOnRollouts(const std::vector<Asked>& batch);
  // The next batch, in order: those groups whose rows are prompts.
  absl::StatusOr<std::vector<Asked>> NextBatch();
  absl::StatusOr<std::vector<TrajectoryGroup>> Generate(const std::vector<Asked>& asked, int32_t samples,
                                                        const SamplingParams& sampling);

  const v1::RunConfig config_;
  const int64_t supervised_steps_;
  const Parts parts_;
  synchronizer::InprocHub hub_;
  synchronizer::InprocReceiver transport_;
  synchronizer::WeightReceiver receiver_;
  int64_t step_ = 0;
  GroupId next_;  // first that no batch has had
  uint64_t weights_digest_ = 0;
};

}  // namespace syncopate::twin
