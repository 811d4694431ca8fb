#include "services/trainer/trainer_daemon.h"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/daemon/card_name.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/log.h"
#include "base/reasons.h"
#include "ranks/group_secret.h"
#include "ranks/meeting.h"
#include "services/auth/rank_sockets.h"
#include "services/config/config_record.h"
#include "services/config/duration.h"
#include "services/config/loss_options.h"
#include "services/config/model_options.h"
#include "services/config/ranks.h"
#include "services/config/run_config.h"
#include "services/config/run_model.h"
#include "services/config/trainer_options.h"
#include "services/trainer/data_codec.h"
#include "services/trainer/environment_tools.h"
#include "services/trainer/loop_options.h"
#include "services/trainer/run_paths.h"
#include "services/wire/codec.h"
#include "trainer/data/sizing.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kStopGrace = absl::Seconds(1);
constexpr absl::Duration kRefusalsWithin = absl::Seconds(1);
constexpr absl::Duration kRecordRetry = absl::Seconds(1);  // after a write to a full disk
constexpr absl::Duration kSignalPoll = absl::Milliseconds(20);
constexpr absl::Duration kSizeEvery = absl::Seconds(5);
constexpr absl::Duration kFlowEvery = absl::Seconds(1);  // the most that SIGKILL may lose of the flow sums

FileSystem* Files() { return FileSystem::Real(); }

void PublishFigures(const trainer::TrainingData::Status& data, telemetry::TrainerMetrics* metrics) {
  metrics->SetQueue(data.queued_groups, data.leased_groups);
  metrics->SetGroups("trained", data.groups.trained);
  metrics->SetGroups("dropped_stale", data.groups.dropped_stale);
  metrics->SetGroups("filtered", data.groups.filtered);
  metrics->SetGroups("duplicate", data.groups.duplicate);
  metrics->SetGroups("rolled_back", data.groups.rolled_back);
  metrics->SetGroups("skipped", data.groups.skipped);
  metrics->SetGroups("failed", data.groups.failed);
  metrics->SetGroups("past_deadline", data.groups.past_deadline);
  metrics->SetAnsweredTimeRatio(data.answered_time_ratio);
  metrics->SetKeptLengthRatio(data.kept_length_ratio);
  metrics->SetRewards("judged", data.rewards.judged);
  metrics->SetRewards("failed", data.rewards.failed);
  metrics->SetQuarantines(data.leases.quarantines);
  metrics->SetRevoked("stalled", data.leases.stalled);
  metrics->SetRevoked("timeout", data.leases.timed_out);
  metrics->SetRevoked("superseded", data.leases.superseded);
  metrics->SetRevoked("deadline", data.leases.past_deadline);
  metrics->SetContinued(data.groups.continued, data.groups.kept_tokens);
  metrics->SetUnfinishedBytes(data.unfinished_bytes);
  int64_t lag = 0;
  for (const trainer::RolloutView& rollouter : data.rollouters) lag = std::max(lag, rollouter.publish_lag_steps);
  metrics->SetPublishLag(lag);
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
      device_(std::move(device)),
      control_({.steps = daemon->config().run().steps(), .trains_adapters = device_.model.shape.lora.enabled()}) {}

absl::StatusOr<std::unique_ptr<TrainerDaemon>> TrainerDaemon::Start(daemon::Daemon* daemon, TrainDevice device) {
  std::unique_ptr<TrainerDaemon> trainer(new TrainerDaemon(daemon, std::move(device)));
  const absl::Status begun = trainer->Begin();
  if (!begun.ok()) trainer->EndRanks(begun);
  SYNCOPATE_RETURN_IF_ERROR(begun);
  return trainer;
}

absl::Status TrainerDaemon::Begin() {
  SYNCOPATE_ASSIGN_OR_RETURN(restore_, RunRestore::Open(daemon_, &device_));
  SYNCOPATE_RETURN_IF_ERROR(OpenRecords());
  SYNCOPATE_RETURN_IF_ERROR(OpenPrompts());
  SYNCOPATE_ASSIGN_OR_RETURN(Restored restored, restore_->RestoreLatest());
  SYNCOPATE_RETURN_IF_ERROR(Listen());
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Welcome welcome, Join());
  // Once more: a trainer that was still running here can have saved until Join had written the new epoch.
  SYNCOPATE_ASSIGN_OR_RETURN(restored, restore_->RestoreNewer(std::move(restored)));
  SYNCOPATE_RETURN_IF_ERROR(AssembleRanks(restored, welcome));
  SYNCOPATE_RETURN_IF_ERROR(OpenData(restored, welcome));
  SYNCOPATE_RETURN_IF_ERROR(OfferModel(welcome.run_id));
  SYNCOPATE_RETURN_IF_ERROR(StartLoop({welcome.epoch, restored.version.step}));
  if (!on_trial_) SYNCOPATE_RETURN_IF_ERROR(BeginWork());
  // Last: a process that waits for this file may use everything at once.
  return daemon_->Announce(server_->address());
}

