#include "bench/sync/sync_bench.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/process/json_fields.h"
#include "bench/process/work_dir.h"
#include "bench/sync/bench_cast.h"
#include "bench/sync/bench_model.h"
#include "bench/sync/ceiling.h"
#include "bench/sync/fault_bench.h"
#include "bench/sync/sync_rounds.h"
#include "services/rpc/channel.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/sync_plan.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

constexpr absl::Duration kCeilingLimit = absl::Minutes(1);
constexpr absl::Duration kLeaveLimit = absl::Seconds(10);
constexpr absl::Duration kCallLimit = absl::Seconds(5);
constexpr absl::Duration kWhileJoining = absl::Milliseconds(300);  // between publications while a late joiner starts

struct PlannedCase {
  Manifest manifest;
  synchronizer::SyncPlan plan;
};

absl::StatusOr<PlannedCase> PlanCase(const SyncCase& sync_case) {
  SYNCOPATE_RETURN_IF_ERROR(sync_case.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest, BenchManifest(sync_case.model));
  SYNCOPATE_ASSIGN_OR_RETURN(auto source, synchronizer::BuildLayout(manifest, MakeSourceLayout(sync_case)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto receiver, synchronizer::BuildLayout(manifest, MakeReceiverLayout(sync_case)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto plan, synchronizer::SyncPlan::Create(manifest, source, receiver));
  return PlannedCase{std::move(manifest), std::move(plan)};
}

// Runs one case from the first process to the last.
class Bench {
 public:
  Bench(const SyncCase& sync_case, const SyncBenchOptions& options, BenchCast* cast, SyncResult* result)
      : sync_case_(sync_case), cast_(*cast), result_(*result), rounds_(sync_case, cast, options.progress) {}

  absl::Status Run();

 private:
  absl::Status StartMembers();
  absl::Status Warm();
  absl::Status Measure();
  absl::Status JoinLate();
  absl::Status Strike();
  absl::Status Close();

  absl::Status NoteMemory(bool before);
  absl::Status NoteDecoding();
  absl::Status CheckWeights();
  absl::Status CheckDigests();

  const SyncCase& sync_case_;
  BenchCast& cast_;
  SyncResult& result_;
  SyncRounds rounds_;
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
  rounds_.ReportProgress(
      absl::StrCat("starting ", sync_case_.sources, " sources and ", sync_case_.receivers(), " receivers"));
  // Receivers first: they wait for sources, and all make their weights at the same time.
  for (int32_t replica : rounds_.replicas()) SYNCOPATE_RETURN_IF_ERROR(cast_.LaunchReplica(replica));
  SYNCOPATE_RETURN_IF_ERROR(cast_.StartSources());
  for (const std::string& name : rounds_.Receivers()) {
    SYNCOPATE_RETURN_IF_ERROR(cast_.AwaitReady(name, sync_case_.limit));
  }
  return absl::OkStatus();
}

absl::Status Bench::Warm() {
  rounds_.ReportProgress("warming up");
  for (int32_t i = 0; i < std::max(1, sync_case_.warmup); ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto samples, rounds_.SyncOnce());
    // The first sync also connects, so it is shown separately.
    if (i == 0) result_.first = std::move(samples);
  }
  // After the warm-up, so that memory which is kept from sync to sync does not count as a leak.
  SYNCOPATE_RETURN_IF_ERROR(NoteMemory(/*before=*/true));
  for (const std::string& name : rounds_.Receivers()) {
    SYNCOPATE_RETURN_IF_ERROR(cast_.Ask(name, {{"do", "reset"}}, kAnswerLimit).status());
  }
  return absl::OkStatus();
}

absl::Status Bench::Measure() {
  rounds_.ReportProgress(absl::StrCat("measuring ", sync_case_.syncs, " syncs"));
  for (int32_t i = 0; i < sync_case_.syncs; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto samples, rounds_.SyncOnce());
    result_.samples.insert(result_.samples.end(), samples.begin(), samples.end());
    for (double seconds : cast_.StageSeconds(rounds_.step())) result_.stage_seconds.push_back(seconds);
  }
  // Decoding is also measured without a sync, for comparison.
  SYNCOPATE_RETURN_IF_ERROR(cast_.Idle(sync_case_.calm));
  SYNCOPATE_RETURN_IF_ERROR(NoteMemory(/*before=*/false));
  return NoteDecoding();
}

absl::Status Bench::NoteMemory(bool before) {
  std::vector<std::string> names = rounds_.Sources();
  const std::vector<std::string> receivers = rounds_.Receivers();
  names.insert(names.end(), receivers.begin(), receivers.end());
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
  for (const std::string& name : rounds_.Receivers()) {
    SYNCOPATE_ASSIGN_OR_RETURN(json answer, cast_.Ask(name, {{"do", "report"}}, kAnswerLimit));
    DecodeRates rates;
    rates.receiver = name;
    rates.calm_steps = NumberIn(answer, "calm_steps");
    rates.calm_seconds = NumberIn(answer, "calm_seconds");
    rates.transfer_steps = NumberIn(answer, "transfer_steps");
    rates.transfer_seconds = NumberIn(answer, "transfer_seconds");
    rates.longest_gap_seconds = NumberIn(answer, "longest_gap_seconds");
    result_.decode.push_back(std::move(rates));
  }
  return absl::OkStatus();
}

