#include "services/trainer/trainer_daemon.h"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/backoff.h"
#include "base/clock.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/log.h"
#include "base/reasons.h"
#include "model/model_folder.h"
#include "ranks/group_secret.h"
#include "ranks/meeting.h"
#include "services/config/config_record.h"
#include "services/config/duration.h"
#include "services/config/model_options.h"
#include "services/config/ranks.h"
#include "services/config/run_config.h"
#include "services/config/trainer_options.h"
#include "services/trainer/data_codec.h"
#include "services/trainer/flow_codec.h"
#include "services/trainer/kept_model.h"
#include "services/trainer/loop_options.h"
#include "services/trainer/run_witnesses.h"
#include "services/wire/codec.h"
#include "trainer/checkpoint/policy_files.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kJoinDeadline = absl::Seconds(60);
constexpr absl::Duration kCompletionDeadline = absl::Seconds(60);  // to tell the synchronizer
constexpr absl::Duration kCompletionRetry = absl::Milliseconds(500);
constexpr absl::Duration kStopGrace = absl::Seconds(1);
constexpr absl::Duration kRefusalsWithin = absl::Seconds(1);
constexpr absl::Duration kRecordRetry = absl::Seconds(1);  // after a write to a full disk
constexpr absl::Duration kSignalPoll = absl::Milliseconds(20);
constexpr absl::Duration kFlowEvery = absl::Seconds(1);  // the most that SIGKILL may lose of the flow sums
constexpr char kStateFolder[] = "state/trainer";
constexpr char kIdentityFile[] = "state/trainer/identity.json";
constexpr char kFlowFile[] = "state/trainer/flow.pb";
constexpr char kSummaryFile[] = "summary.json";

FileSystem* Files() { return FileSystem::Real(); }

absl::Status RunDirTaken(const std::string& dir) {
  return Error(absl::StatusCode::kFailedPrecondition, "RUN_DIR_TAKEN",
               absl::StrCat(dir, " holds a run already; continue it with run.resume=true, or choose another run.dir"));
}

void PublishFigures(const trainer::TrainingData::Status& data, telemetry::TrainerMetrics* metrics) {
  metrics->SetQueue(data.queued_groups, data.leased_groups);
  metrics->SetGroups("trained", data.groups.trained);
  metrics->SetGroups("dropped_stale", data.groups.dropped_stale);
  metrics->SetGroups("filtered", data.groups.filtered);
  metrics->SetGroups("duplicate", data.groups.duplicate);
  metrics->SetGroups("rolled_back", data.groups.rolled_back);
  metrics->SetGroups("skipped", data.groups.skipped);
  metrics->SetGroups("failed", data.groups.failed);
  metrics->SetRewards("judged", data.rewards.judged);
  metrics->SetRewards("failed", data.rewards.failed);
  metrics->SetQuarantines(data.leases.quarantines);
  metrics->SetRevoked("stalled", data.leases.stalled);
  metrics->SetRevoked("timeout", data.leases.timed_out);
  metrics->SetRevoked("superseded", data.leases.superseded);
}

// Whether another trainer owns the run directory now, or an operator has evicted this one.
bool IsTakenOver(const absl::Status& refusal) {
  return daemon::ToExitCode(refusal) == daemon::kExitFenced || ErrorReason(refusal) == reason::kEvicted;
}

}  // namespace

absl::Status TrainerDaemon::CheckConfig(const daemon::Daemon& daemon) {
  if (!daemon.config().run().resume()) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(
      const std::vector<config::ConfigDifference> changed,
      config::CheckResume(Files(), daemon.run_dir(), daemon.config(), daemon.accept_reward_change()));
  for (const config::ConfigDifference& one : changed) {
    SYNCOPATE_LOG(kInfo, "%s is %s from here on; the run had %s", one.key, one.after, one.before);
    if (!config::IsRewardKey(one.key)) continue;
    daemon.events()->Record(
        {"reward_change", PolicyVersion(), 0, {{"key", one.key}, {"before", one.before}, {"after", one.after}}});
  }
  return absl::OkStatus();
}