void TrainerDaemon::EndRanks(const absl::Status& why) {
  if (rank_service_ == nullptr) return;
  // Without a reason a rank would take this for a rank 0 that is started again, and dial until its deadline.
  const bool has_reason = !ErrorReason(why).empty();
  rank_service_->Stop(has_reason ? why : RankLost(absl::StrCat("rank 0 ends: ", why.ToString())), /*completed=*/false);
  // A rank that was refused, too, has this long to read why.
  if (server_ != nullptr) server_->Stop(kRefusalsWithin);
}

TrainerDaemon::~TrainerDaemon() {
  if (membership_ != nullptr) membership_->Stop();
  if (data_ != nullptr) data_->Stop();
  if (server_ != nullptr) server_->Stop(kStopGrace);
}

absl::Status TrainerDaemon::OpenRecords() {
  SYNCOPATE_ASSIGN_OR_RETURN(reporter_, trainer::RunReporter::Open(Files(), daemon_->Path("metrics.jsonl")));
  metrics_ = std::make_unique<telemetry::TrainerMetrics>(*daemon_->registry(), MakeMetricLimits(daemon_->config()));
  recorder_ = std::make_unique<RunRecorder>(reporter_.get(), metrics_.get(), daemon_->events());
  return absl::OkStatus();
}

absl::Status TrainerDaemon::OpenPrompts() {
  SYNCOPATE_ASSIGN_OR_RETURN(
      trainer::EnvironmentTools tools,
      AskForTools(daemon_->config(), [this](absl::Duration wait) { return daemon_->StopRequested(wait); }));
  SYNCOPATE_ASSIGN_OR_RETURN(prompts_, OpenPromptSources(daemon_->config(), device_.model, std::move(tools)));
  SYNCOPATE_RETURN_IF_ERROR(KeepFingerprint(Files(), daemon_->run_dir(), prompts_.fingerprint));
  ShowMemory();
  return absl::OkStatus();
}

void TrainerDaemon::ShowMemory() {
  recorder_->SetSendBytes(device_.arena_bytes == 0 ? 0 : device_.stager->bytes());
  recorder_->RecordMemory(device_.policy->memory());
  if (device_.device.card != nullptr) card_metrics_->Update(*device_.device.card, ListOwnParts(device_));
}

// All rollouters on the device have left it, so that nobody else's memory changes meanwhile.
void TrainerDaemon::MeasureTurn(bool begins) {
  if (device_.device.card == nullptr) return;
  const int64_t own = daemon::SumOwners(ListOwnParts(device_));
  const absl::Status measured = begins ? device_.device.card->Begin(own) : device_.device.card->End(own);
  if (!measured.ok())
    SYNCOPATE_LOG(kWarning, "what libraries take of the GPU is not measured: %s", measured.ToString());
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
    SYNCOPATE_RETURN_IF_ERROR(MakeRankService());
    services.push_back(rank_service_.get());
    names.push_back("syncopate.v1.RankService");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(metrics_address_,
                             daemon_->StartMetrics(config.metrics().trainer_listen(), {card_metrics_}));
  SYNCOPATE_ASSIGN_OR_RETURN(server_, daemon_->StartServer(config.trainer().listen(), services, names));
  if (rank_service_ != nullptr) SYNCOPATE_RETURN_IF_ERROR(AnnounceToRanks());
  const std::string& advertised = config.trainer().advertise();
  membership_ = std::make_unique<TrainerMembership>(
      TrainerMembership::Options{.daemon = daemon_,
                                 .device = &device_,
                                 .address = advertised.empty() ? server_->address() : advertised,
                                 .metrics_address = metrics_address_,
                                 .on_refused = [this](const absl::Status& why) { GiveUp(why); }});
  return absl::OkStatus();
}

