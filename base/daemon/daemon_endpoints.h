#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::daemon {

// Where one running daemon can be reached. A daemon writes its own as <run.dir>/endpoints/<name>.json once its
// servers listen; that file is how `syncopate run` knows that it is ready, and where `syncopate ctl` finds it.
struct DaemonEndpoint {
  std::string role;     // "synchronizer", "trainer" or "rollouter"
  int64_t index = 0;    // among daemons of that role
  std::string grpc;     // host:port
  std::string metrics;  // host:port of GET /metrics
  int64_t pid = 0;
  std::string name = {};  // of its own; "": <role>-<index>

  std::string Name() const;  // "rollouter-1", or its own
  friend bool operator==(const DaemonEndpoint&, const DaemonEndpoint&) = default;
};

// Below the run directory: where rank 0 of a trainer says that it listens for the other ranks, which it needs before it
// is ready. A file like those of daemons, in the place of one of a run directory.
inline constexpr char kRanksFolder[] = "state/trainer";
inline constexpr char kReplicasFolder[] = "state/rollouter";  // the same for those of rollouters

// Where a run directory keeps those of daemons without a name of their own.
std::string EndpointPath(const std::string& run_dir, const std::string& role, int64_t index);

// Where rank 0 of a trainer keeps the secret of its group (ranks/group_secret.h) for the other ranks: beside its
// announcement, mode 0600.
std::string RanksSecretPath(const std::string& run_dir);
// Replaces the file atomically; makes the folder. Call it before anybody can reach rank 0. Errors of FileSystem.
absl::Status WriteRanksSecret(const std::string& run_dir, const std::string& secret);
// What the file holds now; "" if it is not there. Errors of FileSystem.
absl::StatusOr<std::string> ReadRanksSecret(const std::string& run_dir);

// Replaces the daemon's file atomically; makes the folder. Errors of FileSystem.
absl::Status WriteDaemonEndpoint(const std::string& run_dir, const DaemonEndpoint& endpoint);

// NOT_FOUND (reason NO_ENDPOINT) if there is no such file, DATA_LOSS (reason BAD_ENDPOINT) if it does not hold one.
absl::StatusOr<DaemonEndpoint> ReadDaemonEndpoint(const std::string& path);

// The union of all daemons, <run.dir>/endpoints.json, that `syncopate run` maintains.
absl::Status WriteRunEndpoints(const std::string& run_dir, const std::vector<DaemonEndpoint>& endpoints);

// Reads endpoints.json or, where daemons were started by hand, the daemons' own files; ordered by role, index and name.
// NOT_FOUND (reason NO_ENDPOINT) if the directory has neither.
absl::StatusOr<std::vector<DaemonEndpoint>> ReadRunEndpoints(const std::string& run_dir);

// The run directory under `runs_dir` whose endpoints were written last. NOT_FOUND (reason NO_RUN) if there is none.
absl::StatusOr<std::string> FindNewestRun(const std::string& runs_dir);

}  // namespace syncopate::daemon