TrainerDaemon::TrainerDaemon(daemon::Daemon* daemon, TrainDevice device)
    : daemon_(daemon),
      on_trial_(daemon->IsOnTrial()),
      identity_file_(Files(), daemon->Path(kIdentityFile)),
      device_(std::move(device)),
      control_({.steps = daemon->config().run().steps(),
                .run_dir = daemon->run_dir(),
                .has_model_folder = !device_.model.by_keys()}) {}

absl::StatusOr<std::unique_ptr<TrainerDaemon>> TrainerDaemon::Start(daemon::Daemon* daemon, TrainDevice device) {
  std::unique_ptr<TrainerDaemon> trainer(new TrainerDaemon(daemon, std::move(device)));
  SYNCOPATE_RETURN_IF_ERROR(trainer->OpenRun());
  SYNCOPATE_RETURN_IF_ERROR(trainer->OpenPrompts());
  SYNCOPATE_ASSIGN_OR_RETURN(Restored restored, trainer->RestoreCheckpoint());
  SYNCOPATE_RETURN_IF_ERROR(trainer->Listen());
  SYNCOPATE_ASSIGN_OR_RETURN(synchronizer::Welcome welcome, trainer->Join(restored));
  SYNCOPATE_ASSIGN_OR_RETURN(restored, trainer->RestoreNewer(std::move(restored)));
  SYNCOPATE_RETURN_IF_ERROR(trainer->AssembleRanks(restored, welcome));
  SYNCOPATE_RETURN_IF_ERROR(trainer->OpenData(restored, welcome));
  SYNCOPATE_RETURN_IF_ERROR(trainer->OfferModel(welcome.run_id));
  SYNCOPATE_RETURN_IF_ERROR(trainer->StartLoop({welcome.epoch, restored.version.step}));
  if (!trainer->on_trial_) SYNCOPATE_RETURN_IF_ERROR(trainer->BeginWork());
  // Last: a process that waits for this file may use everything at once.
  SYNCOPATE_RETURN_IF_ERROR(daemon->Announce(trainer->server_->address()));
  return trainer;
}

TrainerDaemon::~TrainerDaemon() {
  if (member_ != nullptr) member_->Stop(kStopGrace);
  if (publisher_ != nullptr) publisher_->Stop();
  if (sync_watch_ != nullptr) sync_watch_->Stop();
  if (data_ != nullptr) data_->Stop();
  if (server_ != nullptr) server_->Stop(kStopGrace);
}

absl::Status TrainerDaemon::OpenRun() {
  const v1::RunConfig& config = daemon_->config();
  const std::string folder =
      config.checkpoint().dir().empty() ? daemon_->Path("checkpoints") : config.checkpoint().dir();
  // First, because opening the store deletes what another trainer, still running here, has half saved.
  SYNCOPATE_ASSIGN_OR_RETURN(const trainer::IdentityFile::Identity identity, identity_file_.Read());
  if (!config.run().resume() && identity.epoch > 0) return RunDirTaken(daemon_->run_dir());
  SYNCOPATE_ASSIGN_OR_RETURN(checkpoints_, trainer::CheckpointStore::Open(Files(), folder));
  SYNCOPATE_RETURN_IF_ERROR(Files()->CreateDirs(daemon_->Path(kStateFolder)));
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<PolicyVersion> there, checkpoints_->List());
  if (!config.run().resume() && !there.empty()) return RunDirTaken(daemon_->run_dir());
  SYNCOPATE_RETURN_IF_ERROR(
      KeepModelFingerprint(Files(), daemon_->run_dir(), config.model().path(), /*begun=*/identity.epoch > 0));
  SYNCOPATE_RETURN_IF_ERROR(KeepModelDescription());
  SYNCOPATE_ASSIGN_OR_RETURN(reporter_, trainer::RunReporter::Open(Files(), daemon_->Path("metrics.jsonl")));
  metrics_ = std::make_unique<telemetry::TrainerMetrics>(*daemon_->registry(), MakeMetricLimits(config));
  recorder_ = std::make_unique<RunRecorder>(reporter_.get(), metrics_.get(), daemon_->events());
  return absl::OkStatus();
}