absl::Status TrainerDaemon::MakeRankService() {
  const std::string secret = DrawGroupSecret();
  SYNCOPATE_RETURN_IF_ERROR(daemon::WriteRanksSecret(daemon_->run_dir(), secret));
  rank_service_ = std::make_unique<RankServiceImpl>(
      rpc::RankStreamsOptions{.rank0 = {.world = device_.ranks->world(),
                                        .config_digest = config::RankConfigDigest(daemon_->config()),
                                        .manifest_fingerprint = device_.policy->manifest().fingerprint(),
                                        .build = daemon::BuildVersion(),
                                        .gpu = device_.device.place.gpu},
                              .secret = secret,
                              .security = daemon_->security(),
                              .on_lost =
                                  [this](const absl::Status& why) {
                                    device_.ranks->Abort(std::string(why.message()));
                                    GiveUp(why);
                                  }},
      // All ranks still work, so the loop ends in order, and saves if no other trainer writes here.
      [this](const absl::Status& why) { GiveUp(why); });
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
    if (daemon_->StopRequested(absl::ZeroDuration())) {
      return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before all trainer ranks had come");
    }
    SYNCOPATE_RETURN_IF_ERROR(rank_service_->lost());
    return Refused();
  };
  SYNCOPATE_RETURN_IF_ERROR(rank_service_->AwaitRanks(kRanksMeetWithin, go_on));
  v1::AttendResponse::Welcome message;
  message.set_run_id(welcome.run_id);
  message.set_start(daemon_->incarnation());
  message.set_epoch(welcome.epoch);
  if (!restored.version.IsNone()) *message.mutable_restore() = wire::ToProto(restored.version);
  SYNCOPATE_ASSIGN_OR_RETURN(const config::ListenAddress listen,
                             config::GetTrainerRanksListen(daemon_->config().trainer()));
  SYNCOPATE_ASSIGN_OR_RETURN(RankListener listener,
                             RankListener::Open(device_.device.place, listen.address, listen.key));
  auto invite = [&](const RankInvitation& invitation) {
    message.set_nccl_id(invitation.id);
    message.mutable_ranks_addresses()->Assign(invitation.addresses.begin(), invitation.addresses.end());
    message.set_ranks_secret(invitation.secret);
    return rank_service_->Welcome(message);
  };
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto ranks, MeetRanks(device_.device.place,
                            {.world = device_.ranks->world(),
                             .call_deadline = kRankCallDeadline,
                             .security = auth::RankSocketSecurity(daemon_->security(), auth::AuthRole::kTrainer)},
                            &listener, rank_service_->ranks_addresses(), invite, go_on));
  device_.ranks->Connect(std::move(ranks));
  device_.leading->Lead(rank_service_.get());
  device_.staging_group->Lead(rank_service_.get(), rank_service_.get());
  SYNCOPATE_LOG(kInfo, "all %d trainer ranks are there", device_.ranks->world());
  return absl::OkStatus();
}

absl::StatusOr<synchronizer::Welcome> TrainerDaemon::Join() {
  SYNCOPATE_ASSIGN_OR_RETURN(const trainer::IdentityFile::Identity identity, restore_->identity_file().Read());
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t epoch, restore_->HighestEpoch());
  SYNCOPATE_ASSIGN_OR_RETURN(
      synchronizer::Welcome welcome,
      membership_->Join({.run_id = identity.run_id.empty() ? daemon_->config().run().id() : identity.run_id,
                         .checkpoint_epoch = epoch}));
  // The record first: a run with an identity but no record counts as one from before records existed.
  if (!on_trial_) SYNCOPATE_RETURN_IF_ERROR(RecordConfig(welcome.run_id));
  SYNCOPATE_RETURN_IF_ERROR(restore_->identity_file().Write({welcome.run_id, welcome.epoch}));
  SYNCOPATE_LOG(kInfo, "joined run %s with epoch %d", welcome.run_id, welcome.epoch);
  return welcome;
}

