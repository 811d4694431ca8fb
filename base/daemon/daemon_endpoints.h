#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::daemon {

// Where one running daemon can be reached. A daemon writes its endpoint to <run.dir>/endpoints/<name>.json once its
// servers listen. `syncopate run` takes that file as the sign that the daemon is ready, and `syncopate ctl` finds it by
// it.
struct DaemonEndpoint {
  std::string role;     // "synchronizer", "trainer" or "rollouter"
  int64_t index = 0;    // among daemons of that role
  std::string grpc;     // host:port
  std::string metrics;  // host:port of GET /metrics
  int64_t pid = 0;
  std::string name = {};  // configured name; "": the daemon is called <role>-<index>

  std::string Name() const;  // `name`, or e.g. "rollouter-1" if that is empty
  friend bool operator==(const DaemonEndpoint&, const DaemonEndpoint&) = default;
};

// Folder below the run directory in which rank 0 of a trainer announces where it listens for the other ranks; it needs
// them before it is ready. The folder is laid out as a run directory, and the file in it as a daemon's endpoint file.
inline constexpr char kRanksFolder[] = "state/trainer";
inline constexpr char kReplicasFolder[] = "state/rollouter";  // likewise for the ranks of rollouters

// Path of the endpoint file of a daemon without a configured name.
std::string EndpointPath(const std::string& run_dir, const std::string& role, int64_t index);

// Path of the file in which rank 0 of a trainer stores the secret of its group (ranks/group_secret.h) for the other
// ranks: beside its announcement, mode 0600.
std::string RanksSecretPath(const std::string& run_dir);
// Replaces the secret's file atomically; makes the folder. Call it before a peer can reach rank 0. Errors of
// FileSystem.
absl::Status WriteRanksSecret(const std::string& run_dir, const std::string& secret);
// The current contents of the secret's file; "" if there is none. Errors of FileSystem.
absl::StatusOr<std::string> ReadRanksSecret(const std::string& run_dir);

// Replaces the daemon's endpoint file atomically; makes the folder. Errors of FileSystem.
absl::Status WriteDaemonEndpoint(const std::string& run_dir, const DaemonEndpoint& endpoint);

// Reads one endpoint file. NOT_FOUND (reason NO_ENDPOINT) if it does not exist, DATA_LOSS (reason BAD_ENDPOINT) if it
// contains no endpoint.
absl::StatusOr<DaemonEndpoint> ReadDaemonEndpoint(const std::string& path);

// Writes the endpoints of all daemons to <run.dir>/endpoints.json, which `syncopate run` maintains.
absl::Status WriteRunEndpoints(const std::string& run_dir, const std::vector<DaemonEndpoint>& endpoints);

// Reads endpoints.json or, where daemons were started by hand, the daemons' own files; ordered by role, index and name.
// NOT_FOUND (reason NO_ENDPOINT) if the directory has neither.
absl::StatusOr<std::vector<DaemonEndpoint>> ReadRunEndpoints(const std::string& run_dir);

// The run directory under `runs_dir` whose endpoints were written last. NOT_FOUND (reason NO_RUN) if there is none.
absl::StatusOr<std::string> FindNewestRun(const std::string& runs_dir);

}  // namespace syncopate::daemon
