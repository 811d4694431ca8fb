#include "tools/run/replica.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/daemon/exit_code.h"
#include "base/daemon/signals.h"
#include "base/status.h"
#include "ranks/group_secret.h"
#include "services/config/duration.h"
#include "services/config/run_config.h"
#include "tools/run/child_process.h"
#include "tools/run/replica_ranks.h"

namespace syncopate::run {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);  // the longest delay of rank 0's address and deadlines
constexpr char kRollouter[] = "rollouter";

// The I/O around ReplicaRanks: processes, and the file in which rank 0 announces its address. Runs on one thread.
class Replica {
 public:
  Replica(const ReplicaOptions& options, daemon::SignalInbox signals)
      : options_(options),
        err_(*options.err),
        signals_(std::move(signals)),
        announcement_(
            daemon::EndpointPath((std::filesystem::path(options.config.run().dir()) / daemon::kReplicasFolder).string(),
                                 kRollouter, options.config.rollouter().index())),
        ranks_({.ranks = options.config.rollout().tensor_parallel(),
                .grace = config::CheckedDuration(options.config.run().grace())}) {}

  int Execute() {
    // Removes an earlier incarnation's file: in a container, where process ids start at 1 again, it may name the same
    // process id.
    std::error_code error;
    std::filesystem::remove(announcement_, error);
    if (error) {
      err_ << "cannot remove " << announcement_ << ": " << error.message() << "\n";
      return daemon::kExitFailed;
    }
    Perform(ranks_.Start());
    while (!ranks_.done()) {
      const daemon::SignalInbox::Received received = signals_.Wait(kTick);
      if (received.interrupt) Perform(ranks_.OnInterrupt(Now()));
      if (received.child) Reap();
      if (ranks_.is_waiting() && FindRank0()) Perform(ranks_.OnListening());
      Perform(ranks_.OnTick(Now()));
    }
    return ranks_.exit_code();
  }

 private:
  static absl::Time Now() { return Clock::Real()->Now(); }

  bool FindRank0() {
    const auto endpoint = daemon::ReadDaemonEndpoint(announcement_);
    if (endpoint.ok()) rank0_ = endpoint->grpc;
    return endpoint.ok();
  }

  void Perform(const ReplicaRanks::Actions& actions) {
    for (const ReplicaRanks::Action& action : actions) {
      if (action.kind == ReplicaRanks::Action::Kind::kStart) {
        StartRank(action.rank);
        continue;
      }
      const bool kills = action.kind == ReplicaRanks::Action::Kind::kKill;
      if (kills) err_ << "rank " << action.rank << " is late and is killed\n";
      for (const auto& [pid, rank] : pids_) {
        if (rank == action.rank) ::kill(pid, kills ? SIGKILL : SIGTERM);
      }
    }
  }

  void StartRank(int64_t rank) {
    Launch launch;
    launch.binary = (std::filesystem::path(options_.binary_dir) / "syncopate-rollouter").string();
    launch.arguments = options_.words;
    launch.arguments.push_back(absl::StrCat("rollouter.rank=", rank));
    launch.environment = {GroupSecretAssignment(secret_)};
    if (rank > 0) {
      launch.arguments.push_back(absl::StrCat("rollouter.rank0=", rank0_));
      launch.arguments.push_back("metrics.rollouter_listen=127.0.0.1:0");
    }
    const absl::StatusOr<pid_t> pid = StartChild(launch);
    if (pid.ok()) {
      pids_[*pid] = rank;
      return;
    }
    err_ << pid.status().message() << "\n";
    Perform(ranks_.OnExit(rank, {false, daemon::kExitFailed}, Now()));
  }

  // The first process of a container, as this one may be, also reaps orphans.
  void Reap() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto found = pids_.find(pid);
      if (found == pids_.end()) continue;
      const int64_t rank = found->second;
      pids_.erase(found);
      const bool by_signal = WIFSIGNALED(status);
      const ChildExit exit{by_signal, by_signal ? WTERMSIG(status) : WEXITSTATUS(status)};
      if (by_signal || exit.code != daemon::kExitDone) err_ << "rank " << rank << " " << exit.ToString() << "\n";
      Perform(ranks_.OnExit(rank, exit, Now()));
    }
  }

  const ReplicaOptions& options_;
  std::ostream& err_;
  daemon::SignalInbox signals_;
  const std::string announcement_;
  ReplicaRanks ranks_;
  std::map<pid_t, int64_t> pids_;
  std::string rank0_;                             // the address on which rank 0 listens for the others
  const std::string secret_ = DrawGroupSecret();  // shared by all ranks
};

}  // namespace

int RunReplica(const ReplicaOptions& options) {
  auto refuse = [&options](const absl::Status& status, int code) {
    *options.err << status.message() << "\n";
    return code;
  };
  if (const absl::Status there = CheckBinaries(options.binary_dir, {kRollouter}); !there.ok()) {
    return refuse(there, daemon::kExitBadConfig);
  }
  if (options.config.run().dir().empty()) {
    return refuse(Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", "run.dir is not set"),
                  daemon::kExitBadConfig);
  }
  auto signals = daemon::SignalInbox::Open();
  if (!signals.ok()) return refuse(signals.status(), daemon::kExitFailed);
  return Replica(options, *std::move(signals)).Execute();
}

}  // namespace syncopate::run
