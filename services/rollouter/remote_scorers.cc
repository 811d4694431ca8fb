#include "services/rollouter/remote_scorers.h"

#include <functional>
#include <string>
#include <utility>

#include "base/host_port.h"
#include "services/auth/worker_security.h"
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

// Whether several workers may be behind the address.
bool IsElsewhere(const std::string& address) {
  const auto place = ParseHostPort(address);
  return place.ok() && !place->IsLoopback();
}

std::function<SpreadEnvironment::Connection()> ConnectPlay(PlayClient::Options options) {
  return [options = std::move(options)] {
    auto client = PlayClient::Start(options);
    return SpreadEnvironment::Connection{.play = client, .stop = [client] { client->Stop(); }};
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
  const std::vector<std::string> workers = config::WorkerAddresses(config);
  if (workers.empty()) return scorers;
  SYNCOPATE_ASSIGN_OR_RETURN(const auto security, auth::LoadWorkerSecurity(config, "rollouter"));
  const auto digest = std::make_shared<WorkerDigest>(config.environment().digest());
  std::vector<rollouter::RemoteScorer*> python;
  std::vector<rollouter::RemoteEnvironment*> environments;
  for (const std::string& address : workers) {
    scorers->python_clients_.push_back(
        EnvironmentClient::Start({.address = address, .shared_digest = digest, .security = security}));
    python.push_back(scorers->python_clients_.back().get());
    if (!config::Plays(config)) continue;
    PlayClient::Options options = {.address = address,
                                   .shared_digest = digest,
                                   .security = security,
                                   .call_budget = config::CheckedDuration(reward.timeout())};
    if (IsElsewhere(address)) {
      scorers->spread_.push_back(SpreadEnvironment::Start({.connect = ConnectPlay(std::move(options))}));
      environments.push_back(scorers->spread_.back().get());
    } else {
      scorers->play_clients_.push_back(PlayClient::Start(std::move(options)));
      environments.push_back(scorers->play_clients_.back().get());
    }
  }
  scorers->python_ = std::make_unique<rollouter::ScorerFleet>(std::move(python));
  if (!environments.empty()) {
    scorers->environments_ = std::make_unique<rollouter::EnvironmentFleet>(std::move(environments));
  }
  return scorers;
}

RemoteScorers::~RemoteScorers() { Stop(); }

void RemoteScorers::Stop() {
  for (const auto& client : python_clients_) client->Stop();
  for (const auto& client : play_clients_) client->Stop();
  for (const auto& spread : spread_) spread->Stop();
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
