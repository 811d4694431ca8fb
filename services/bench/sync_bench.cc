#include "services/bench/sync_bench.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status.h"
#include "services/bench/bench_cast.h"
#include "services/bench/bench_model.h"
#include "services/bench/ceiling.h"
#include "services/bench/json_fields.h"
#include "services/rpc/channel.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/sync_plan.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::services {
namespace {

using nlohmann::json;

constexpr absl::Duration kCeilingLimit = absl::Minutes(1);
constexpr absl::Duration kSyncLimit = absl::Minutes(1);
constexpr absl::Duration kAnswerLimit = absl::Seconds(30);
constexpr absl::Duration kLeaveLimit = absl::Seconds(10);
constexpr absl::Duration kCallLimit = absl::Seconds(5);
constexpr absl::Duration kWhileJoining = absl::Milliseconds(300);  // between publications while a late joiner starts
constexpr absl::Duration kStopped = absl::Seconds(3);              // how long a stopped synchronizer stands still

struct PlannedCase {
  Manifest manifest;
  synchronizer::SyncPlan plan;
  int64_t head_dim = 0;
};

absl::StatusOr<PlannedCase> PlanCase(const SyncCase& sync_case) {
  SYNCOPATE_RETURN_IF_ERROR(sync_case.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest, BenchManifest(sync_case.model));
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t head_dim, BenchHeadDim(sync_case.model));
  SYNCOPATE_ASSIGN_OR_RETURN(auto source, synchronizer::BuildLayout(manifest, SourceLayoutOf(sync_case)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto receiver, synchronizer::BuildLayout(manifest, ReceiverLayoutOf(sync_case, head_dim)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto plan, synchronizer::SyncPlan::Create(manifest, source, receiver));
  return PlannedCase{std::move(manifest), std::move(plan), head_dim};
}

// A folder of its own that goes with it, unless something went wrong: then the logs in it say what.
class WorkDir {
 public:
  static absl::StatusOr<WorkDir> Make() {
    std::string path = (std::filesystem::temp_directory_path() / "syncopate-bench-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      return Error(absl::StatusCode::kUnavailable, "CANNOT_START", absl::StrCat("cannot make the folder ", path));
    }
    return WorkDir(std::move(path));
  }
  WorkDir(WorkDir&& other) noexcept : path_(std::exchange(other.path_, "")), keep_(other.keep_) {}
  ~WorkDir() {
    std::error_code error;
    if (!path_.empty() && !keep_) std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }
  void Keep() { keep_ = true; }

 private:
  explicit WorkDir(std::string path) : path_(std::move(path)) {}
  std::string path_;
  bool keep_ = false;
};

// One case from the first process to the last.
class Bench {
 public:
  Bench(const SyncCase& sync_case, const SyncBenchOptions& options, BenchCast* cast, SyncResult* result)
      : sync_case_(sync_case), options_(options), cast_(*cast), result_(*result) {
    replicas_.resize(sync_case.replicas);
    std::iota(replicas_.begin(), replicas_.end(), 0);
  }

  absl::Status Run();

 private:
  void Tell(const std::string& what) const {
    if (options_.progress != nullptr) options_.progress(what);
  }
  absl::Status StartMembers();
  absl::Status Warm();
  absl::Status Measure();
  absl::Status JoinLate();
  absl::Status Strike();
  absl::Status Close();

  bool AllServe(int64_t step) const {
    return std::all_of(replicas_.begin(), replicas_.end(),
                       [&](int32_t replica) { return cast_.ServedAt(step, replica).has_value(); });
  }
  // Publishes the next step and waits for its commit on all replicas.
  absl::StatusOr<std::vector<SyncSample>> SyncOnce();
  absl::Status ForEachReceiver(const std::function<absl::Status(const std::string&)>& visit);
  absl::Status NoteMemory(bool before);
  absl::Status NoteDecoding();
  absl::Status CheckWeights();
  absl::Status CheckDigests();
  // Parts of Strike.
  std::string Victim() const;
  absl::Status ArmVictim(const std::string& victim);
  absl::StatusOr<double> AwaitBlow(const std::string& victim);
  absl::Status Mend(const std::string& victim, double struck);
  absl::Status CheckHealth();

  const SyncCase& sync_case_;
  const SyncBenchOptions& options_;
  BenchCast& cast_;
  SyncResult& result_;
  std::vector<int32_t> replicas_;  // that take part
  int64_t step_ = 0;
};

absl::Status Bench::Run() {
  SYNCOPATE_RETURN_IF_ERROR(StartMembers());
  SYNCOPATE_RETURN_IF_ERROR(Warm());
  SYNCOPATE_RETURN_IF_ERROR(Measure());
  if (sync_case_.late_joiner) SYNCOPATE_RETURN_IF_ERROR(JoinLate());
  if (sync_case_.fault.kind != BenchFault::Kind::kNone) SYNCOPATE_RETURN_IF_ERROR(Strike());
  return Close();
}

absl::Status Bench::StartMembers() {
  Tell(absl::StrCat("starting ", sync_case_.sources, " sources and ", sync_case_.receivers(), " receivers"));
  for (int32_t replica : replicas_) SYNCOPATE_RETURN_IF_ERROR(cast_.LaunchReplica(replica));
  SYNCOPATE_RETURN_IF_ERROR(cast_.StartSources());
  return ForEachReceiver([this](const std::string& name) { return cast_.AwaitReady(name, sync_case_.limit); });
}

absl::Status Bench::ForEachReceiver(const std::function<absl::Status(const std::string&)>& visit) {
  for (int32_t replica : replicas_) {
    for (int32_t rank = 0; rank < sync_case_.tensor_parallel; ++rank) {
      SYNCOPATE_RETURN_IF_ERROR(visit(ReceiverName(replica, rank)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SyncSample>> Bench::SyncOnce() {
  SYNCOPATE_RETURN_IF_ERROR(cast_.Idle(sync_case_.calm));
  SYNCOPATE_RETURN_IF_ERROR(cast_.Publish(++step_));
  return cast_.AwaitCommits(step_, replicas_, kSyncLimit);
}

absl::Status Bench::Warm() {
  Tell("warming up");
  for (int32_t i = 0; i < std::max(1, sync_case_.warmup); ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto samples, SyncOnce());
    if (i == 0) result_.first = std::move(samples);
  }
  SYNCOPATE_RETURN_IF_ERROR(NoteMemory(/*before=*/true));
  return ForEachReceiver([this](const std::string& name) {
    return cast_.Ask(name, {{"do", "reset"}}, kAnswerLimit).status();
  });
}

absl::Status Bench::Measure() {
  Tell(absl::StrCat("measuring ", sync_case_.syncs, " syncs"));
  for (int32_t i = 0; i < sync_case_.syncs; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto samples, SyncOnce());
    result_.samples.insert(result_.samples.end(), samples.begin(), samples.end());
    for (double seconds : cast_.StageSeconds(step_)) result_.stage_seconds.push_back(seconds);
  }
  SYNCOPATE_RETURN_IF_ERROR(cast_.Idle(sync_case_.calm));
  SYNCOPATE_RETURN_IF_ERROR(NoteMemory(/*before=*/false));
  return NoteDecoding();
}

absl::Status Bench::NoteMemory(bool before) {
  std::vector<std::string> names;
  for (int32_t rank = 0; rank < sync_case_.sources; ++rank) names.push_back(SourceName(rank));
  SYNCOPATE_RETURN_IF_ERROR(ForEachReceiver([&](const std::string& name) {
    names.push_back(name);
    return absl::OkStatus();
  }));
  for (size_t i = 0; i < names.size(); ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(json answer, cast_.Ask(names[i], {{"do", "report"}}, kAnswerLimit));
    const int64_t bytes = IntegerIn(answer, "memory_bytes");
    if (before) {
      result_.memory.push_back({names[i], bytes, 0});
    } else {
      result_.memory[i].after_bytes = bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status Bench::NoteDecoding() {
  if (!sync_case_.decode) return absl::OkStatus();
  return ForEachReceiver([&](const std::string& name) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(json answer, cast_.Ask(name, {{"do", "report"}}, kAnswerLimit));
    DecodeRates rates;
    rates.receiver = name;
    rates.calm_steps = NumberIn(answer, "calm_steps");
    rates.calm_seconds = NumberIn(answer, "calm_seconds");
    rates.transfer_steps = NumberIn(answer, "transfer_steps");
    rates.transfer_seconds = NumberIn(answer, "transfer_seconds");
    rates.longest_gap_seconds = NumberIn(answer, "longest_gap_seconds");
    result_.decode.push_back(std::move(rates));
    return absl::OkStatus();
  });
}

absl::Status Bench::JoinLate() {
  Tell("a late joiner starts");
  const int32_t late = sync_case_.replicas;
  SYNCOPATE_RETURN_IF_ERROR(cast_.LaunchReplica(late));
  const double started = cast_.StartedAt(ReceiverName(late, 0));
  std::vector<double> totals;
  int64_t joined_at_step = 0;
  while (joined_at_step == 0) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto samples, SyncOnce());
    for (SyncSample& sample : samples) totals.push_back(sample.seconds["total"]);
    SYNCOPATE_RETURN_IF_ERROR(cast_.Idle(kWhileJoining));
    for (int64_t step = 1; step <= step_ && joined_at_step == 0; ++step) {
      if (cast_.ServedAt(step, late).has_value()) joined_at_step = step;
    }
  }
  replicas_.push_back(late);
  result_.late.ran = true;
  result_.late.start_to_serving_seconds = *cast_.ServedAt(joined_at_step, late) - started;
  result_.late.others_total_seconds = SpreadOf(std::move(totals));
  return SyncOnce().status();
}

std::string Bench::Victim() const {
  if (sync_case_.fault.target == "synchronizer") return kSynchronizerName;
  if (sync_case_.fault.target == "source") return SourceName(sync_case_.sources - 1);
  return ReceiverName(replicas_.back(), sync_case_.tensor_parallel - 1);
}

absl::Status Bench::ArmVictim(const std::string& victim) {
  cast_.ForgetSayings();
  cast_.Expend(victim);
  // Others tell when the synchronizer should fall; sources are not told of installs either.
  const bool by_itself =
      victim != kSynchronizerName && !(sync_case_.fault.target == "source" && sync_case_.fault.stage == "install");
  if (!by_itself) return absl::OkStatus();
  const double transfer = PhaseSpreads(result_.samples)["transfer"].median;
  const bool midway = sync_case_.fault.stage == "transfer";
  const int number = sync_case_.fault.kind == BenchFault::Kind::kKill ? SIGKILL : SIGSTOP;
  const json strike = {{"do", "strike"},
                       {"stage", sync_case_.fault.stage},
                       {"signal", number},
                       {"after_seconds", midway ? transfer / 2 : 0.0}};
  return cast_.Ask(victim, strike, kAnswerLimit).status();
}

absl::StatusOr<double> Bench::AwaitBlow(const std::string& victim) {
  std::optional<double> at;
  auto struck = [&] {
    at = cast_.SaidAt(victim, "struck");
    if (at.has_value()) return true;
    if (victim != kSynchronizerName && sync_case_.fault.stage != "install") return false;
    at = cast_.SaidAt(ReceiverName(replicas_.front(), 0), "at", sync_case_.fault.stage);
    return at.has_value();
  };
  SYNCOPATE_RETURN_IF_ERROR(cast_.Await(struck, kSyncLimit, absl::StrCat("the blow to ", victim)));
  if (!cast_.SaidAt(victim, "struck").has_value()) {
    cast_.Signal(victim, sync_case_.fault.kind == BenchFault::Kind::kKill ? SIGKILL : SIGSTOP);
  }
  return *at;
}

// Does what an operator's tools do about a dead or hanging process: sources and synchronizer are started again, a
// receiver is not.
absl::Status Bench::Mend(const std::string& victim, double struck) {
  if (victim == kSynchronizerName) {
    if (sync_case_.fault.kind == BenchFault::Kind::kKill) return cast_.RestartSynchronizer();
    SYNCOPATE_RETURN_IF_ERROR(cast_.Idle(kStopped));
    cast_.Signal(victim, SIGCONT);
    return absl::OkStatus();
  }
  if (sync_case_.fault.target == "receiver") {
    replicas_.pop_back();
    return absl::OkStatus();
  }
  // A trainer starts again as a whole, once it has been noticed that a rank is gone.
  auto noticed = [&] { return !cast_.Failures(step_).empty() || cast_.Ended(victim) || AllServe(step_); };
  SYNCOPATE_RETURN_IF_ERROR(cast_.Await(noticed, kSyncLimit, "that the loss of a source is noticed"));
  for (int32_t rank = 0; rank < sync_case_.sources; ++rank) cast_.Remove(SourceName(rank));
  SYNCOPATE_RETURN_IF_ERROR(cast_.StartSources());
  return cast_.Publish(++step_);
}

absl::Status Bench::Strike() {
  const std::string victim = Victim();
  Tell(absl::StrCat(sync_case_.fault.kind == BenchFault::Kind::kKill ? "SIGKILL" : "SIGSTOP", " to ", victim, " at ",
                    sync_case_.fault.stage));
  SYNCOPATE_RETURN_IF_ERROR(ArmVictim(victim));
  const int64_t blown_step = ++step_;
  SYNCOPATE_RETURN_IF_ERROR(cast_.Publish(blown_step));
  SYNCOPATE_ASSIGN_OR_RETURN(const double struck, AwaitBlow(victim));
  SYNCOPATE_RETURN_IF_ERROR(Mend(victim, struck));
  SYNCOPATE_RETURN_IF_ERROR(cast_.Await([this] { return AllServe(step_); }, kSyncLimit,
                                        absl::StrCat("that the survivors serve step ", step_)));
  result_.fault.ran = true;
  for (int32_t replica : replicas_) {
    result_.fault.recovered_seconds =
        std::max(result_.fault.recovered_seconds, *cast_.ServedAt(step_, replica) - struck);
  }
  for (const SyncSample& failure : cast_.Failures(blown_step)) {
    const double after = failure.recorded - struck;
    if (result_.fault.declared_seconds == 0 || after < result_.fault.declared_seconds) {
      result_.fault.declared_seconds = std::max(after, 0.0);
    }
    result_.fault.reasons.push_back(absl::StrCat(failure.replica, " ", failure.result));
  }
  if (sync_case_.fault.target == "receiver") cast_.Remove(victim);  // a stopped one would not leave by itself
  SYNCOPATE_RETURN_IF_ERROR(SyncOnce().status());                   // and it goes on
  return CheckHealth();
}

absl::Status Bench::CheckHealth() {
  result_.fault.healthy = true;
  auto check = [&](const std::string& name) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(json answer, cast_.Ask(name, {{"do", "check"}}, kAnswerLimit));
    result_.fault.healthy = result_.fault.healthy && FlagIn(answer, "healthy");
    return absl::OkStatus();
  };
  for (int32_t rank = 0; rank < sync_case_.sources; ++rank) SYNCOPATE_RETURN_IF_ERROR(check(SourceName(rank)));
  return ForEachReceiver(check);
}

absl::Status Bench::CheckWeights() {
  return ForEachReceiver([&](const std::string& name) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(json answer, cast_.Ask(name, {{"do", "verify"}, {"step", step_}}, kAnswerLimit));
    result_.values_checked += IntegerIn(answer, "checked");
    if (IntegerIn(answer, "wrong") == 0 && IntegerIn(answer, "checked") > 0) return absl::OkStatus();
    return Error(absl::StatusCode::kDataLoss, "WRONG_WEIGHTS",
                 absl::StrCat(name, " serves other weights than the sources made for step ", step_, ": ",
                              IntegerIn(answer, "wrong"), " of ", IntegerIn(answer, "checked"), " differ ",
                              TextIn(answer, "error")));
  });
}

absl::Status Bench::CheckDigests() {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, MakeChannel(cast_.synchronizer()));
  auto stub = v1::SynchronizerService::NewStub(channel);
  SYNCOPATE_ASSIGN_OR_RETURN(auto versions, CallUnary(stub.get(), &v1::SynchronizerService::Stub::ListVersions,
                                                      v1::ListVersionsRequest(), kCallLimit));
  if (versions.versions().empty()) return absl::OkStatus();
  const v1::VersionStatus& newest = versions.versions(0);
  result_.digests_equal = true;
  return ForEachReceiver([&](const std::string& name) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(json answer, cast_.Ask(name, {{"do", "report"}}, kAnswerLimit));
    const bool equal = TextIn(answer, "digest") == absl::StrCat(newest.digest()) &&
                       IntegerIn(answer, "step") == newest.version().step();
    result_.digests_equal = result_.digests_equal && equal;
    return absl::OkStatus();
  });
}

absl::Status Bench::Close() {
  SYNCOPATE_RETURN_IF_ERROR(CheckWeights());
  SYNCOPATE_RETURN_IF_ERROR(CheckDigests());
  const std::vector<std::string> stuck = cast_.Leave(kLeaveLimit);
  if (stuck.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
               absl::StrCat("asked to leave, these did not: ", absl::StrJoin(stuck, ", ")));
}

}  // namespace