// Copies the description, so that the run can be resumed and exported when model.path is gone.
absl::Status TrainerDaemon::KeepModelDescription() const {
  const std::string kept = config::KeptModelFolder(daemon_->run_dir());
  if (device_.model.by_keys() || device_.model.description == kept) return absl::OkStatus();
  return model::CopyModelDescription(device_.model.description, kept);
}

absl::Status TrainerDaemon::OpenPrompts() {
  SYNCOPATE_ASSIGN_OR_RETURN(prompts_, OpenPromptSources(daemon_->config(), device_.model));
  SYNCOPATE_RETURN_IF_ERROR(KeepFingerprint(Files(), daemon_->run_dir(), prompts_.fingerprint));
  ShowMemory();
  return absl::OkStatus();
}

void TrainerDaemon::ShowMemory() {
  recorder_->SetSendBytes(device_.arena_bytes);
  recorder_->RecordMemory(device_.policy->memory());
}

absl::StatusOr<TrainerDaemon::Restored> TrainerDaemon::RestoreCheckpoint() {
  if (!daemon_->config().run().resume()) return Restored{};
  absl::StatusOr<trainer::CheckpointStore::Latest> latest = checkpoints_->LoadLatest();
  if (ErrorReason(latest.status()) == reason::kNoCheckpoint) {
    SYNCOPATE_LOG(kInfo, "no checkpoint yet: the run is repeated from its log");
    return Restored{};
  }
  SYNCOPATE_RETURN_IF_ERROR(latest.status());
  for (const auto& skipped : latest->skipped) {
    SYNCOPATE_LOG(kError, "checkpoint %s is damaged and skipped: %s", skipped.name, skipped.why.ToString());
  }
  const trainer::CheckpointManifest& checkpoint = latest->checkpoint;
  SYNCOPATE_ASSIGN_OR_RETURN(std::string data,
                             checkpoints_->ReadFile(checkpoint, trainer::CheckpointWriter::kDataFile));
  const auto saved = trainer::MapPolicy(device_.policy->manifest(), checkpoint.ranks, [&](const std::string& name) {
    return checkpoints_->MapFile(checkpoint, name);
  });
  if (!saved.ok()) {
    return Annotate(saved.status(), absl::StrCat("checkpoint ", checkpoint.version.ToString(),
                                                 " cannot be used (remove it to go on from an older one)"));
  }
  SYNCOPATE_RETURN_IF_ERROR(device_.policy->Restore(saved->policy));
  SYNCOPATE_LOG(kInfo, "restored checkpoint %s", checkpoint.version.ToString());
  return Restored{checkpoint.version, std::move(data)};
}

// Another trainer that is still running can save until the epoch of this one is written to disk; the log continues from
// the last checkpoint that it saved.
absl::StatusOr<TrainerDaemon::Restored> TrainerDaemon::RestoreNewer(Restored restored) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<PolicyVersion> there, checkpoints_->List());
  if (there.empty() || there.back() <= restored.version) return restored;
  return RestoreCheckpoint();
}

