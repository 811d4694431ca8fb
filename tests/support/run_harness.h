#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/daemon/daemon_endpoints.h"
#include "services/rpc/channel.h"
#include "tests/support/eventually.h"
#include "tests/support/process.h"

// Whole runs of real processes for tests: `syncopate run`, or daemons started by hand, in a folder of their own.
namespace syncopate::testing {

using Json = nlohmann::json;

// The longest time that a test waits for something that a run does within a few seconds on an idle machine.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

std::string BinaryPath(const std::string& name);   // name: "syncopate-trainer"
std::string ExamplePath(const std::string& name);  // name: "reverse.yaml", a file of deploy/examples

// The result of a command that has ended.
struct CommandResult {
  int code = -1;       // exit code; 128 + signal if the command was killed
  std::string output;  // standard output and error
};
// Runs a binary of this build to its end. DEADLINE_EXCEEDED after `timeout`; the command is killed then.
absl::StatusOr<CommandResult> RunCommand(const std::string& name, const std::vector<std::string>& args,
                                         absl::Duration timeout = kPatience);

// Returns every JSON object that has a line of `text` to itself; other lines are left out.
std::vector<Json> JsonLines(const std::string& text);

// Returns step -> weights_digest of `count` steps as the synchronous twin makes them. `overrides` are those of the run.
absl::StatusOr<std::map<int64_t, std::string>> TwinDigests(const std::string& config,
                                                           std::vector<std::string> overrides, int64_t count);

// Returns the body of the answer to GET `path` at host:port; the status must be 200.
absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path);
// Returns the body of the answer to POST of a JSON object; the status must be 200.
absl::StatusOr<std::string> HttpPost(const std::string& address, const std::string& path, const Json& body);

// Makes one unary call over a connection of its own: Call<TrainerService>(address, &TrainerService::Stub::Pause, {}).
template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> Call(const std::string& address,
                              grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                              const Request& request, absl::Duration timeout = kPatience) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(address));
  auto stub = Service::NewStub(channel);
  return rpc::CallUnary(stub.get(), method, request, timeout);
}

// One run: its folder, its processes and the contents of its files. A process, also a stopped one, is killed when the
// owner of its `Process` destroys it. The folder goes with the harness, so declare the harness before the processes.
// Not thread-safe.
class RunHarness {
 public:
  // `overrides` are given to every process of the run.
  explicit RunHarness(std::vector<std::string> overrides = {}, const std::string& example = "reverse.yaml");

  const std::string& temp_dir() const { return temp_.path(); }
  std::string run_dir() const { return temp_.path() + "/run"; }
  std::string Path(const std::string& name) const { return run_dir() + "/" + name; }
  const std::string& config() const { return config_; }
  // The overrides that every process of the run gets.
  std::vector<std::string> overrides() const;

  // Starts `syncopate run CONFIG --json`; `more` are further arguments. Returns when it is started, not when it is
  // ready.
  absl::StatusOr<std::unique_ptr<Process>> Run(const std::vector<std::string>& more = {});
  // Starts `syncopate run --resume RUN_DIR --json`.
  absl::StatusOr<std::unique_ptr<Process>> Resume(const std::vector<std::string>& more = {});

  // From this call on, trainers that are started by hand stay when their run is complete; without it they end, as under
  // `syncopate run`.
  void LetTrainersStay() { trainers_stay_ = true; }

  // Starts one daemon by hand and returns when it is ready; FAILED_PRECONDITION with the end of its log if it ends
  // instead. The synchronizer's port is chosen once for the whole run, so daemons may be started in any order, and
  // again.
  absl::StatusOr<std::unique_ptr<Process>> StartDaemon(const std::string& role, int64_t index = 0,
                                                       const std::vector<std::string>& more = {});
  // Starts one daemon without waiting until it is ready.
  absl::StatusOr<std::unique_ptr<Process>> LaunchDaemon(const std::string& role, int64_t index = 0,
                                                        const std::vector<std::string>& more = {});

  // Runs `syncopate ctl --run RUN_DIR ARGS...`.
  absl::StatusOr<CommandResult> Ctl(std::vector<std::string> args, absl::Duration timeout = kPatience) const;

  // Waits for a daemon to be ready and returns its address; an incarnation with process id `other_than` does not count.
  absl::StatusOr<daemon::DaemonEndpoint> Endpoint(const std::string& role, int64_t index = 0, pid_t other_than = 0,
                                                  absl::Duration timeout = kPatience) const;

  // The contents of summary.json; null if there is none.
  Json Summary() const;
  // Records of metrics.jsonl in the order of writing: "step" or "eval". A step may have two records, of two epochs.
  std::vector<Json> Records(const std::string& kind) const;
  // step -> weights_digest, from the newest epoch that made the step.
  std::map<int64_t, std::string> Digests() const;
  int64_t LastStep() const;  // the step of the newest record; 0 before the first
  absl::Status AwaitStep(int64_t step, absl::Duration timeout = kPatience) const;
  // The log of "trainer-0", "rollouter-1", ...
  std::string Log(const std::string& daemon) const;

 private:
  absl::StatusOr<std::unique_ptr<Process>> StartRun(std::vector<std::string> args);

  TempDir temp_;
  const std::string config_;
  const std::vector<std::string> overrides_;
  std::string synchronizer_;  // the synchronizer's address in a run by hand; "" before the first daemon
  bool trainers_stay_ = false;
};

}  // namespace syncopate::testing