absl::StatusOr<SyncResult> RunSyncBench(const SyncCase& sync_case, const SyncBenchOptions& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(PlannedCase planned, PlanCase(sync_case));
  SYNCOPATE_ASSIGN_OR_RETURN(WorkDir work_dir, WorkDir::Make());
  SyncResult result;
  result.sync_case = sync_case;
  result.weight_bytes = planned.manifest.weight_bytes();
  result.messages = static_cast<int64_t>(planned.plan.copies().size());
  const absl::Time deadline = Clock::Real()->Now() + sync_case.limit;
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto cast, BenchCast::Start({sync_case, planned.head_dim, options.binary_dir, work_dir.path(), deadline}));
  result.machine = cast->machine();
  std::map<std::string, Ceiling> ceilings;  // by transport
  if (sync_case.ceiling) {
    if (options.progress != nullptr) options.progress("measuring the ceiling");
    SYNCOPATE_ASSIGN_OR_RETURN(ceilings, MeasureCeilings(sync_case, result.weight_bytes, cast->devices(),
                                                         options.binary_dir, work_dir.path(), kCeilingLimit));
  }
  absl::Status status = Bench(sync_case, options, cast.get(), &result).Run();
  if (!result.samples.empty()) result.ceiling = ceilings[result.samples.back().transport];
  if (status.ok()) return result;
  work_dir.Keep();
  return status;
}

absl::StatusOr<std::string> DescribePlan(const SyncCase& sync_case) {
  SYNCOPATE_ASSIGN_OR_RETURN(PlannedCase planned, PlanCase(sync_case));
  return planned.plan.ToString();
}

}  // namespace syncopate::services