absl::Status TrainerDaemon::Listen() {
  const v1::RunConfig& config = daemon_->config();
  weight_service_ = std::make_unique<member::WeightServiceImpl>(device_.stager->store());
  const rpc::StreamOptions exchange = {.silent_after = config::CheckedDuration(config.sync().dead_after())};
  trajectory_service_ = std::make_unique<TrajectoryServiceImpl>(nullptr, exchange, daemon_->security());
  trainer_service_ = std::make_unique<TrainerServiceImpl>(&control_, reporter_.get());
  std::vector<grpc::Service*> services = {weight_service_.get(), trajectory_service_.get(), trainer_service_.get()};
  std::vector<std::string> names = {"syncopate.v1.WeightService", "syncopate.v1.TrajectoryService",
                                    "syncopate.v1.TrainerService"};
  if (device_.ranks != nullptr) {
    // Before the port answers, so that every rank that reaches it finds the secret that it must show.
    const std::string secret = DrawGroupSecret();
    SYNCOPATE_RETURN_IF_ERROR(daemon::WriteRanksSecret(daemon_->run_dir(), secret));
    rank_service_ = std::make_unique<RankServiceImpl>(
        rpc::RankStreamsOptions{.rank0 = {.world = device_.ranks->world(),
                                          .config_digest = config::RankConfigDigest(config),
                                          .manifest_fingerprint = device_.policy->manifest().fingerprint(),
                                          .build = daemon::BuildVersion(),
                                          .gpu = device_.rank0.place.gpu},
                                .secret = secret,
                                .security = daemon_->security(),
                                .on_lost = [this](const absl::Status& why) {
                                  device_.ranks->Abort(std::string(why.message()));
                                  GiveUp(why);
                                }});
    services.push_back(rank_service_.get());
    names.push_back("syncopate.v1.RankService");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(metrics_address_, daemon_->StartMetrics(config.metrics().trainer_listen()));
  SYNCOPATE_ASSIGN_OR_RETURN(server_, daemon_->StartServer(config.trainer().listen(), services, names));
  if (rank_service_ != nullptr) SYNCOPATE_RETURN_IF_ERROR(AnnounceToRanks());
  const std::string address = config.trainer().advertise().empty() ? server_->address() : config.trainer().advertise();
  grpc_source_ = std::make_unique<member::GrpcSource>(address);
  for (const auto& transport : device_.transports) transports_.push_back(transport.get());
  if (device_.offers_grpc) transports_.push_back(grpc_source_.get());
  source_ = std::make_unique<synchronizer::WeightSource>(
      device_.stager->store(), transports_,
      synchronizer::WeightSource::Options{device_.stager->layout(),
                                          config::MakeRolloutLayout(config, device_.model.shape)});
  participant_ = std::make_unique<member::SourceParticipant>(source_.get());
  return absl::OkStatus();
}

absl::Status TrainerDaemon::AnnounceToRanks() const {
  return daemon::WriteDaemonEndpoint(
      daemon_->Path(daemon::kRanksFolder),
      {.role = "trainer", .grpc = server_->address(), .metrics = metrics_address_, .pid = getpid()});
}

absl::Status TrainerDaemon::AssembleRanks(const Restored& restored, const synchronizer::Welcome& welcome) {
  if (rank_service_ == nullptr) return absl::OkStatus();
  auto go_on = [this]() -> absl::Status {
    if (!daemon_->StopRequested(absl::ZeroDuration())) return rank_service_->lost();
    return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before all trainer ranks had come");
  };
  const absl::Status attended = rank_service_->AwaitRanks(kRanksMeetWithin, go_on);
  // Gives a refused rank time to read why before the server ends; without the reason it would dial until its deadline.
  if (!attended.ok()) server_->Stop(kRefusalsWithin);
  SYNCOPATE_RETURN_IF_ERROR(attended);
  v1::AttendResponse::Welcome message;
  message.set_run_id(welcome.run_id);
  message.set_start(daemon_->incarnation());
  message.set_epoch(welcome.epoch);
  if (!restored.version.IsNone()) *message.mutable_restore() = wire::ToProto(restored.version);
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort bound, ParseHostPort(server_->address()));
  SYNCOPATE_ASSIGN_OR_RETURN(HostPort told, ParseHostPort(grpc_source_->Open({}).value()));
  auto invite = [&](const RankInvitation& invitation) {
    message.set_nccl_id(invitation.id);
    told.port = invitation.port;
    if (invitation.id.empty()) message.set_ranks_address(told.ToString());
    message.set_ranks_secret(invitation.secret);
    return rank_service_->Welcome(message);
  };
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto ranks, MeetRanks(device_.rank0.place, {.world = device_.ranks->world(), .call_deadline = kRankCallDeadline},
                            bound.host, invite, go_on));
  device_.ranks->Connect(std::move(ranks));
  device_.leading->Lead(rank_service_.get());
  SYNCOPATE_LOG(kInfo, "all %d trainer ranks are there", device_.ranks->world());
  return absl::OkStatus();
}