absl::Status Bench::JoinLate() {
  rounds_.ReportProgress("a late joiner starts");
  const int32_t late = sync_case_.replicas;
  SYNCOPATE_RETURN_IF_ERROR(cast_.LaunchReplica(late));
  const double started = cast_.StartedAt(ReceiverName(late, 0));
  std::vector<double> totals;
  int64_t joined_at_step = 0;
  // Syncs go on while a new replica joins: measures whether it makes the others slower.
  while (joined_at_step == 0) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto samples, rounds_.SyncOnce());
    for (SyncSample& sample : samples) totals.push_back(sample.seconds["total"]);
    SYNCOPATE_RETURN_IF_ERROR(cast_.Idle(kWhileJoining));
    for (int64_t step = 1; step <= rounds_.step() && joined_at_step == 0; ++step) {
      if (cast_.ServedAt(step, late).has_value()) joined_at_step = step;
    }
  }
  rounds_.Add(late);
  result_.late.ran = true;
  result_.late.start_to_serving_seconds = *cast_.ServedAt(joined_at_step, late) - started;
  result_.late.others_total_seconds = ComputeSpread(std::move(totals));
  // The new replica takes part in the next sync like all others.
  return rounds_.SyncOnce().status();
}

absl::Status Bench::Strike() {
  // The signal should come in the middle of a transfer, so its duration must be known.
  const double transfer = PhaseSpreads(result_.samples)["transfer"].median;
  SYNCOPATE_ASSIGN_OR_RETURN(result_.fault, FaultBench(sync_case_, transfer, &cast_, &rounds_).Run());
  return absl::OkStatus();
}

absl::Status Bench::CheckWeights() {
  const json verify = {{"do", "verify"}, {"step", rounds_.step()}};
  for (const std::string& name : rounds_.Receivers()) {
    SYNCOPATE_ASSIGN_OR_RETURN(json answer, cast_.Ask(name, verify, kAnswerLimit));
    result_.values_checked += IntegerIn(answer, "checked");
    if (IntegerIn(answer, "wrong") == 0 && IntegerIn(answer, "checked") > 0) continue;
    return Error(absl::StatusCode::kDataLoss, "WRONG_WEIGHTS",
                 absl::StrCat(name, " serves other weights than the sources made for step ", rounds_.step(), ": ",
                              IntegerIn(answer, "wrong"), " of ", IntegerIn(answer, "checked"), " differ ",
                              TextIn(answer, "error")));
  }
  return absl::OkStatus();
}

absl::Status Bench::CheckDigests() {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(cast_.synchronizer()));
  auto stub = v1::SynchronizerService::NewStub(channel);
  SYNCOPATE_ASSIGN_OR_RETURN(auto versions, rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::ListVersions,
                                                           v1::ListVersionsRequest(), kCallLimit));
  // A synchronizer that was restarted without its state knows no versions.
  if (versions.versions().empty()) return absl::OkStatus();
  const v1::VersionStatus& newest = versions.versions(0);
  result_.digests_equal = true;
  for (const std::string& name : rounds_.Receivers()) {
    SYNCOPATE_ASSIGN_OR_RETURN(json answer, cast_.Ask(name, {{"do", "report"}}, kAnswerLimit));
    const bool equal = TextIn(answer, "digest") == absl::StrCat(newest.digest()) &&
                       IntegerIn(answer, "step") == newest.version().step();
    result_.digests_equal = result_.digests_equal && equal;
  }
  return absl::OkStatus();
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
  SYNCOPATE_ASSIGN_OR_RETURN(auto cast, BenchCast::Start({sync_case, options.binary_dir, work_dir.path(), deadline}));
  result.machine = cast->machine();
  std::map<std::string, Ceiling> ceilings;  // keyed by transport
  if (sync_case.ceiling) {
    if (options.progress != nullptr) options.progress("measuring the ceiling");
    SYNCOPATE_ASSIGN_OR_RETURN(ceilings, MeasureCeilings(sync_case, result.weight_bytes, cast->devices(),
                                                         options.binary_dir, work_dir.path(), kCeilingLimit));
  }
  absl::Status status = Bench(sync_case, options, cast.get(), &result).Run();
  if (!result.samples.empty()) result.ceiling = ceilings[result.samples.back().transport];
  if (status.ok()) return result;
  // The logs show what happened.
  work_dir.Keep();
  return status;
}

absl::StatusOr<std::string> DescribePlan(const SyncCase& sync_case) {
  SYNCOPATE_ASSIGN_OR_RETURN(PlannedCase planned, PlanCase(sync_case));
  return planned.plan.ToString();
}

}  // namespace syncopate::bench
