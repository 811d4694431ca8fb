#include "bench/sync/bench_cast.h"

#include <signal.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/status.h"
#include "base/uuid.h"
#include "bench/process/json_fields.h"
#include "bench/sync/peer_options.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

constexpr absl::Duration kStartLimit = absl::Minutes(2);  // making the weights of a large model on the GPU is slow
constexpr absl::Duration kLookAgain = absl::Milliseconds(5);

absl::Time Now() { return Clock::Real()->Now(); }

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

std::string SourceName(int32_t rank) { return absl::StrCat("source-", rank); }
std::string ReceiverName(int32_t replica, int32_t rank) { return absl::StrCat("receiver-", replica, ".", rank); }
std::string ReplicaName(int32_t replica) { return absl::StrCat("rollouter-", replica); }

BenchCast::BenchCast(Options options) : options_(std::move(options)) {}
BenchCast::~BenchCast() {
  // All at once, so that no process spends time on noticing that the others are gone.
  for (const auto& [name, child] : children_) child->Signal(SIGKILL);
}

absl::StatusOr<std::unique_ptr<BenchCast>> BenchCast::Start(Options options) {
  std::unique_ptr<BenchCast> cast(new BenchCast(std::move(options)));
  SYNCOPATE_RETURN_IF_ERROR(cast->FindDevices());
  SYNCOPATE_RETURN_IF_ERROR(cast->StartSynchronizer());
  SYNCOPATE_ASSIGN_OR_RETURN(cast->watch_, SyncWatch::Start(cast->synchronizer_, &cast->events_));
  return cast;
}

absl::Status BenchCast::FindDevices() {
  if (options_.sync_case.cpu) {
    machine_ = "host memory";
    return absl::OkStatus();
  }
  // In a process of its own: a CUDA context in this process would take memory on the first GPU, and be measured.
  const std::string name = "devices";
  Expend(name);
  SYNCOPATE_RETURN_IF_ERROR(StartPeer(name, "--devices"));
  SYNCOPATE_RETURN_IF_ERROR(
      Await([&] { return answers_.count(name) > 0 || Ended(name); }, kStartLimit, "the list of devices"));
  const json found = answers_.count(name) > 0 ? answers_[name] : json::object();
  Remove(name);
  devices_ = static_cast<int>(IntegerIn(found, "count"));
  machine_ = absl::StrCat(devices_, " x ", TextIn(found, "name"));
  if (devices_ > 0) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "NO_GPU",
               absl::StrCat("no GPU can be used: ", TextIn(found, "error"), "; --cpu measures host memory instead"));
}

absl::Status BenchCast::StartSynchronizer() {
  const std::string run_dir = absl::StrCat(options_.work_dir, "/run");
  const std::string config = absl::StrCat(options_.work_dir, "/bench.yaml");
  // The daemon wants a file; everything that matters is set by the overrides below.
  std::ofstream(config) << "run: {name: bench}\n";
  // A restart uses the old address, where its members look for it.
  const std::string listen = synchronizer_.empty() ? "127.0.0.1:0" : synchronizer_;
  const std::string endpoint_path = daemon::EndpointPath(run_dir, "synchronizer", 0);
  const std::string device = options_.sync_case.cpu ? "cpu" : "cuda";
  SYNCOPATE_ASSIGN_OR_RETURN(
      children_[kSynchronizerName],
      BenchChild::Start({kSynchronizerName,
                         absl::StrCat(options_.binary_dir, "/syncopate-synchronizer"),
                         {config, absl::StrCat("run.dir=", run_dir), absl::StrCat("synchronizer.address=", listen),
                          absl::StrCat("synchronizer.listen=", listen), "metrics.synchronizer_listen=127.0.0.1:0",
                          absl::StrCat("train.device=", device), absl::StrCat("rollout.device=", device),
                          absl::StrCat("sync.transport=", options_.sync_case.transport)},
                         absl::StrCat(options_.work_dir, "/synchronizer.log")},
                        &events_));
  const pid_t pid = children_[kSynchronizerName]->pid();
  while (true) {
    auto endpoint = daemon::ReadDaemonEndpoint(endpoint_path);
    // The file may still be the previous synchronizer's.
    if (endpoint.ok() && endpoint->pid == pid) {
      synchronizer_ = endpoint->grpc;
      return absl::OkStatus();
    }
    SYNCOPATE_RETURN_IF_ERROR(Idle(kLookAgain));
    if (Now() - children_[kSynchronizerName]->started() > kStartLimit) return endpoint.status();
  }
}