absl::StatusOr<synchronizer::Welcome> TrainerDaemon::Join(const Restored& restored) {
  const v1::RunConfig& config = daemon_->config();
  SYNCOPATE_ASSIGN_OR_RETURN(const trainer::IdentityFile::Identity identity, identity_file_.Read());
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<PolicyVersion> there, checkpoints_->List());
  synchronizer::Hello hello;
  hello.member = daemon_->Member();
  hello.run_id = identity.run_id.empty() ? config.run().id() : identity.run_id;
  hello.address = grpc_source_->Open({}).value();
  hello.metrics_address = metrics_address_;
  hello.manifest = std::make_shared<const Manifest>(device_.stager->manifest());
  for (const synchronizer::SourceTransport* transport : transports_) hello.transports.push_back(transport->name());
  hello.layout = device_.stager->layout();
  hello.destination_layout = config::MakeRolloutLayout(config, device_.model.shape);
  hello.facts = device_.facts;
  hello.checkpoint_epoch = std::max(identity.epoch, there.empty() ? 0 : there.back().epoch);
  hello.build = daemon::BuildVersion();
  SYNCOPATE_ASSIGN_OR_RETURN(
      member_, member::MemberClient::Start({.synchronizer_address = config.synchronizer().address(),
                                            .security = daemon_->security(),
                                            .hello = std::move(hello),
                                            .secret = daemon_->secret(),
                                            .on_refused = [this](const absl::Status& why) { GiveUp(why); },
                                            .events = daemon_->events(),
                                            .lost_after = config::CheckedDuration(config.synchronizer().lost_after())},
                                           participant_.get()));
  const absl::Time deadline = Clock::Real()->Now() + kJoinDeadline;
  while (true) {
    absl::StatusOr<synchronizer::Welcome> welcome = member_->WaitForWelcome(absl::Milliseconds(200));
    if (daemon_->StopRequested(absl::ZeroDuration())) {
      return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before the synchronizer had answered");
    }
    if (ErrorReason(welcome.status()) == reason::kNotJoined && Clock::Real()->Now() < deadline) continue;
    SYNCOPATE_RETURN_IF_ERROR(welcome.status());
    // The record first: a run with an identity but no record counts as one from before records existed.
    if (!on_trial_) SYNCOPATE_RETURN_IF_ERROR(RecordConfig(welcome->run_id));
    SYNCOPATE_RETURN_IF_ERROR(identity_file_.Write({welcome->run_id, welcome->epoch}));
    SYNCOPATE_LOG(kInfo, "joined run %s with epoch %d", welcome->run_id, welcome->epoch);
    return welcome;
  }
}

absl::Status TrainerDaemon::OpenData(const Restored& restored, const synchronizer::Welcome& welcome) {
  const trainer::TrainingData::Options options = MakeDataOptions(daemon_->config(), device_.model.shape, prompts_,
                                                                 daemon_->Path(absl::StrCat(kStateFolder, "/log")));
  flow_file_ =
      std::make_unique<trainer::FlowFile>(Files(), daemon_->Path(kFlowFile), kFlowCodec, [this, epoch = welcome.epoch] {
        const absl::StatusOr<trainer::IdentityFile::Identity> identity = identity_file_.Read();
        return identity.ok() && identity->epoch <= epoch;
      });
  flow_before_ = flow_file_->Read();
  SYNCOPATE_ASSIGN_OR_RETURN(data_, trainer::TrainingData::Open(options,
                                                                {.files = Files(),
                                                                 .codec = &ProtoRecordCodec(),
                                                                 .clock = Clock::Real(),
                                                                 .prompts = prompts_.training.get(),
                                                                 .evaluation_prompts = prompts_.evaluation.get()},
                                                                {.version = {welcome.epoch, restored.version.step},
                                                                 .run_id = welcome.run_id,
                                                                 .snapshot = restored.data_snapshot,
                                                                 .roster = flow_before_.roster,
                                                                 .begin = false}));
  return absl::OkStatus();
}

absl::Status TrainerDaemon::RecordConfig(const std::string& run_id) const {
  return config::WriteConfigRecord(Files(), daemon_->run_dir(), daemon_->config(), run_id);
}

