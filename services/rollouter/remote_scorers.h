#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "rollouter/environment/environment_fleet.h"
#include "rollouter/reward/http_scorer.h"
#include "rollouter/reward/judge_scorer.h"
#include "rollouter/reward/scorer.h"
#include "rollouter/reward/scorer_fleet.h"
#include "services/rollouter/environment_client.h"
#include "services/rollouter/play_client.h"
#include "services/rollouter/spread_environment.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::rollouterd {

// The scorers and environments outside this process. Must outlive who asks them.
class RemoteScorers {
 public:
  // Starts the scorers that the configuration names: HTTP if reward.url is set, the judge if reward.judge_url is, a
  // client of each worker of environment.address, for environments too if environment.name is set. Waits for none of them. Errors of
  // HttpScorer::Start and JudgeScorer::Start, and of security.token_file.
  static absl::StatusOr<std::unique_ptr<RemoteScorers>> Start(const v1::RunConfig& config);
  ~RemoteScorers();
  // Ends all connections to the worker; afterwards none of its callbacks is called. Call it before who asks is freed, as
  // callbacks reach that. Blocks for a moment. Idempotent.
  void Stop();

  // The options for scoring the run's answers. `decode` may be null: scorer.h.
  rollouter::Scorer::Options ScorerOptions(const v1::RunConfig& config, rollouter::TextDecoder decode) const;
  // The environments of the workers; null: the run plays with none of theirs.
  rollouter::RemoteEnvironment* environment() const { return environments_.get(); }

 private:
  RemoteScorers() = default;
  std::unique_ptr<rollouter::HttpScorer> http_;
  std::unique_ptr<rollouter::JudgeScorer> judge_;
  // One of each for a worker, and all of them as one; null without workers.
  std::vector<std::shared_ptr<EnvironmentClient>> python_clients_;
  std::vector<std::shared_ptr<PlayClient>> play_clients_;
  std::vector<std::shared_ptr<SpreadEnvironment>> spread_;  // of several workers behind a name
  std::unique_ptr<rollouter::ScorerFleet> python_;
  std::unique_ptr<rollouter::EnvironmentFleet> environments_;
};

}  // namespace syncopate::rollouterd