absl::Status BenchCast::RestartSynchronizer() {
  Remove(kSynchronizerName);
  expended_.erase(kSynchronizerName);
  return StartSynchronizer();
}

absl::Status BenchCast::StartPeer(const std::string& name, const std::string& argument) {
  // A process that is started again must not be judged by what its predecessor said.
  answers_.erase(name);
  ended_.erase(name);
  SYNCOPATE_ASSIGN_OR_RETURN(children_[name],
                             BenchChild::Start({name,
                                                absl::StrCat(options_.binary_dir, "/syncopate-bench-peer"),
                                                {argument},
                                                absl::StrCat(options_.work_dir, "/", name, ".log")},
                                               &events_));
  return absl::OkStatus();
}

std::string BenchCast::PeerArgument(bool source, int32_t replica, int32_t rank) const {
  const SyncCase& sync_case = options_.sync_case;
  const std::vector<int> places = PlaceProcesses(sync_case, devices_);
  PeerOptions peer;
  peer.role = source ? PeerOptions::Role::kSource : PeerOptions::Role::kReceiver;
  peer.model = sync_case.model;
  peer.synchronizer = synchronizer_;
  peer.run_dir = options_.work_dir;
  peer.rank = rank;
  peer.world = source ? sync_case.sources : sync_case.tensor_parallel;
  if (source) peer.start = start_;
  peer.replica = replica;
  peer.source_layout = MakeSourceLayout(sync_case);
  peer.receiver_layout = MakeReceiverLayout(sync_case);
  const int32_t place = source ? rank : sync_case.sources + replica * sync_case.tensor_parallel + rank;
  peer.device = sync_case.cpu ? -1 : places[place];
  peer.shared_device = !sync_case.cpu && std::ssize(places) > devices_;
  peer.transport = sync_case.transport;
  peer.install = sync_case.install;
  peer.chunk_bytes = sync_case.chunk_bytes;
  peer.decode = sync_case.decode;
  return ToJsonText(peer);
}

absl::Status BenchCast::StartSources() {
  // Ranks of one start belong together: the synchronizer accepts no rank of another start in their group.
  start_ = RandomUuid();
  for (int32_t rank = 0; rank < options_.sync_case.sources; ++rank) {
    SYNCOPATE_RETURN_IF_ERROR(StartPeer(SourceName(rank), PeerArgument(/*source=*/true, 0, rank)));
  }
  for (int32_t rank = 0; rank < options_.sync_case.sources; ++rank) {
    SYNCOPATE_RETURN_IF_ERROR(AwaitReady(SourceName(rank), kStartLimit));
  }
  return absl::OkStatus();
}

// Starts all ranks before StartReplica() waits for any of them: the ranks of a replica wait for each other.
absl::Status BenchCast::LaunchReplica(int32_t replica) {
  for (int32_t rank = 0; rank < options_.sync_case.tensor_parallel; ++rank) {
    SYNCOPATE_RETURN_IF_ERROR(StartPeer(ReceiverName(replica, rank), PeerArgument(/*source=*/false, replica, rank)));
  }
  return absl::OkStatus();
}

absl::Status BenchCast::StartReplica(int32_t replica) {
  SYNCOPATE_RETURN_IF_ERROR(LaunchReplica(replica));
  for (int32_t rank = 0; rank < options_.sync_case.tensor_parallel; ++rank) {
    SYNCOPATE_RETURN_IF_ERROR(AwaitReady(ReceiverName(replica, rank), kStartLimit));
  }
  return absl::OkStatus();
}

absl::Status BenchCast::AwaitReady(const std::string& name, absl::Duration limit) {
  const double started = StartedAt(name);
  auto ready = [&] {
    return std::any_of(sayings_.begin(), sayings_.end(), [&](const Saying& saying) {
      return saying.from == name && saying.kind == "ready" && saying.at >= started;  // not the predecessor's
    });
  };
  return Await(ready, limit, absl::StrCat("that ", name, " is ready"));
}

