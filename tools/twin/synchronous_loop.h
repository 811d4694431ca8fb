#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/reward/group_score.h"
#include "rollouter/trajectory/play_assembly.h"
#include "rollouter/trajectory/stop_rules.h"
#include "services/trainer/prompt_sources.h"
#include "synchronizer/transport/inproc_transport.h"
#include "synchronizer/transport/weight_receiver.h"
#include "syncopate/v1/config.pb.h"
#include "tools/twin/engine_ranks.h"
#include "tools/twin/trainer_ranks.h"

namespace syncopate::twin {

// A whole run in one process, one thing after the other: generate with the current weights, train, install. It is the
// synchronous twin. With a lag it emulates an asynchronous run whose every token is as old: it generates with the
// weights of so many steps before. Without: a distributed run with max_staleness 0 must give bit-identical weights,
// step by step. The ranks of trainer and engine are threads. Uses the daemons' engine, reward, training step, weight
// sync (transport "inproc") and configuration. Not thread-safe.
class SynchronousLoop {
 public:
  struct StepResult {
    int64_t step = 0;  // made by it
    trainer::StepFigures metrics;
    uint64_t weights_digest = 0;
  };

  // `config` must have passed its checks. `lag`: steps that the weights which generate are behind, as soon as there are
  // so many. INVALID_ARGUMENT (reason BAD_LAG) if it is negative, or beyond staleness.max_staleness: no token would be
  // trained.
  static absl::StatusOr<std::unique_ptr<SynchronousLoop>> Create(const v1::RunConfig& config, int64_t lag = 0);

  // One batch of prompts in order, one training step, one weight sync. A supervised step makes no sync, unless it is
  // the last one before the steps on rewards.
  absl::StatusOr<StepResult> Step();
  // Whether the engine serves the weights of the last step, so that they can be evaluated.
  bool serves() const { return step_ >= supervised_steps_; }

  // Share of exactly right greedy answers of the weights that generate to the evaluation prompts with answer ids;
  // nullopt if there are none.
  absl::StatusOr<std::optional<double>> EvaluateExact();

  int64_t step() const { return step_; }
  int64_t served_step() const { return served_; }  // of the weights that generate
  // The trainer's digest of its weights after the last step, the same that metrics.jsonl contains.
  uint64_t weights_digest() const { return weights_digest_; }

 private:
  struct Parts {
    trainerd::PromptSources prompts;
    std::unique_ptr<TrainerRanks> trainer;
    std::unique_ptr<EngineRanks> engine;
    rollouter::RewardPlan rewards;
    rollouter::StopRules stops;
    std::optional<rollouter::PlayRules> play;  // none: an answer is one turn
  };
  struct Asked {
    GroupId group;
    trainer::Prompt prompt;
  };
  SynchronousLoop(const v1::RunConfig& config, const model::ModelConfig& shape, int64_t lag, Parts parts);

  // Stages the weights of this step, and installs those that are `lag_` steps older.
  absl::Status SyncWeights();
  absl::Status Install(int64_t step, const trainer::WeightStager::Staged& staged);
  absl::StatusOr<trainer::StepFigures> TrainSupervised(std::vector<Asked> batch);
  absl::StatusOr<trainer::StepFigures> TrainOnRollouts(const std::vector<Asked>& batch);
  // The next batch, in order: those groups whose rows are prompts.
  absl::StatusOr<std::vector<Asked>> NextBatch();
  absl::Status Submit(const Lease& lease, rollouter::GroupAssembly::Done done);
  absl::StatusOr<std::vector<TrajectoryGroup>> Generate(const std::vector<Asked>& asked, int32_t samples,
                                                        const SamplingParams& sampling);

  const v1::RunConfig config_;
  const int64_t supervised_steps_;
  const Parts parts_;
  synchronizer::InprocHub hub_;
  synchronizer::InprocReceiver transport_;
  const std::string layout_;                                              // of the engine's ranks; "": whole
  std::vector<std::unique_ptr<synchronizer::WeightReceiver>> receivers_;  // by rank of the engine
  int64_t step_ = 0;
  const int64_t lag_;
  std::deque<std::pair<int64_t, trainer::WeightStager::Staged>> staged_;  // by step, from the one served on
  int64_t served_ = -1;                                                   // -1: none yet
  GroupId next_;                                                          // the first group that is not used yet
  uint64_t weights_digest_ = 0;
};

}  // namespace syncopate::twin
