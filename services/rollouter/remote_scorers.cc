#include "services/rollouter/remote_scorers.h"

#include <utility>

#include "services/auth/transport_security.h"
#include "services/config/duration.h"
#include "services/config/reward_options.h"
#include "services/config/rules.h"

namespace syncopate::rollouterd {

absl::StatusOr<std::unique_ptr<RemoteScorers>> RemoteScorers::Start(const v1::RunConfig& config) {
  std::unique_ptr<RemoteScorers> scorers(new RemoteScorers());
  const v1::RewardSection& reward = config.reward();
  if (!reward.url().empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(
        scorers->http_,
        rollouter::HttpScorer::Start(
            {.url = reward.url(), .batch = reward.http_batch(), .connections = reward.http_connections()}));
  }
  if (!config.environment().address().empty()) {
    const v1::SecuritySection& security = config.security();
    // The worker's port is always plaintext: of the daemons' security it uses only the tokens.
    SYNCOPATE_ASSIGN_OR_RETURN(
        auto tokens, auth::TransportSecurity::Load({.role = "rollouter",
                                                    .tls_reload = config::CheckedDuration(security.tls_reload()),
                                                    .token_file = security.token_file()}));
    scorers->python_ = EnvironmentClient::Start(
        {.address = config.environment().address(), .digest = config.environment().digest(), .tokens = tokens});
    if (config::Plays(config)) {
      scorers->play_ = PlayClient::Start({.address = config.environment().address(),
                                          .digest = config.environment().digest(),
                                          .tokens = std::move(tokens),
                                          .call_budget = config::CheckedDuration(reward.timeout())});
    }
  }
  return scorers;
}

RemoteScorers::~RemoteScorers() { Stop(); }

void RemoteScorers::Stop() {
  if (python_ != nullptr) python_->Stop();
  if (play_ != nullptr) play_->Stop();
}

rollouter::Scorer::Options RemoteScorers::ScorerOptions(const v1::RunConfig& config,
                                                        rollouter::TextDecoder decode) const {
  return {.parameters = config::MakeRewardParameters(config),
          .rules = config::MakeScoringRules(config),
          .reward = config.reward().name(),
          .decode = std::move(decode),
          .http = http_.get(),
          .python = python_.get()};
}

}  // namespace syncopate::rollouterd