absl::Status BenchCast::Publish(int64_t step) {
  std::vector<std::string> sources;
  for (int32_t rank = 0; rank < options_.sync_case.sources; ++rank) sources.push_back(SourceName(rank));
  for (const std::string& name : sources) {
    answers_.erase(name);
    SYNCOPATE_RETURN_IF_ERROR(Send(name, {{"do", "fill"}, {"step", step}}));
  }
  auto filled = [&] {
    return std::all_of(sources.begin(), sources.end(), [&](const auto& name) { return answers_.count(name) > 0; });
  };
  // All are filled before the first one publishes: making weights is not part of a sync, and must not be measured.
  SYNCOPATE_RETURN_IF_ERROR(Await(filled, kStartLimit, absl::StrCat("the weights of step ", step)));
  for (const std::string& name : sources) {
    SYNCOPATE_RETURN_IF_ERROR(Send(name, {{"do", "stage"}, {"step", step}}));
  }
  auto staged = [&] {
    return std::all_of(sources.begin(), sources.end(), [&](const auto& name) {
      return published_.count({step, name}) > 0;
    });
  };
  SYNCOPATE_RETURN_IF_ERROR(Await(staged, kStartLimit, absl::StrCat("the staging of step ", step)));
  // Digests in the order of ranks, as rank 0 of a trainer publishes them; the stall of a step is the slowest rank's.
  json digests = json::array();
  double slowest = 0;
  for (const std::string& name : sources) {
    const Published& part = published_.at({step, name});
    digests.insert(digests.end(), part.digests.begin(), part.digests.end());
    slowest = std::max(slowest, part.stage_seconds);
  }
  return Send(sources.front(), {{"do", "publish"}, {"step", step}, {"digests", digests}, {"stage_seconds", slowest}});
}

absl::StatusOr<std::vector<SyncSample>> BenchCast::AwaitCommits(int64_t step, const std::vector<int32_t>& replicas,
                                                                absl::Duration limit) {
  // Waits for both: the record comes from the synchronizer, the time of serving from the receivers themselves.
  auto done = [&] {
    return static_cast<int32_t>(StageSeconds(step).size()) == options_.sync_case.sources &&
           std::all_of(replicas.begin(), replicas.end(), [&](int32_t replica) {
             return MakeCommit(step, replica) != nullptr && ServedAt(step, replica);
           });
  };
  absl::Status status = Await(done, limit, absl::StrCat("the commit of step ", step));
  if (!status.ok()) {
    std::vector<std::string> failures;
    for (const SyncSample& failure : Failures(step)) {
      failures.push_back(absl::StrCat(failure.replica, ": ", failure.result, " (", failure.detail, ")"));
    }
    return failures.empty() ? status : Annotate(status, absl::StrJoin(failures, "; "));
  }
  double begun = 0;
  for (const auto& [key, published] : published_) {
    // From the first source's beginning to the last rank that serves: the time of the whole replica.
    if (key.first == step && (begun == 0 || published.begun < begun)) begun = published.begun;
  }
  std::vector<SyncSample> commits;
  for (int32_t replica : replicas) {
    SyncSample sample = *MakeCommit(step, replica);
    sample.stage_to_commit = ServedAt(step, replica).value_or(begun) - begun;
    commits.push_back(std::move(sample));
  }
  return commits;
}

const SyncSample* BenchCast::MakeCommit(int64_t step, int32_t replica) const {
  auto found = samples_.find(step);
  if (found == samples_.end()) return nullptr;
  for (const SyncSample& sample : found->second) {
    if (sample.ok() && sample.replica == ReplicaName(replica)) return &sample;
  }
  return nullptr;
}

std::optional<double> BenchCast::ServedAt(int64_t step, int32_t replica) const {
  double last = 0;
  for (int32_t rank = 0; rank < options_.sync_case.tensor_parallel; ++rank) {
    auto found = installed_.find({step, ReceiverName(replica, rank)});
    if (found == installed_.end()) return std::nullopt;
    last = std::max(last, found->second);
  }
  return last;
}

std::vector<double> BenchCast::StageSeconds(int64_t step) const {
  std::vector<double> seconds;
  for (const auto& [key, published] : published_) {
    if (key.first == step) seconds.push_back(published.stage_seconds);
  }
  return seconds;
}

std::vector<SyncSample> BenchCast::Failures(int64_t step) const {
  std::vector<SyncSample> failures;
  auto found = samples_.find(step);
  if (found == samples_.end()) return failures;
  for (const SyncSample& sample : found->second) {
    if (!sample.ok()) failures.push_back(sample);
  }
  return failures;
}

absl::StatusOr<json> BenchCast::Ask(const std::string& name, json command, absl::Duration limit) {
  answers_.erase(name);
  SYNCOPATE_RETURN_IF_ERROR(Send(name, command));
  SYNCOPATE_RETURN_IF_ERROR(
      Await([&] { return answers_.count(name) > 0; }, limit, absl::StrCat("an answer of ", name)));
  return answers_[name];
}

