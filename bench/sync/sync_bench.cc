#include "bench/sync/sync_bench.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/uuid.h"
#include "bench/process/process_usage.h"
#include "bench/process/work_dir.h"
#include "bench/sync/bench_model.h"
#include "bench/sync/bench_run.h"
#include "bench/sync/ceiling.h"
#include "bench/sync/fault_bench.h"
#include "bench/sync/gpu_list.h"
#include "bench/sync/run_words.h"
#include "bench/sync/step_costs.h"
#include "bench/sync/token_stream.h"
#include "services/rpc/channel.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/sync_plan.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"

namespace syncopate::bench {
namespace {

constexpr absl::Duration kCeilingLimit = absl::Minutes(1);
constexpr absl::Duration kLeaveLimit = absl::Seconds(20);
constexpr absl::Duration kCallLimit = absl::Seconds(5);
constexpr absl::Duration kServeLimit = absl::Seconds(30);
constexpr absl::Duration kServeLook = absl::Milliseconds(50);

struct PlannedCase {
  model::ModelConfig shape;
  Manifest manifest;
  synchronizer::SyncPlan plan;
};

absl::StatusOr<PlannedCase> PlanCase(const SyncCase& sync_case) {
  SYNCOPATE_RETURN_IF_ERROR(sync_case.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(model::ModelConfig shape, BenchShape(sync_case.model, sync_case.layers));
  const DType dtype = sync_case.cpu ? DType::kFloat32 : DType::kBFloat16;
  if (sync_case.lora > 0) {
    shape.lora = {.rank = sync_case.lora,
                  .alpha = 2.0 * static_cast<double>(sync_case.lora),
                  .projections = model::LoraConfig::AllProjections()};
  }
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest, model::MakeWireManifest(shape, dtype, BenchBucketBytes(shape)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto source, synchronizer::BuildLayout(manifest, MakeSourceLayout(sync_case)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto receiver, synchronizer::BuildLayout(manifest, MakeReceiverLayout(sync_case)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto plan, synchronizer::SyncPlan::Create(manifest, source, receiver));
  return PlannedCase{std::move(shape), std::move(manifest), std::move(plan)};
}

// When the bytes of this sync were under way, and when the sync was over, by the machine's clock.
TokenStream::Window TransferWindow(const SyncSample& sample) {
  const auto get = [&](const char* phase) {
    auto found = sample.seconds.find(phase);
    return absl::Seconds(found == sample.seconds.end() ? 0.0 : found->second);
  };
  const absl::Time end = absl::UnixEpoch() + absl::Seconds(sample.ended) - get("install") - get("verify");
  return {end - get("transfer"), end};
}

// Runs one case from the first daemon to the last.
class Bench {
 public:
  Bench(const SyncCase& sync_case, const SyncBenchOptions& options, BenchRun* run, SyncResult* result)
      : sync_case_(sync_case),
        progress_(options.progress),
        run_(*run),
        result_(*result),
        replicas_(sync_case.replicas) {
    std::iota(replicas_.begin(), replicas_.end(), 0);
  }

  absl::Status Run();

 private:
  absl::Status StartDaemons();
  absl::Status Warm();
  absl::Status Measure();
  absl::Status JoinLate();
  absl::Status Close();

  void ReportProgress(const std::string& what) const {
    if (progress_ != nullptr) progress_(what);
  }
  absl::Status StartStreams();
  absl::Status NoteMemory(bool before);
  void NoteDecoding();
  absl::Status NoteSteps();
  // The trainer makes no further step; waits until every replica serves the newest version, and compares digests.
  absl::Status CheckDigests();
  absl::StatusOr<bool> AllServeNewest(v1::SynchronizerService::Stub* stub);

  const SyncCase& sync_case_;
  const std::function<void(const std::string&)>& progress_;
  BenchRun& run_;
  SyncResult& result_;
  std::vector<int32_t> replicas_;
  std::map<int32_t, std::unique_ptr<TokenStream>> streams_;  // by replica
};

absl::Status Bench::Run() {
  SYNCOPATE_RETURN_IF_ERROR(StartDaemons());
  SYNCOPATE_RETURN_IF_ERROR(Warm());
  SYNCOPATE_RETURN_IF_ERROR(Measure());
  if (sync_case_.late_joiner) SYNCOPATE_RETURN_IF_ERROR(JoinLate());
  if (sync_case_.fault.kind != BenchFault::Kind::kNone) {
    ReportProgress(absl::StrCat(sync_case_.fault.kind == BenchFault::Kind::kKill ? "SIGKILL" : "SIGSTOP", " of the ",
                                sync_case_.fault.target, " at ", sync_case_.fault.stage));
    SYNCOPATE_ASSIGN_OR_RETURN(result_.fault, FaultBench(sync_case_, result_.samples, &run_).Run(&replicas_));
  }
  return Close();
}

absl::Status Bench::StartDaemons() {
  ReportProgress(absl::StrCat("starting ", sync_case_.sources, " trainer ranks and ", sync_case_.replicas,
                              " replicas of ", sync_case_.tensor_parallel));
  SYNCOPATE_RETURN_IF_ERROR(run_.StartTrainer(/*resumes=*/false));
  for (int32_t replica : replicas_) SYNCOPATE_RETURN_IF_ERROR(run_.LaunchReplica(replica));
  // The first sync also connects, so it is shown separately.
  SYNCOPATE_ASSIGN_OR_RETURN(result_.first, run_.AwaitSyncs(0, replicas_, 1, sync_case_.limit));
  return absl::OkStatus();
}

absl::Status Bench::Warm() {
  ReportProgress("warming up");
  SYNCOPATE_RETURN_IF_ERROR(
      run_.AwaitSyncs(run_.samples().size(), replicas_, std::max(1, sync_case_.warmup), sync_case_.limit).status());
  // After the warm-up, so that memory which is kept from sync to sync does not count as a leak.
  SYNCOPATE_RETURN_IF_ERROR(NoteMemory(/*before=*/true));
  return sync_case_.decode ? StartStreams() : absl::OkStatus();
}

absl::Status Bench::StartStreams() {
  for (int32_t replica : replicas_) {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string address, run_.FindAddress("rollouter", replica));
    SYNCOPATE_ASSIGN_OR_RETURN(streams_[replica], TokenStream::Start({.rollouter = address}));
  }
  return absl::OkStatus();
}

absl::Status Bench::Measure() {
  ReportProgress(absl::StrCat("measuring ", sync_case_.syncs, " syncs"));
  SYNCOPATE_ASSIGN_OR_RETURN(result_.samples,
                             run_.AwaitSyncs(run_.samples().size(), replicas_, sync_case_.syncs, sync_case_.limit));
  NoteDecoding();
  streams_.clear();
  SYNCOPATE_RETURN_IF_ERROR(NoteSteps());
  return NoteMemory(/*before=*/false);
}

absl::Status Bench::NoteMemory(bool before) {
  std::vector<MemoryUse> uses;
  if (sync_case_.cpu) {
    for (const std::string& name : run_.Members()) {
      SYNCOPATE_ASSIGN_OR_RETURN(const ProcessUsage usage, ReadProcessUsage(run_.GetPid(name)));
      uses.push_back({name, usage.resident_bytes, 0});
    }
  } else {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<GpuState> gpus, ListGpus());
    for (size_t i = 0; i < gpus.size(); ++i) uses.push_back({absl::StrCat("gpu-", i), gpus[i].used_bytes, 0});
  }
  if (before) {
    result_.memory = std::move(uses);
    return absl::OkStatus();
  }
  for (size_t i = 0; i < std::min(uses.size(), result_.memory.size()); ++i) {
    result_.memory[i].after_bytes = uses[i].before_bytes;
  }
  return absl::OkStatus();
}

void Bench::NoteDecoding() {
  for (const auto& [replica, stream] : streams_) {
    const std::vector<absl::Time> arrivals = stream->arrivals();
    std::vector<TokenStream::Window> transfers, calm;
    std::optional<absl::Time> calm_since;
    for (const SyncSample& sample : result_.samples) {
      if (sample.replica != ReplicaName(replica)) continue;
      const TokenStream::Window transfer = TransferWindow(sample);
      transfers.push_back(transfer);
      if (calm_since.has_value() && *calm_since < transfer.first) calm.push_back({*calm_since, transfer.first});
      calm_since = absl::UnixEpoch() + absl::Seconds(sample.ended);
    }
    const auto sum = [](const std::vector<TokenStream::Window>& windows) {
      absl::Duration sum;
      for (const auto& [begin, end] : windows) sum += end - begin;
      return absl::ToDoubleSeconds(sum);
    };
    result_.decode.push_back({.receiver = ReplicaName(replica),
                              .calm_steps = StepsWithin(arrivals, calm),
                              .calm_seconds = sum(calm),
                              .transfer_steps = StepsWithin(arrivals, transfers),
                              .transfer_seconds = sum(transfers),
                              .longest_gap_seconds = absl::ToDoubleSeconds(LongestGap(arrivals))});
  }
}

absl::Status Bench::NoteSteps() {
  int64_t first = result_.samples.front().step;
  for (const SyncSample& sample : result_.samples) first = std::min(first, sample.step);
  const std::string path = absl::StrCat(run_.run_dir(), "/metrics.jsonl");
  std::ifstream file(path, std::ios::binary);
  const std::string lines((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  result_.steps = ReadStepCosts(lines, kStepsPerVersion, first - 1);
  if (result_.steps.wait_seconds.count > 0) return absl::OkStatus();
  return Error(absl::StatusCode::kDataLoss, "NO_STEPS", absl::StrCat(path, " has no step after step ", first - 1));
}

absl::Status Bench::JoinLate() {
  ReportProgress("a late joiner starts");
  const int32_t late = sync_case_.replicas;
  const size_t from = run_.samples().size();
  SYNCOPATE_RETURN_IF_ERROR(run_.LaunchReplica(late));
  // Syncs go on while a new replica joins: measures whether it makes the others slower.
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<SyncSample> joined, run_.AwaitSyncs(from, {late}, 1, sync_case_.limit));
  std::vector<double> totals;
  for (size_t i = from; i < run_.samples().size(); ++i) {
    const SyncSample& sample = run_.samples()[i];
    if (sample.ok() && sample.replica != ReplicaName(late)) totals.push_back(sample.seconds.at("total"));
  }
  result_.late.ran = true;
  result_.late.start_to_serving_seconds = joined.front().recorded - run_.StartedAt(ReceiverName(late, 0));
  result_.late.others_total_seconds = ComputeSpread(std::move(totals));
  replicas_.push_back(late);
  // The new replica takes part in a further sync like all others.
  return run_.AwaitSyncs(run_.samples().size(), replicas_, 1, sync_case_.limit).status();
}

absl::StatusOr<bool> Bench::AllServeNewest(v1::SynchronizerService::Stub* stub) {
  using Service = v1::SynchronizerService::Stub;
  SYNCOPATE_ASSIGN_OR_RETURN(const auto versions,
                             rpc::CallUnary(stub, &Service::ListVersions, v1::ListVersionsRequest(), kCallLimit));
  SYNCOPATE_ASSIGN_OR_RETURN(const auto members,
                             rpc::CallUnary(stub, &Service::ListMembers, v1::ListMembersRequest(), kCallLimit));
  if (versions.versions().empty()) return false;
  const v1::VersionStatus& newest = versions.versions(0);
  size_t serving = 0;
  result_.digests_equal = true;
  for (const v1::MemberStatus& member : members.members()) {
    const bool counts = std::any_of(replicas_.begin(), replicas_.end(), [&](int32_t replica) {
      return member.member().replica_id() == ReplicaName(replica) && member.state() == v1::MEMBER_STATE_ALIVE;
    });
    if (!counts || member.serving().step() != newest.version().step() ||
        member.serving().epoch() != newest.version().epoch()) {
      continue;
    }
    ++serving;
    result_.digests_equal &= member.serving_digest() == newest.digest();
  }
  return serving == replicas_.size() * static_cast<size_t>(sync_case_.tensor_parallel);
}

absl::Status Bench::CheckDigests() {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string trainer, run_.FindAddress("trainer", 0));
  SYNCOPATE_ASSIGN_OR_RETURN(auto trainer_channel, rpc::MakeChannel(trainer));
  auto trainer_stub = v1::TrainerService::NewStub(trainer_channel);
  v1::TrainerServicePauseRequest pause;
  pause.set_request_id(RandomUuid());
  SYNCOPATE_RETURN_IF_ERROR(
      rpc::CallUnary(trainer_stub.get(), &v1::TrainerService::Stub::Pause, pause, kCallLimit).status());
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(run_.synchronizer()));
  auto stub = v1::SynchronizerService::NewStub(channel);
  const absl::Time deadline = Clock::Real()->Now() + kServeLimit;
  while (true) {
    SYNCOPATE_ASSIGN_OR_RETURN(const bool all, AllServeNewest(stub.get()));
    if (all) return absl::OkStatus();
    if (Clock::Real()->Now() > deadline) {
      return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                   "the trainer is paused, and not every replica came to serve the newest version");
    }
    SYNCOPATE_RETURN_IF_ERROR(run_.Idle(kServeLook));
  }
}

absl::Status Bench::Close() {
  SYNCOPATE_RETURN_IF_ERROR(CheckDigests());
  const std::vector<std::string> stuck = run_.Leave(kLeaveLimit);
  if (stuck.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
               absl::StrCat("asked to leave, these did not: ", absl::StrJoin(stuck, ", ")));
}

// A name for people: "2 x NVIDIA H200".
absl::StatusOr<std::string> NameMachine(const SyncCase& sync_case, int* devices) {
  if (sync_case.cpu) return std::string("host memory");
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<GpuState> gpus, ListGpus());
  *devices = static_cast<int>(gpus.size());
  return absl::StrCat(gpus.size(), " x ", gpus.front().name);
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
  int devices = 0;
  SYNCOPATE_ASSIGN_OR_RETURN(result.machine, NameMachine(sync_case, &devices));
  std::map<std::string, Ceiling> ceilings;  // keyed by transport
  if (sync_case.ceiling) {
    if (options.progress != nullptr) options.progress("measuring the ceiling");
    SYNCOPATE_ASSIGN_OR_RETURN(ceilings, MeasureCeilings(sync_case, result.weight_bytes, devices, options.binary_dir,
                                                         work_dir.path(), kCeilingLimit));
  }
  const auto run = BenchRun::Start({.sync_case = sync_case,
                                    .words = BenchRunWords(sync_case, planned.shape),
                                    .binary_dir = options.binary_dir,
                                    .work_dir = work_dir.path(),
                                    .devices = devices,
                                    .deadline = deadline});
  absl::Status status = run.status();
  if (status.ok()) status = Bench(sync_case, options, run->get(), &result).Run();
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
