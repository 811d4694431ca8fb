#include "services/trainer/environment_tools.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "services/auth/worker_security.h"
#include "services/config/rules.h"
#include "services/rpc/channel.h"
#include "syncopate/v1/environment.grpc.pb.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kDescribeWithin = absl::Seconds(5);
constexpr absl::Duration kRetryAfter = absl::Milliseconds(200);

// A worker beside each rollouter has its socket in their folder, which this host does not have.
bool CanBeHere(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "unix:")) return true;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(std::string(address)).parent_path();
  return folder.empty() || std::filesystem::is_directory(folder, error);
}

absl::StatusOr<trainer::EnvironmentTools> ReadTools(const v1::RunConfig& config, const std::string& address,
                                                    const v1::DescribeResponse& described) {
  const std::string& digest = config.environment().digest();
  if (!digest.empty() && described.digest() != digest) {
    return Error(absl::StatusCode::kFailedPrecondition, "WRONG_DIGEST",
                 absl::StrCat("the worker at ", address, " runs code of digest ", described.digest(),
                              ", and environment.digest is ", digest));
  }
  trainer::EnvironmentTools all;
  for (const auto& one : described.environments()) {
    if (one.tools_json().empty()) continue;
    absl::StatusOr<nlohmann::ordered_json> tools = trainer::ParseTools(one.tools_json());
    if (!tools.ok()) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_TOOLS",
                   absl::StrCat("the tools of the environment ", one.name(), ": ", tools.status().message()));
    }
    if (tools->empty()) continue;
    SYNCOPATE_LOG(kInfo, "tools of the environment %s: %d", one.name(), static_cast<int>(tools->size()));
    all[one.name()] = *std::move(tools);
  }
  return all;
}

}  // namespace

absl::StatusOr<trainer::EnvironmentTools> AskForTools(const v1::RunConfig& config,
                                                      const std::function<bool(absl::Duration)>& wait,
                                                      absl::Duration within) {
  const std::vector<std::string> workers = config::WorkerAddresses(config);
  if (!config::Plays(config) || workers.empty() || config.data().files().empty()) return trainer::EnvironmentTools();
  if (!CanBeHere(workers.front())) {
    SYNCOPATE_LOG(kInfo, "the worker at %s is not on this host: prompts show the tools that rows have",
                  workers.front());
    return trainer::EnvironmentTools();
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto security, auth::LoadWorkerSecurity(config, "trainer"));
  const absl::Time until = Clock::Real()->Now() + within;
  for (size_t turn = 0;; ++turn) {
    const std::string& address = workers[turn % workers.size()];  // all have the same code
    SYNCOPATE_ASSIGN_OR_RETURN(auto channel,
                               rpc::MakeChannel(address, {.security = security, .peer_role = "environment"}));
    const auto stub = v1::EnvironmentService::NewStub(channel);
    const auto described =
        rpc::CallUnary(stub.get(), &v1::EnvironmentService::Stub::Describe, v1::DescribeRequest(), kDescribeWithin);
    if (described.ok()) return ReadTools(config, address, *described);
    if (turn == 0) SYNCOPATE_LOG(kInfo, "waiting for the worker at %s and its tools", address);
    const bool is_away = absl::IsUnavailable(described.status()) || absl::IsDeadlineExceeded(described.status());
    if (!is_away || Clock::Real()->Now() >= until) {
      SYNCOPATE_LOG(
          kWarning,
          "the worker at %s (environment.address) does not say which tools it has: %s. Prompts show the tools "
          "that rows have; an environment with tools of its own will fail and say so",
          address, described.status().message());
      return trainer::EnvironmentTools();
    }
    if (wait(kRetryAfter)) return absl::CancelledError("told to stop while the worker was waited for");
  }
}

}  // namespace syncopate::trainerd