absl::Status BenchCast::Send(const std::string& name, const json& command) {
  auto child = children_.find(name);
  SYNCOPATE_CHECK(child != children_.end());
  return child->second->Send(command);
}

absl::Status BenchCast::Await(const std::function<bool()>& done, absl::Duration limit, const std::string& what) {
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

absl::Status BenchCast::Idle(absl::Duration duration) {
  const absl::Time end = Now() + duration;
  while (std::optional<BenchEvent> event = events_.Next(end)) SYNCOPATE_RETURN_IF_ERROR(Handle(*event));
  if (Now() < options_.deadline) return absl::OkStatus();
  return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE", "the benchmark's time limit has come");
}

std::optional<double> BenchCast::SaidAt(const std::string& name, const std::string& kind,
                                        const std::string& stage) const {
  for (const Saying& saying : sayings_) {
    if (saying.from == name && saying.kind == kind && (stage.empty() || saying.stage == stage)) return saying.at;
  }
  return std::nullopt;
}

void BenchCast::Signal(const std::string& name, int number) { children_.at(name)->Signal(number); }

void BenchCast::Remove(const std::string& name) {
  Expend(name);
  children_.erase(name);
  // Handles events until its end is seen: the end must not be taken for that of a new process with the same name.
  while (!Ended(name)) {
    std::optional<BenchEvent> event = events_.Next(Now() + kLookAgain);
    if (!event.has_value()) return;
    trouble_.Update(Handle(*event));
  }
}

double BenchCast::StartedAt(const std::string& name) const { return Seconds(children_.at(name)->started()); }

std::vector<std::string> BenchCast::Leave(absl::Duration limit) {
  std::vector<std::string> stuck;
  std::vector<std::string> asked;
  for (const auto& [name, child] : children_) {
    if (name == kSynchronizerName || Ended(name)) continue;
    Expend(name);
    if (child->Send({{"do", "quit"}}).ok()) asked.push_back(name);
  }
  auto gone = [&] { return std::all_of(asked.begin(), asked.end(), [&](const auto& name) { return Ended(name); }); };
  if (Await(gone, limit, "the end of all processes").ok()) return stuck;
  std::copy_if(asked.begin(), asked.end(), std::back_inserter(stuck), [&](const auto& name) { return !Ended(name); });
  return stuck;
}

absl::Status BenchCast::Handle(const BenchEvent& event) {
  if (event.kind == "ended") return OnEnded(event.from);
  if (event.kind == "sync") {
    OnSync(event.body, event.when);
    return absl::OkStatus();
  }
  // A process that is killed on purpose may report errors.
  if (event.kind == "failed" && expended_.count(event.from) == 0) {
    return Error(absl::StatusCode::kUnavailable, "PEER_FAILED",
                 absl::StrCat(event.from, ": ", TextIn(event.body, "error")));
  }
  if (event.kind == "answer") answers_[event.from] = event.body;
  const double at = NumberIn(event.body, "at", Seconds(event.when));
  if (event.kind == "staged") {
    published_[{IntegerIn(event.body, "step"), event.from}] = {
        NumberIn(event.body, "begun"), NumberIn(event.body, "stage_seconds"), event.body.at("digests")};
  }
  if (event.kind == "installed") {
    // The first time counts, because a rank may install a step again.
    installed_.emplace(std::pair(IntegerIn(event.body, "step"), event.from), at);
  }
  if (event.kind == "ready" || event.kind == "at" || event.kind == "struck") {
    sayings_.push_back({event.from, event.kind, TextIn(event.body, "stage"), at});
  }
  return absl::OkStatus();
}

absl::Status BenchCast::OnEnded(const std::string& name) {
  ended_.insert(name);
  auto child = children_.find(name);
  if (expended_.count(name) > 0 || child == children_.end()) return absl::OkStatus();
  return Error(absl::StatusCode::kUnavailable, "PEER_DIED",
               absl::StrCat(name, " ended; its log ends with\n", child->second->LogTail()));
}

void BenchCast::OnSync(const json& record, absl::Time when) {
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
  sample.recorded = Seconds(when);
  auto seconds = record.find("seconds");
  if (seconds != record.end() && seconds->is_object()) {
    for (const auto& [phase, value] : seconds->items())
      sample.seconds[phase] = value.is_number() ? value.get<double>() : 0;
  }
  samples_[sample.step].push_back(std::move(sample));
}

}  // namespace syncopate::bench
