#include "tools/run/launch.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/host_port.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"

namespace syncopate::run {
namespace {

// `address` with `offset` added to a fixed port; port 0 stays 0 (any free port).
std::string Shifted(const std::string& address, int64_t offset) {
  auto parsed = ParseHostPort(address);
  if (!parsed.ok() || parsed->port == 0) return address;
  parsed->port = static_cast<uint16_t>(parsed->port + offset);
  return parsed->ToString();
}

void AppendSynchronizer(const v1::SynchronizerSection& section, const ChildId& child, const std::string& found,
                        std::vector<std::string>* arguments) {
  if (found.empty()) return;
  auto open = [](const std::string& address) {
    auto parsed = ParseHostPort(address);
    return parsed.ok() && parsed->port == 0;
  };
  if (open(section.address())) arguments->push_back(absl::StrCat("synchronizer.address=", found));
  if (child.role == "synchronizer" && open(section.listen())) {
    arguments->push_back(absl::StrCat("synchronizer.listen=", found));
  }
}

using Addresses = std::vector<std::pair<const char*, std::string>>;

// A child that is not the first of its role listens `index` ports higher.
void AppendShifted(const Addresses& addresses, int64_t index, std::vector<std::string>* arguments) {
  if (index == 0) return;
  for (const auto& [key, address] : addresses) {
    std::string shifted = Shifted(address, index);
    if (shifted != address) arguments->push_back(absl::StrCat(key, "=", shifted));
  }
}

// "" for a worker that has no address yet.
std::string GetWorkerAddress(const v1::RunConfig& config, int64_t index) {
  const std::vector<std::string> all = config::WorkerAddresses(config);
  return index < std::ssize(all) ? all[static_cast<size_t>(index)] : "";
}

// A shell parses the command and replaces itself by it, so that signals reach the worker itself.
Launch PlanWorker(const v1::RunConfig& config, const std::string& run_dir, int64_t index, const std::string& log) {
  const std::string address = GetWorkerAddress(config, index);
  Launch launch = {.binary = "/bin/sh",
                   .arguments = {"-c", absl::StrCat("exec ", config.environment().command(), " \"$@\""), "sh",
                                 "--listen", address, "--announce", EnvironmentAnnouncement(config, run_dir, index)},
                   .log = log};
  // Other workers than ours need not know an option unless what it is about is configured.
  const auto port = ParseHostPort(address);
  if (!port.ok()) {
    const v1::EnvironmentSection& environment = config.environment();
    if (!environment.socket_mode().empty() && environment.socket_mode() != "0600") {
      launch.arguments.insert(launch.arguments.end(), {"--socket-mode", environment.socket_mode()});
    }
    if (!environment.socket_group().empty()) {
      launch.arguments.insert(launch.arguments.end(), {"--socket-group", environment.socket_group()});
    }
    return launch;
  }
  const auto add_file = [&launch](const char* option, const std::string& path, const char* role) {
    if (path.empty()) return;
    launch.arguments.push_back(option);
    launch.arguments.push_back(absl::StrReplaceAll(path, {{"{role}", role}}));
  };
  const v1::SecuritySection& security = config.security();
  if (config::WorkerUsesTls(config)) {
    add_file("--tls-cert", security.tls_cert(), "environment");
    add_file("--tls-key", security.tls_key(), "environment");
    add_file("--tls-ca", security.tls_ca(), "environment");
    launch.arguments.insert(launch.arguments.end(), {"--trust-domain", security.trust_domain()});
    return launch;
  }
  // Beyond loopback nobody shows a token without TLS.
  if (port->IsLoopback()) add_file("--token-file", security.token_file(), "rollouter");
  if (!port->IsLoopback())
    launch.arguments.push_back("--insecure-bind");  // allowed by run.insecure_bind, else the address is refused
  return launch;
}

}  // namespace

std::string EnvironmentAnnouncement(const v1::RunConfig& config, const std::string& run_dir, int64_t index) {
  const std::string address = GetWorkerAddress(config, index);
  absl::string_view socket = address;
  const bool is_elsewhere = absl::ConsumePrefix(&socket, "unix:") &&
                            std::filesystem::path(std::string(socket)).parent_path() != std::filesystem::path(run_dir);
  if (is_elsewhere) return absl::StrCat(socket, ".json");
  const std::string name = index == 0 ? "environment.json" : absl::StrCat("environment-", index, ".json");
  return (std::filesystem::path(run_dir) / name).string();
}

std::string ResolvedConfigPath(const std::string& run_dir) {
  return (std::filesystem::path(run_dir) / config::kResolvedConfigFile).string();
}

std::string NextConfigPath(const std::string& run_dir) {
  return (std::filesystem::path(run_dir) / config::kNextConfigFile).string();
}

Launch PlanLaunch(const v1::RunConfig& config, const std::string& binary_dir, const std::string& run_dir,
                  const ChildId& child, const std::string& synchronizer, const std::string& digest,
                  const std::string& rank0, bool accept_reward_change, bool on_trial) {
  namespace fs = std::filesystem;
  Launch launch;
  launch.binary = (fs::path(binary_dir) / absl::StrCat("syncopate-", child.role)).string();
  launch.log = (fs::path(run_dir) / "logs" / (child.Name() + ".log")).string();
  if (child.role == "environment") return PlanWorker(config, run_dir, child.index, launch.log);
  launch.arguments = {on_trial ? NextConfigPath(run_dir) : ResolvedConfigPath(run_dir)};
  AppendSynchronizer(config.synchronizer(), child, synchronizer, &launch.arguments);
  const bool told = child.role != "synchronizer" && config.environment().digest().empty() && !digest.empty();
  if (told) launch.arguments.push_back(absl::StrCat("environment.digest=", digest));
  if (child.role == "trainer") {
    launch.arguments.push_back("--exit-on-completion");  // its end is the run's end
    if (accept_reward_change && child.index == 0) launch.arguments.push_back("--accept-reward-change");
    if (config.trainer().world() > 1) launch.arguments.push_back(absl::StrCat("trainer.rank=", child.index));
    if (child.index > 0) launch.arguments.push_back(absl::StrCat("trainer.rank0=", rank0));
    AppendShifted({{"trainer.listen", config.trainer().listen()},
                   {"trainer.advertise", config.trainer().advertise()},
                   {"trainer.ranks_listen", config.trainer().ranks_listen()},
                   {"trainer.health_listen", config.trainer().health_listen()},
                   {"metrics.trainer_listen", config.metrics().trainer_listen()}},
                  child.index, &launch.arguments);
  }
  if (child.role != "rollouter") return launch;
  const int64_t ranks = config.rollout().tensor_parallel();
  launch.arguments.push_back(absl::StrCat("rollouter.index=", child.index));
  if (ranks > 1) launch.arguments.push_back(absl::StrCat("rollouter.rank=", child.rank));
  if (child.rank > 0) launch.arguments.push_back(absl::StrCat("rollouter.rank0=", rank0));
  if (!config.rollouter().name().empty()) launch.arguments.push_back("rollouter.name=");  // they are numbered here
  AppendShifted({{"rollouter.listen", config.rollouter().listen()},
                 {"rollouter.advertise", config.rollouter().advertise()},
                 {"rollouter.ranks_listen", config.rollouter().ranks_listen()},
                 {"rollouter.health_listen", config.rollouter().health_listen()},
                 {"metrics.rollouter_listen", config.metrics().rollouter_listen()},
                 {"endpoint.listen", config.endpoint().listen()}},
                child.index * ranks + child.rank, &launch.arguments);
  return launch;
}

}  // namespace syncopate::run