absl::Status TrainerDaemon::OpenData(const Restored& restored, const synchronizer::Welcome& welcome) {
  const trainer::TrainingData::Options options =
      MakeDataOptions(daemon_->config(), device_.model.shape, prompts_, daemon_->Path(kLogFolder));
  auto may_write = [this, epoch = welcome.epoch] {
    const absl::StatusOr<trainer::IdentityFile::Identity> identity = restore_->identity_file().Read();
    return identity.ok() && identity->epoch <= epoch;
  };
  SYNCOPATE_ASSIGN_OR_RETURN(ending_, RunEnding::Create(daemon_, std::move(may_write)));
  SYNCOPATE_ASSIGN_OR_RETURN(
      data_,
      trainer::TrainingData::Open(options,
                                  {.files = Files(),
                                   .codec = &ProtoRecordCodec(),
                                   .clock = Clock::Real(),
                                   .prompts = prompts_.training.get(),
                                   .evaluation_prompts = prompts_.evaluation.get(),
                                   .on_dropped = [this](const trainer::DropRecord& drop,
                                                        const PolicyVersion& at) { samples_->RecordDrop(drop, at); }},
                                  {.version = {welcome.epoch, restored.version.step},
                                   .run_id = welcome.run_id,
                                   .snapshot = restored.data_snapshot,
                                   .roster = ending_->flow_before().roster,
                                   .begin = false}));
  if (!daemon_->config().run().share_gpu()) return absl::OkStatus();
  turn_bytes_ = CountTurnBytes(device_);
  const bool measures = device_.device.read_free_bytes != nullptr;
  turns_ = std::make_unique<trainer::TurnDesk>(
      trainer::CardTurns::Options{.looks_always = measures},
      trainer::TurnDesk::Parts{.clock = Clock::Real(),
                               .set_away = [this](int64_t stream, bool away) { data_->SetAway(stream, away); },
                               .evict = [this](int64_t stream, const absl::Status& why) { data_->Evict(stream, why); },
                               .has_room = [this] { return CheckTurnRoom(device_, turn_bytes_); }});
  return absl::OkStatus();
}

std::set<std::string> TrainerDaemon::FindCards() const {
  std::set<std::string> cards = rank_service_ != nullptr ? rank_service_->cards() : std::set<std::string>();
  cards.insert(daemon::CardName(device_.facts.gpu_uuid));
  return cards;
}

absl::Status TrainerDaemon::RecordConfig(const std::string& run_id) const {
  return config::WriteConfigRecord(Files(), daemon_->run_dir(), daemon_->config(), run_id);
}

void TrainerDaemon::OpenSamples() {
  const v1::RunConfig& config = daemon_->config();
  auto file = std::make_unique<trainer::SampleFile>(
      Files(), trainer::SampleFile::Options{.folder = daemon_->run_dir(),
                                            .max_bytes = config.metrics().samples_bytes(),
                                            .restored_step = data_->version().step});
  samples_ = std::make_unique<SampleRecorder>(SampleRecorder::Options{.training = TrainingSamples(config),
                                                                      .loss = config::MakeLossOptions(config),
                                                                      .prompts = prompts_.training.get()},
                                              std::move(file));
  recorder_->SetSamples(samples_.get());
}

absl::Status TrainerDaemon::BeginWork() {
  OpenSamples();
  SYNCOPATE_RETURN_IF_ERROR(data_->Begin());
  trajectory_service_->Attach(data_.get(), turns_.get(), FindCards());
  return absl::OkStatus();
}

// Changes nothing of the run before the configuration has become the run's: no record, no drop, no answer.
absl::StatusOr<bool> TrainerDaemon::PassTrial() {
  while (daemon_->IsOnTrial()) {
    ShowState();
    if (daemon_->StopRequested(kSignalPoll) || loop_->stop_requested() || !Refused().ok()) return false;
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const trainer::IdentityFile::Identity identity, restore_->identity_file().Read());
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
  membership_->Leave("the resume did not come to stand");
  return why;
}

absl::Status TrainerDaemon::OfferModel(const std::string& run_id) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<const ModelOffer> offer,
                             ModelOffer::Make(run_id, device_.model, device_.stager->manifest()));
  // A rollouter that knows the model makes its engine, and sizes keys and values by what is free on the device.
  if (turns_ != nullptr) {
    SYNCOPATE_RETURN_IF_ERROR(device_.shared_policy()->EnterRolloutMode().status());
    SYNCOPATE_RETURN_IF_ERROR(device_.stager->LeaveDevice().status());
  }
  control_.SetModel(std::move(offer), turns_.get(), FindCards());
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