absl::Status TrainerDaemon::BeginWork() {
  SYNCOPATE_RETURN_IF_ERROR(data_->Begin());
  trajectory_service_->Attach(data_.get());
  return absl::OkStatus();
}

// Changes nothing of the run before the configuration has become the run's: no record, no drop, no answer.
absl::StatusOr<bool> TrainerDaemon::PassTrial() {
  while (daemon_->IsOnTrial()) {
    ShowState();
    if (daemon_->StopRequested(kSignalPoll) || loop_->stop_requested() || !Refused().ok()) return false;
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const trainer::IdentityFile::Identity identity, identity_file_.Read());
  absl::Status recorded = RecordConfig(identity.run_id);
  while (ErrorReason(recorded) == reason::kNoSpace) {
    SYNCOPATE_LOG(kError, "the run waits for the disk: %s", recorded.ToString());
    ShowState();
    if (daemon_->StopRequested(kRecordRetry)) return false;
    recorded = RecordConfig(identity.run_id);
  }
  SYNCOPATE_RETURN_IF_ERROR(recorded);
  SYNCOPATE_RETURN_IF_ERROR(BeginWork());
  return true;
}

absl::Status TrainerDaemon::EndTrial() {
  const absl::Status why = Refused();
  if (rank_service_ != nullptr) rank_service_->Stop(why, /*completed=*/false);
  daemon_->BeginStop("the resume did not come to stand; the run is as it was", why);
  member_->Leave("the resume did not come to stand");
  return why;
}

absl::Status TrainerDaemon::OfferModel(const std::string& run_id) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<const ModelOffer> offer,
                             ModelOffer::Make(run_id, device_.model, device_.stager->manifest()));
  control_.SetModel(std::move(offer));
  return absl::OkStatus();
}

// A missing TensorBoard file is no reason to end a run.
void TrainerDaemon::OpenTensorBoard(const PolicyVersion& start) {
  if (!daemon_->config().metrics().tensorboard()) return;
  auto file = trainer::TensorBoardFile::Open(Files(), daemon_->Path("tensorboard"), start);
  if (!file.ok()) {
    SYNCOPATE_LOG(kError, "nothing is written for TensorBoard: %s", file.status().ToString());
    return;
  }
  recorder_->SetTensorBoard(*std::move(file));
}

absl::Status TrainerDaemon::StartLoop(const PolicyVersion& start) {
  start_ = start;
  if (const int64_t steps = daemon_->config().run().steps(); start.step > steps) {
    SYNCOPATE_LOG(kInfo, "run.steps is %d, and the run has reached step %d already: no further step is made", steps,
                  start.step);
  }
  OpenTensorBoard(start);
  recorder_->SetRolloutWork([this] { return data_->GetRoster().Total(); });
  SYNCOPATE_ASSIGN_OR_RETURN(synchronizer_,
                             SynchronizerClient::Create({.address = daemon_->config().synchronizer().address(),
                                                         .security = daemon_->security(),
                                                         .member = daemon_->Member(),
                                                         .secret = daemon_->secret()}));
  publisher_ = std::make_unique<trainer::VersionPublisher>(trainer::VersionPublisher::Options{
      .tell = [this](const trainer::Publication& version) { return synchronizer_->Publish(version); },
      .on_refused = [this](const absl::Status& why) { GiveUp(why); }});
  sync_watch_ = std::make_unique<trainer::SyncWatch>(
      trainer::SyncWatch::Options{.count = [this] { return synchronizer_->CountSyncs(); },
                                  .why_failed = [this] { return synchronizer_->LastSyncFailure(); },
                                  .give_up_after = config::CheckedDuration(daemon_->config().sync().give_up_after()),
                                  .on_failing = [this](const absl::Status& why) { GiveUp(why); }});
  loop_ = std::make_unique<trainer::StepLoop>(
      MakeLoopOptions(daemon_->config(), daemon_->exit_on_completion()),
      trainer::StepLoop::Parts{
          .policy = device_.shared_policy(),
          .data = data_.get(),
          .stager = device_.stager.get(),
          .checkpoints = checkpoints_.get(),
          .observer = recorder_.get(),
          .evaluation_prompts = prompts_.evaluation.get(),
          .publish = [this](trainer::Publication publication) { publisher_->Publish(std::move(publication)); },
          .newest_epoch = [this]() -> absl::StatusOr<int64_t> {
            SYNCOPATE_ASSIGN_OR_RETURN(const trainer::IdentityFile::Identity identity, identity_file_.Read());
            return identity.epoch;
          },
          .syncs_fail = [this] { return sync_watch_->failing(); },
          .ranks = rank_service_.get()},
      start);
  control_.Start({.loop = loop_.get(), .data = data_.get(), .policy = device_.shared_policy()});
  return Refused();
}

