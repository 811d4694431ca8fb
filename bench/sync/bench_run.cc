#include "bench/sync/bench_run.h"

#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/status.h"
#include "bench/process/json_fields.h"
#include "ranks/group_secret.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

constexpr absl::Duration kStartLimit = absl::Minutes(4);  // a large model's random weights are made on the CPU
constexpr absl::Duration kLookAgain = absl::Milliseconds(5);

absl::Time Now() { return Clock::Real()->Now(); }

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

std::string SourceName(int32_t rank) { return absl::StrCat("source-", rank); }
std::string ReceiverName(int32_t replica, int32_t rank) { return absl::StrCat("receiver-", replica, ".", rank); }
std::string ReplicaName(int32_t replica) { return absl::StrCat("rollouter-", replica); }

BenchRun::BenchRun(Options options) : options_(std::move(options)), secret_(GroupSecretAssignment(DrawGroupSecret())) {}

BenchRun::~BenchRun() {
  // All at once, so that no process spends time on noticing that the others are gone.
  for (const auto& [name, child] : children_) child->Signal(SIGKILL);
}

absl::StatusOr<std::unique_ptr<BenchRun>> BenchRun::Start(Options options) {
  std::unique_ptr<BenchRun> run(new BenchRun(std::move(options)));
  SYNCOPATE_RETURN_IF_ERROR(run->StartSynchronizer());
  SYNCOPATE_ASSIGN_OR_RETURN(run->watch_, SyncWatch::Start(run->synchronizer_, &run->events_));
  return run;
}

absl::Status BenchRun::StartDaemon(const std::string& name, const std::string& role, std::vector<std::string> more) {
  ended_.erase(name);
  expended_.erase(name);
  const std::string config = absl::StrCat(options_.work_dir, "/bench.yaml");
  std::ofstream(config) << "run: {name: bench}\n";
  BenchChild::Options child;
  child.name = name;
  child.program = absl::StrCat(options_.binary_dir, "/syncopate-", role);
  child.arguments = {config, absl::StrCat("run.dir=", run_dir())};
  child.arguments.insert(child.arguments.end(), options_.words.begin(), options_.words.end());
  child.arguments.insert(child.arguments.end(), more.begin(), more.end());
  child.log = absl::StrCat(options_.work_dir, "/", name, ".log");
  child.environment = {secret_};
  const SyncCase& sync_case = options_.sync_case;
  const auto processes = std::ssize(PlaceProcesses(sync_case, options_.devices));
  // NCCL allows one process of a host for each GPU: where there are more, each process claims to be a host, and NCCL
  // connects them by sockets.
  if (!sync_case.cpu && processes > options_.devices) {
    child.environment.push_back(absl::StrCat("NCCL_HOSTID=", name, "-", Seconds(Now())));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(children_[name], BenchChild::Start(child, &events_));
  return absl::OkStatus();
}

absl::StatusOr<std::string> BenchRun::AwaitEndpoint(const std::string& name, const std::string& folder,
                                                    const std::string& role, int64_t index) {
  const std::string path = daemon::EndpointPath(absl::StrCat(run_dir(), folder), role, index);
  const pid_t pid = GetPid(name);
  while (true) {
    auto endpoint = daemon::ReadDaemonEndpoint(path);
    // The file may be that of an earlier process.
    if (endpoint.ok() && endpoint->pid == pid) return endpoint->grpc;
    SYNCOPATE_RETURN_IF_ERROR(Idle(kLookAgain));
    if (Now() - children_.at(name)->started() < kStartLimit) continue;
    return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                 absl::StrCat("waited in vain for ", path, " of ", name, "; its log ends with\n",
                              children_.at(name)->LogTail()));
  }
}

absl::Status BenchRun::StartSynchronizer() {
  // A restart uses the old address, where its members look for it.
  const std::string listen = synchronizer_.empty() ? "127.0.0.1:0" : synchronizer_;
  SYNCOPATE_RETURN_IF_ERROR(
      StartDaemon(kSynchronizerName, "synchronizer",
                  {absl::StrCat("synchronizer.address=", listen), absl::StrCat("synchronizer.listen=", listen)}));
  SYNCOPATE_ASSIGN_OR_RETURN(synchronizer_, AwaitEndpoint(kSynchronizerName, "", "synchronizer", 0));
  return absl::OkStatus();
}

