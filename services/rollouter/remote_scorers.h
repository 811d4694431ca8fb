#pragma once

#include <memory>

#include "base/status.h"
#include "rollouter/reward/http_scorer.h"
#include "rollouter/reward/scorer.h"
#include "services/rollouter/environment_client.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::rollouterd {

// The scorers outside this process that give its rewards. Must outlive the Scorer that asks them.
class RemoteScorers {
 public:
  // Starts the scorers that the configuration names: HTTP if reward.url is set, the worker if environment.address is
  // set. Waits for none of them. Errors of HttpScorer::Start, and of security.token_file.
  static absl::StatusOr<std::unique_ptr<RemoteScorers>> Start(const v1::RunConfig& config);
  ~RemoteScorers();

  // The options for scoring the run's answers. `decode` may be null: scorer.h.
  rollouter::Scorer::Options ScorerOptions(const v1::RunConfig& config, rollouter::TextDecoder decode) const;

 private:
  RemoteScorers() = default;
  std::unique_ptr<rollouter::HttpScorer> http_;
  std::shared_ptr<EnvironmentClient> python_;
};

}  // namespace syncopate::rollouterd
