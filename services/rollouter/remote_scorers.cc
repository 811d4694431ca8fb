#include "services/rollouter/remote_scorers.h"

#include <functional>
#include <string>
#include <utility>

#include "base/host_port.h"
#include "services/auth/transport_security.h"
#include "services/config/duration.h"
#include "services/config/reward_options.h"
#include "services/config/rules.h"

namespace syncopate::rollouterd {
namespace {

rollouter::JudgeScorer::Options JudgeOptions(const v1::RunConfig& config) {
  const v1::RewardSection& reward = config.reward();
  return {.url = reward.judge_url(),
          .sampling = {.model = reward.judge_model(),
                       .max_new_tokens = reward.judge_max_new_tokens(),
                       .temperature = reward.judge_temperature()},
          .prompt = reward.judge_prompt(),
          .pattern = reward.judge_pattern(),
          .needs_usage = reward.judge_tokens() > 0,
          .key_file = reward.judge_key_file(),
          .connections = reward.http_connections()};
}

// What is shown to the worker: a token on a socket or a loopback address, a certificate elsewhere.
absl::StatusOr<std::shared_ptr<const auth::TransportSecurity>> WorkerSecurity(const v1::RunConfig& config) {
  const v1::SecuritySection& security = config.security();
  // No token over TLS: a worker on another host would see it, and could show it to the daemons as a rollouter.
  if (config::WorkerUsesTls(config)) {
    return auth::TransportSecurity::Load({.role = "rollouter",
                                          .tls_cert = security.tls_cert(),
                                          .tls_key = security.tls_key(),
                                          .tls_ca = security.tls_ca(),
                                          .tls_reload = config::CheckedDuration(security.tls_reload()),
                                          .trust_domain = security.trust_domain()});
  }
  return auth::TransportSecurity::Load({.role = "rollouter",
                                        .tls_reload = config::CheckedDuration(security.tls_reload()),
                                        .token_file = security.token_file()});
}

// Whether several workers may be behind the address.
bool IsElsewhere(const std::string& address) {
  const auto place = ParseHostPort(address);
  return place.ok() && !place->IsLoopback();
}

std::function<SpreadEnvironment::Connection(const std::string&)> ConnectPlay(PlayClient::Options options) {
  return [options = std::move(options)](const std::string& digest) {
    PlayClient::Options one = options;
    if (one.digest.empty()) one.digest = digest;
    auto client = PlayClient::Start(std::move(one));
    return SpreadEnvironment::Connection{
        .play = client, .stop = [client] { client->Stop(); }, .digest = [client] { return client->digest(); }};
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteScorers>> RemoteScorers::Start(const v1::RunConfig& config) {
  std::unique_ptr<RemoteScorers> scorers(new RemoteScorers());
  const v1::RewardSection& reward = config.reward();
  if (!reward.url().empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(
        scorers->http_,
        rollouter::HttpScorer::Start(
            {.url = reward.url(), .batch = reward.http_batch(), .connections = reward.http_connections()}));
  }
  if (!reward.judge_url().empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(scorers->judge_, rollouter::JudgeScorer::Start(JudgeOptions(config)));
  }
  if (!config.environment().address().empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto security, WorkerSecurity(config));
    scorers->python_ = EnvironmentClient::Start(
        {.address = config.environment().address(), .digest = config.environment().digest(), .security = security});
    if (config::Plays(config)) {
      PlayClient::Options options = {.address = config.environment().address(),
                                     .digest = config.environment().digest(),
                                     .security = std::move(security),
                                     .call_budget = config::CheckedDuration(reward.timeout())};
      if (IsElsewhere(options.address)) {
        scorers->spread_ = SpreadEnvironment::Start({.connect = ConnectPlay(std::move(options))});
      } else {
        scorers->play_ = PlayClient::Start(std::move(options));
      }
    }
  }
  return scorers;
}

RemoteScorers::~RemoteScorers() { Stop(); }

void RemoteScorers::Stop() {
  if (python_ != nullptr) python_->Stop();
  if (play_ != nullptr) play_->Stop();
  if (spread_ != nullptr) spread_->Stop();
}

rollouter::RemoteEnvironment* RemoteScorers::environment() const {
  if (spread_ != nullptr) return spread_.get();
  return play_.get();
}

rollouter::Scorer::Options RemoteScorers::ScorerOptions(const v1::RunConfig& config,
                                                        rollouter::TextDecoder decode) const {
  return {.parameters = config::MakeRewardParameters(config),
          .rules = config::MakeScoringRules(config),
          .reward = config.reward().name(),
          .decode = std::move(decode),
          .http = http_.get(),
          .python = python_.get(),
          .judge = judge_.get()};
}

}  // namespace syncopate::rollouterd