void TrainerDaemon::GiveUp(const absl::Status& why) {
  SYNCOPATE_LOG(kError, "this trainer ends: %s", why.ToString());
  {
    MutexLock lock(&mutex_);
    if (refused_.ok()) refused_ = why;
  }
  const absl::StatusOr<RunControl::Run> run = control_.GetRun();
  if (!run.ok()) return;  // StartLoop checks Refused()
  if (IsTakenOver(why)) {
    run->loop->StopFenced();
  } else {
    run->loop->Stop();  // no other trainer writes here, so the trained steps are saved
  }
}

absl::Status TrainerDaemon::Run() {
  if (on_trial_) {
    SYNCOPATE_ASSIGN_OR_RETURN(const bool stands, PassTrial());
    if (!stands) return EndTrial();
  }
  const absl::Time begin = Clock::Real()->Now();
  std::future<absl::StatusOr<trainer::StepLoop::Outcome>> running =
      std::async(std::launch::async, [this] { return loop_->Run(); });
  bool stopping = false, begun = false;
  absl::Time next_flow = begin + kFlowEvery;
  while (running.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    ShowState();
    if (!begun && HasMadeSteps()) {
      begun = true;  // the summary of an earlier incarnation is outdated now
      const absl::Status removed = Files()->RemoveTree(daemon_->Path(kSummaryFile));
      if (!removed.ok()) SYNCOPATE_LOG(kWarning, "an old summary.json stays: %s", removed.ToString());
    }
    if (const absl::Time now = Clock::Real()->Now(); now >= next_flow) {
      next_flow = now + kFlowEvery;
      ShowMemory();
      flow_file_->WriteSoon(FlowSoFar(absl::ToDoubleSeconds(now - begin)));
    }
    if (!daemon_->StopRequested(kSignalPoll)) continue;
    if (!stopping) loop_->Stop();
    stopping = true;
    running.wait_for(absl::ToChronoMilliseconds(kSignalPoll));
  }
  const absl::StatusOr<trainer::StepLoop::Outcome> outcome = running.get();
  reporter_->End();
  return Finish(outcome, absl::ToDoubleSeconds(Clock::Real()->Now() - begin));
}

absl::Status TrainerDaemon::Finish(const absl::StatusOr<trainer::StepLoop::Outcome>& outcome, double wall_seconds) {
  if (outcome.ok() && *outcome == trainer::StepLoop::Outcome::kFenced) {
    // The run directory, with its summary, belongs to another trainer now.
    const absl::Status refused = Refused();
    const absl::Status why = refused.ok() ? Error(absl::StatusCode::kFailedPrecondition, reason::kFenced,
                                                  absl::StrCat("a newer trainer works in ", daemon_->run_dir()))
                                          : refused;
    if (rank_service_ != nullptr) rank_service_->Stop(why, /*completed=*/false);
    daemon_->BeginStop("a newer trainer has taken over", why);
    member_->Leave("a newer trainer has taken over");
    return why;
  }
  const bool completed = outcome.ok() && *outcome == trainer::StepLoop::Outcome::kCompleted;
  const std::string status = completed ? "completed" : outcome.ok() ? "stopped" : "failed";
  if (rank_service_ != nullptr) rank_service_->Stop(outcome.ok() ? Refused() : outcome.status(), completed);
  data_->CloseIntake();  // so that the summary agrees with the log
  const trainer::FlowSums flow = FlowSoFar(wall_seconds);
  flow_file_->Write(flow);
  // An incarnation that made no step has nothing to add to an earlier summary; but the earlier one may have died before
  // it wrote a summary of its last steps.
  const int64_t step = loop_->GetStatus().version.step;
  if (HasMadeSteps() || (step > 0 && !HasSummaryOf(step, status))) {
    const absl::Status written = WriteSummary(status, flow);
    if (!written.ok()) SYNCOPATE_LOG(kError, "no summary.json: %s", written.ToString());
  }
  const absl::Status why = completed ? AwaitEnd() : outcome.ok() ? Refused() : outcome.status();
  daemon_->BeginStop(absl::StrCat("the run is over: ", status), why);
  member_->Leave(absl::StrCat("the run is over: ", status));
  return why;
}

