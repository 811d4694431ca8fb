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
  const std::string& address = workers.front();  // all have the same code
  if (!CanBeHere(address)) {
    SYNCOPATE_LOG(kInfo, "the worker at %s is not on this host: prompts show the tools that rows have", address);
    return trainer::EnvironmentTools();
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto security, auth::LoadWorkerSecurity(config, "trainer"));
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel,
                             rpc::MakeChannel(address, {.security = security, .peer_role = "environment"}));
  const auto stub = v1::EnvironmentService::NewStub(channel);
  const absl::Time until = Clock::Real()->Now() + within;
  for (bool is_said = false;;) {
    const auto described =
        rpc::CallUnary(stub.get(), &v1::EnvironmentService::Stub::Describe, v1::DescribeRequest(), kDescribeWithin);
    if (described.ok()) return ReadTools(config, address, *described);
    // Anything but an absence is an operator's to mend: a role, a certificate.
    if (!absl::IsUnavailable(described.status()) && !absl::IsDeadlineExceeded(described.status())) {
      return Annotate(described.status(), absl::StrCat("asking the worker at ", address, " for its tools"));
    }
    if (Clock::Real()->Now() >= until) {
      return Error(absl::StatusCode::kUnavailable, "WORKER_AWAY",
                   absl::StrCat("the worker at ", address, " (environment.address) has not said within ",
                                absl::FormatDuration(within), " which tools it has: ", described.status().message()));
    }
    if (!std::exchange(is_said, true)) SYNCOPATE_LOG(kInfo, "waiting for the worker at %s and its tools", address);
    if (wait(kRetryAfter)) return absl::CancelledError("told to stop while the worker was waited for");
  }
}

}  // namespace syncopate::trainerd