absl::Status BenchRun::RestartSynchronizer() {
  Remove(kSynchronizerName);
  return StartSynchronizer();
}

absl::Status BenchRun::StartTrainer(bool resumes) {
  std::string rank0;
  for (int32_t rank = 0; rank < options_.sync_case.sources; ++rank) {
    std::vector<std::string> words = {absl::StrCat("synchronizer.address=", synchronizer_),
                                      absl::StrCat("run.resume=", resumes ? "true" : "false")};
    if (options_.sync_case.sources > 1) words.push_back(absl::StrCat("trainer.rank=", rank));
    if (rank > 0) words.push_back(absl::StrCat("trainer.rank0=", rank0));
    SYNCOPATE_RETURN_IF_ERROR(StartDaemon(SourceName(rank), "trainer", std::move(words)));
    if (rank > 0 || options_.sync_case.sources == 1) continue;
    SYNCOPATE_ASSIGN_OR_RETURN(rank0,
                               AwaitEndpoint(SourceName(0), absl::StrCat("/", daemon::kRanksFolder), "trainer", 0));
  }
  return AwaitEndpoint(SourceName(0), "", "trainer", 0).status();
}

absl::Status BenchRun::LaunchReplica(int32_t replica) {
  std::string rank0;
  for (int32_t rank = 0; rank < options_.sync_case.tensor_parallel; ++rank) {
    const std::string name = ReceiverName(replica, rank);
    std::vector<std::string> words = {absl::StrCat("synchronizer.address=", synchronizer_),
                                      absl::StrCat("rollouter.index=", replica)};
    if (options_.sync_case.tensor_parallel > 1) words.push_back(absl::StrCat("rollouter.rank=", rank));
    if (rank > 0) words.push_back(absl::StrCat("rollouter.rank0=", rank0));
    SYNCOPATE_RETURN_IF_ERROR(StartDaemon(name, "rollouter", std::move(words)));
    if (rank > 0 || options_.sync_case.tensor_parallel == 1) continue;
    SYNCOPATE_ASSIGN_OR_RETURN(rank0,
                               AwaitEndpoint(name, absl::StrCat("/", daemon::kReplicasFolder), "rollouter", replica));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SyncSample>> BenchRun::AwaitSyncs(size_t from, const std::vector<int32_t>& replicas,
                                                             int32_t count, absl::Duration limit) {
  auto find = [&](int32_t replica) {
    std::vector<SyncSample> found;
    for (size_t i = from; i < samples_.size() && std::ssize(found) < count; ++i) {
      if (samples_[i].ok() && samples_[i].replica == ReplicaName(replica)) found.push_back(samples_[i]);
    }
    return found;
  };
  auto done = [&] {
    return std::all_of(replicas.begin(), replicas.end(),
                       [&](int32_t replica) { return std::ssize(find(replica)) >= count; });
  };
  absl::Status status = Await(done, limit, absl::StrCat(count, " weight syncs of each replica"));
  if (!status.ok()) {
    std::vector<std::string> failures;
    for (size_t i = from; i < samples_.size(); ++i) {
      const SyncSample& sample = samples_[i];
      if (!sample.ok()) failures.push_back(absl::StrCat(sample.replica, ": ", sample.result, " (", sample.detail, ")"));
    }
    return failures.empty() ? status : Annotate(status, absl::StrJoin(failures, "; "));
  }
  std::vector<SyncSample> syncs;
  for (int32_t replica : replicas) {
    for (SyncSample& sample : find(replica)) syncs.push_back(std::move(sample));
  }
  return syncs;
}

absl::Status BenchRun::Await(const std::function<bool()>& done, absl::Duration limit, const std::string& what) {
  const absl::Time deadline = std::min(Now() + limit, options_.deadline);
  SYNCOPATE_RETURN_IF_ERROR(trouble_);
  while (!done()) {
    std::optional<BenchEvent> event = events_.Next(deadline);
    if (!event.has_value()) {
      return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                   absl::StrCat("waited in vain for ", what, "; the logs are in ", options_.work_dir));
    }
    SYNCOPATE_RETURN_IF_ERROR(Handle(*event));
  }
  return absl::OkStatus();
}

absl::Status BenchRun::Idle(absl::Duration duration) {
  const absl::Time end = Now() + duration;
  while (std::optional<BenchEvent> event = events_.Next(end)) SYNCOPATE_RETURN_IF_ERROR(Handle(*event));
  if (Now() < options_.deadline) return absl::OkStatus();
  return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE", "the benchmark's time limit has come");
}

void BenchRun::Remove(const std::string& name) {
  Expend(name);
  children_.erase(name);
  // Handles events until its end is seen: the end must not be taken for that of a new process with the same name.
  while (!HasEnded(name)) {
    std::optional<BenchEvent> event = events_.Next(Now() + kLookAgain);
    if (!event.has_value()) return;
    trouble_.Update(Handle(*event));
  }
}

double BenchRun::StartedAt(const std::string& name) const { return Seconds(children_.at(name)->started()); }

std::vector<std::string> BenchRun::Members() const {
  std::vector<std::string> names;
  for (const auto& [name, child] : children_) {
    if (name != kSynchronizerName && !HasEnded(name)) names.push_back(name);
  }
  return names;
}

absl::StatusOr<std::string> BenchRun::FindAddress(const std::string& role, int64_t index) const {
  SYNCOPATE_ASSIGN_OR_RETURN(const daemon::DaemonEndpoint endpoint,
                             daemon::ReadDaemonEndpoint(daemon::EndpointPath(run_dir(), role, index)));
  return endpoint.grpc;
}

std::vector<std::string> BenchRun::Leave(absl::Duration limit) {
  // Other ranks end with their rank 0, and the synchronizer outlives those who report to it.
  std::vector<std::string> members = Members();
  for (const std::string& name : members) {
    Expend(name);
    if (name == SourceName(0) || absl::EndsWith(name, ".0")) Signal(name, SIGTERM);
  }
  auto gone = [&] {
    return std::all_of(members.begin(), members.end(), [&](const auto& name) { return HasEnded(name); });
  };
  std::vector<std::string> stuck;
  if (!Await(gone, limit, "the end of all processes").ok()) {
    std::copy_if(members.begin(), members.end(), std::back_inserter(stuck),
                 [&](const auto& name) { return !HasEnded(name); });
  }
  Remove(kSynchronizerName);
  return stuck;
}

absl::Status BenchRun::Handle(const BenchEvent& event) {
  if (event.kind == "ended") return OnEnded(event.from);
  if (event.kind == "sync") OnSync(event.body, event.when);
  return absl::OkStatus();
}

absl::Status BenchRun::OnEnded(const std::string& name) {
  ended_.insert(name);
  auto child = children_.find(name);
  if (expended_.count(name) > 0 || child == children_.end()) return absl::OkStatus();
  return Error(absl::StatusCode::kUnavailable, "PEER_DIED",
               absl::StrCat(name, " ended; its log ends with\n", child->second->LogTail()));
}

void BenchRun::OnSync(const json& record, absl::Time when) {
  SyncSample sample;
  sample.attempt = IntegerIn(record, "attempt");
  sample.step = IntegerIn(record, "step");
  sample.replica = TextIn(record, "replica");
  sample.transport = TextIn(record, "transport");
  sample.transport_reason = TextIn(record, "transport_reason");
  sample.result = TextIn(record, "result");
  sample.detail = TextIn(record, "detail");
  sample.bytes = IntegerIn(record, "bytes");
  sample.pause_seconds = NumberIn(record, "pause_seconds");
  sample.ended = NumberIn(record, "ended_unix_seconds");
  sample.recorded = Seconds(when);
  auto seconds = record.find("seconds");
  if (seconds != record.end() && seconds->is_object()) {
    for (const auto& [phase, value] : seconds->items())
      sample.seconds[phase] = value.is_number() ? value.get<double>() : 0;
  }
  samples_.push_back(std::move(sample));
}

}  // namespace syncopate::bench