absl::Status TrainerDaemon::AwaitEnd() {
  const PolicyVersion last = loop_->GetStatus().version;
  const bool ends = daemon_->exit_on_completion();
  const absl::Time deadline = Clock::Real()->Now() + kCompletionDeadline;
  absl::Time next_try = absl::InfinitePast();
  absl::Status told = Error(absl::StatusCode::kUnavailable, "NOT_TOLD", "not tried yet");
  if (!ends) SYNCOPATE_LOG(kInfo, "the run is complete; this process stays until it is stopped");
  while (!loop_->stop_requested() && !daemon_->StopRequested(kSignalPoll)) {
    ShowState();
    SYNCOPATE_RETURN_IF_ERROR(Refused());
    if (told.ok() || Clock::Real()->Now() < next_try) continue;
    next_try = Clock::Real()->Now() + kCompletionRetry;
    told = synchronizer_->CompleteRun(last);
    if (IsRefusal(told) || (ends && told.ok())) return told;
    if (ends && Clock::Real()->Now() > deadline) {
      return Error(absl::StatusCode::kUnavailable, "SYNCHRONIZER_LOST",
                   absl::StrCat("the run is complete and saved, but the synchronizer could not be told: ",
                                std::string(told.message()), "; a trainer that is started again tells it"));
    }
  }
  return Refused();
}

void TrainerDaemon::ShowState() {
  daemon_->health().Moved();
  daemon_->health().SetReady(Refused());  // the other ranks have joined, or this would not run
  // Polled: figures change thousands of times a second and are scraped every few seconds.
  const trainer::TrainingData::Status data = data_->GetStatus();
  PublishFigures(data, metrics_.get());
  if (!data.reward_verdict.ok() && Refused().ok()) GiveUp(data.reward_verdict);
}

absl::Status TrainerDaemon::Refused() const {
  MutexLock lock(&mutex_);
  return refused_;
}

trainer::FlowSums TrainerDaemon::FlowSoFar(double wall_seconds) const {
  return AddLife(flow_before_, wall_seconds, reporter_->figures(), data_->GetStatus(), data_->GetRoster());
}

bool TrainerDaemon::HasSummaryOf(int64_t step, const std::string& status) const {
  constexpr int64_t kMaxBytes = 16 << 20;
  const absl::StatusOr<std::string> text = ReadFile(Files(), daemon_->Path(kSummaryFile), kMaxBytes);
  return text.ok() && trainer::IsSummaryFor(*text, step, status);
}

absl::Status TrainerDaemon::WriteSummary(const std::string& status, const trainer::FlowSums& flow) {
  const trainer::StepLoop::Status loop = loop_->GetStatus();
  const nlohmann::json summary = trainer::MakeSummary({.status = status,
                                                       .data = data_->GetStatus(),
                                                       .flow = flow,
                                                       .best_checkpoint = loop.best_checkpoint,
                                                       .best_checkpoint_reward = loop.best_checkpoint_reward},
                                                      AskWitnesses(synchronizer_.get(), daemon_->security()));
  return WriteFileAtomically(Files(), daemon_->Path(kSummaryFile), summary.dump(2) + "\n");
}

}  // namespace syncopate::trainerd
