#pragma once

#include <memory>

#include "base/status.h"
#include "rollouter/reward/http_scorer.h"
#include "rollouter/reward/scorer.h"
#include "services/rollouter/environment_client.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::rollouterd {

// Whoever gives rewards to this rollouter from outside. Must outlive the scorer that asks them.
class RemoteScorers {
 public:
  // Those that the configuration names: http if reward.url is set, the worker if environment.address is. Nobody is
  // waited for. Errors of HttpScorer::Start, and of security.token_file.
  static absl::StatusOr<std::unique_ptr<RemoteScorers>> Start(const v1::RunConfig& config);
  ~RemoteScorers();

  // How the run's answers are scored. `decode` may be null: scorer.h.
  rollouter::Scorer::Options ScorerOptions(const v1::RunConfig& config, rollouter::TextDecoder decode) const;

 private:
  RemoteScorers() = default;
  std::unique_ptr<rollouter::HttpScorer> http_;
  std::shared_ptr<EnvironmentClient> python_;
};

}  // namespace syncopate::rollouterd