// Only a run that began with model.path has a config.json to go with all weights; adapters need none.
absl::Status TrainerDaemon::OpenExports() {
  if (device_.model.by_keys() && !device_.model.shape.lora.enabled()) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(
      exports_, trainer::ExportStore::Open(Files(), {.root = daemon_->Path(kExportsFolder),
                                                     .description = config::KeptModelFolder(daemon_->run_dir())}));
  return absl::OkStatus();
}

absl::Status TrainerDaemon::StartLoop(const PolicyVersion& start) {
  if (const int64_t steps = daemon_->config().run().steps(); start.step > steps) {
    SYNCOPATE_LOG(kInfo, "run.steps is %d, and the run has reached step %d already: no further step is made", steps,
                  start.step);
  }
  OpenTensorBoard(start);
  SYNCOPATE_RETURN_IF_ERROR(OpenExports());
  recorder_->SetRolloutWork([this] { return data_->GetRoster().Total(); });
  SYNCOPATE_RETURN_IF_ERROR(membership_->Begin());
  loop_ = std::make_unique<trainer::StepLoop>(
      MakeLoopOptions(daemon_->config(), prompts_, daemon_->exit_on_completion()),
      trainer::StepLoop::Parts{
          .policy = device_.shared_policy(),
          .data = data_.get(),
          .stager = device_.stager.get(),
          .checkpoints = restore_->checkpoints(),
          .observer = recorder_.get(),
          .evaluation_prompts = prompts_.evaluation.get(),
          .publish = [this](trainer::Publication publication) { membership_->Publish(std::move(publication)); },
          .newest_epoch = [this]() -> absl::StatusOr<int64_t> {
            SYNCOPATE_ASSIGN_OR_RETURN(const trainer::IdentityFile::Identity identity,
                                       restore_->identity_file().Read());
            return identity.epoch;
          },
          .syncs_fail = [this] { return membership_->syncs_fail(); },
          .ranks = rank_service_.get(),
          .exports = exports_.get(),
          .turns = turns_.get(),
          .measure_turn = [this](bool begins) { MeasureTurn(begins); },
          .hold_device = device_.device.hold_card},
      start);
  ending_->Attach({.loop = loop_.get(),
                   .data = data_.get(),
                   .reporter = reporter_.get(),
                   .membership = membership_.get(),
                   .ranks = rank_service_.get(),
                   .refused = [this] { return Refused(); },
                   .show_state = [this] { ShowState(); },
                   .start = start});
  control_.Start({.loop = loop_.get(), .data = data_.get()});
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
  absl::Time next_flow = begin + kFlowEvery, next_size = begin;
  while (running.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    ShowState();
    if (!begun && ending_->HasMadeSteps()) {
      begun = true;
      ending_->RemoveOldSummary();
    }
    if (const absl::Time now = Clock::Real()->Now(); now >= next_flow) {
      next_flow = now + kFlowEvery;
      ShowMemory();
      ending_->WriteFlowSoon(absl::ToDoubleSeconds(now - begin));
    }
    if (const absl::Time now = Clock::Real()->Now(); now >= next_size) {
      next_size = now + kSizeEvery;
      ShowSizing();
    }
    if (!daemon_->StopRequested(kSignalPoll)) continue;
    if (!stopping) loop_->Stop();
    stopping = true;
    running.wait_for(absl::ToChronoMilliseconds(kSignalPoll));
  }
  const absl::StatusOr<trainer::StepLoop::Outcome> outcome = running.get();
  reporter_->End();
  return ending_->Finish(outcome, absl::ToDoubleSeconds(Clock::Real()->Now() - begin));
}

void TrainerDaemon::ShowSizing() {
  // Between two steps hardly anything is measured anew, and steps of large batches, which take long to play, take long.
  const PolicyVersion version = data_->version();
  if (std::exchange(sized_, version) == version) return;
  const absl::StatusOr<trainer::SizingAdvice> advice = trainer::SizeRun(data_->GetSizingInputs());
  control_.SetSizing(advice);
  metrics_->SetSizing(advice.ok() ? *advice : trainer::SizingAdvice());
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

}  // namespace syncopate::trainerd
