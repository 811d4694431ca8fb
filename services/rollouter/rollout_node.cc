#include "services/rollouter/rollout_node.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/uuid.h"
#include "rollouter/engine/readiness.h"
#include "synchronizer/ipc/base_lending.h"

namespace syncopate::rollouterd {
namespace {

constexpr double kLongRound = 1;  // seconds; a decode step takes milliseconds

template <typename Counts, typename Bounds>
telemetry::HistogramFigures ToHistogram(const Counts& times, const Bounds& bounds) {
  return {{bounds.begin(), bounds.end()}, {times.counts.begin(), times.counts.end()}, times.sum};
}

telemetry::RolloutFigures GetFigures(const rollouter::EngineStatus& engine, const WorkClient::Counters& work,
                                     const rollouter::RemoteEnvironment::Counters& environment) {
  telemetry::RolloutFigures figures;
  figures.serving = engine.serving;
  figures.running_sequences = engine.running_sequences;
  figures.waiting_sequences = engine.waiting_sequences;
  figures.parked_sequences = engine.parked_sequences;
  figures.kv_usage = engine.kv_usage;
  figures.kv_bytes = engine.kv_bytes;
  figures.weight_bytes = engine.weight_bytes;
  figures.lent_bytes = engine.lent_bytes;
  figures.lendings = engine.lendings;
  figures.lent_seconds = engine.lent_seconds;
  figures.moved_blocks = engine.moved_blocks;
  figures.generated_tokens = engine.generated_tokens;
  figures.prompt_tokens = engine.prompt_tokens;
  figures.prefix_tokens = engine.prefix_tokens;
  figures.preemptions = engine.preemptions;
  figures.swaps = engine.swaps;
  figures.yielded_sequences = engine.yielded_sequences;
  figures.yielded_swaps = engine.yielded_swaps;
  figures.host_kv_usage = engine.host_kv_usage;
  figures.host_kv_bytes = engine.host_kv_bytes;
  figures.time_to_first_token = ToHistogram(engine.requests.time_to_first_token, rollouter::kFirstTokenBounds);
  figures.time_per_output_token = ToHistogram(engine.requests.time_per_output_token, rollouter::kOutputTokenBounds);
  figures.finished_by_stop = engine.requests.stopped;
  figures.finished_by_length = engine.requests.at_length;
  figures.finished_by_abort = engine.requests.aborted;
  figures.groups_submitted = work.submitted;
  figures.episodes_opened = environment.opened;
  figures.turns_answered = environment.turns;
  figures.calls_failed = environment.failed;
  figures.cancels_sent = environment.cancels;
  figures.cancels_answered = environment.cancels_answered;
  figures.cancels_lost = environment.cancels_lost;
  figures.installs = engine.installs;
  figures.busy_seconds = engine.busy_seconds;
  figures.idle_seconds = engine.idle_seconds;
  return figures;
}

// Why the engine accepts no version for now; "": it does.
std::string WhyHeld(const rollouter::EngineStatus& status) {
  if (status.state == rollouter::EngineStatus::State::kAsleep) return "ASLEEP";
  // An evaluation belongs to one version: an install in the middle would mix two.
  return status.pins_version ? "EVALUATING" : "";
}

std::vector<synchronizer::ReceiverTransport*> GetTransports(const RolloutDevice& device) {
  std::vector<synchronizer::ReceiverTransport*> transports;
  for (const auto& transport : device.transports) transports.push_back(transport.get());
  return transports;
}

RolloutNode::Options WithDevice(RolloutNode::Options options) {
  if (options.device == nullptr) options.device = HostRolloutDevice(options.security);
  options.engine.backend = options.device->backend;
  return options;
}

RolloutService::Options ServiceOptions(const MemberId& member, const std::shared_ptr<WorkClient>& work) {
  RolloutService::Options options;
  options.member = member;
  options.set_draining = [work](bool draining) { work->SetDraining(draining); };
  options.set_paused = [work](bool paused) { work->SetPaused(paused); };
  options.set_asleep = [work](bool asleep) { work->SetAsleep(asleep); };
  options.groups_submitted = [work] { return work->counters().submitted; };
  return options;
}

// Counts and records received weights, and the time that installs cost the decode loop.
member::ReceiverParticipant::Listeners CountSyncs(EventRecorder* events, prometheus::Registry& registry) {
  member::ReceiverParticipant::Listeners listeners;
  listeners.received = [metrics = telemetry::ReceiveMetrics(registry)](int64_t bytes, double seconds) {
    metrics.Count(bytes, seconds);
  };
  listeners.installed = [events,
                         metrics = telemetry::InstallMetrics(registry)](const member::InstalledVersion& installed) {
    metrics.ObservePause(installed.pause_seconds);
    if (events == nullptr) return;
    if (installed.relabelled) return events->Record({"relabel", installed.version});
    events->Record({"install",
                    installed.version,
                    0,
                    {{"digest", absl::StrFormat("%016x", installed.digest)},
                     {"pause_seconds", absl::StrCat(installed.pause_seconds)}}});
  };
  return listeners;
}

// Called when a transfer in place has left the engine without weights.
std::function<void()> LostListener(EventRecorder* events, const std::shared_ptr<WorkClient>& work) {
  return [events, work] {
    // Without weights it would hand every lease back at once, and the trainer would quarantine it for that. The next
    // install ends this.
    work->SetAsleep(true);
    SYNCOPATE_LOG(kError, "a transfer in place has failed: nothing is generated until the next weight sync");
    if (events != nullptr) events->Record({"invalidate"});
  };
}

synchronizer::WeightReceiver::Options ReceiverOptions(const RolloutNode::Options& options, const Manifest& manifest,
                                                      const std::shared_ptr<WorkClient>& work,
                                                      std::function<void(const absl::Status&)> on_damaged) {
  synchronizer::WeightReceiver::Options receiver;
  receiver.manifest = manifest;
  receiver.member = options.member;
  receiver.layout = options.layout;
  receiver.on_arrived = [work](int64_t bytes) { work->CountReceived(bytes); };
  receiver.on_lost = LostListener(options.events, work);
  receiver.on_damaged = std::move(on_damaged);
  synchronizer::ipc::Borrower borrower{.device = options.device->facts.gpu_uuid};
  const std::string random = RandomBytes(sizeof(borrower.id));
  std::memcpy(&borrower.id, random.data(), random.size());
  receiver.borrow_base = [fingerprint = manifest.fingerprint(), borrower](
                             const std::string& rendezvous, absl::Time deadline, const std::stop_token& stop) {
    return synchronizer::ipc::BorrowBase(rendezvous, fingerprint, borrower, deadline, stop);
  };
  return receiver;
}

}  // namespace

daemon::CardOwners ListOwnParts(const rollouter::EngineStatus& engine) {
  return {{"weights", engine.weight_bytes}, {"keys and values", engine.kv_bytes}, {"buffers", engine.buffer_bytes}};
}

absl::StatusOr<std::unique_ptr<RolloutNode>> RolloutNode::Create(const Options& given, prometheus::Registry& registry) {
  const Options options = WithDevice(given);
  SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<rollouter::EngineLoop> engine,
                             rollouter::EngineLoop::Start(options.engine));
  SYNCOPATE_ASSIGN_OR_RETURN(auto scorer, rollouter::Scorer::Create(options.scoring));
  SYNCOPATE_ASSIGN_OR_RETURN(auto work, WorkClient::Create({.member = options.member,
                                                            .secret = options.secret,
                                                            .leases = options.leases,
                                                            .stops = options.stops,
                                                            .play = options.play,
                                                            .heartbeat = options.heartbeat,
                                                            .report_tokens = options.report_tokens,
                                                            .cards = options.cards,
                                                            .security = options.security},
                                                           engine.get(), scorer.get()));
  return std::unique_ptr<RolloutNode>(
      new RolloutNode(options, std::move(engine), std::move(scorer), std::move(work), registry));
}

RolloutNode::RolloutNode(const Options& options, std::shared_ptr<rollouter::EngineLoop> engine,
                         std::unique_ptr<rollouter::Scorer> scorer, std::shared_ptr<WorkClient> work,
                         prometheus::Registry& registry)
    : options_(options),
      engine_(std::move(engine)),
      scorer_(std::move(scorer)),
      work_(std::move(work)),
      service_(ServiceOptions(options.member, work_), engine_.get()),
      joint_target_(options.leader != nullptr ? rollouter::MakeLeadingTarget(engine_.get(), options.leader,
                                                                             LostListener(options.events, work_))
                                              : nullptr),
      receiver_(ReceiverOptions(options, engine_->manifest(), work_, [this](const absl::Status& why) { Refuse(why); }),
                joint_target_ != nullptr ? joint_target_.get() : engine_.get(), GetTransports(*options.device)),
      participant_(&receiver_, CountSyncs(options.events, registry)),
      metrics_(std::make_shared<telemetry::RolloutCollector>(options.run_name, [engine = engine_, work = work_] {
        return GetFigures(engine->GetStatus(), work->counters(), work->environment_counters());
      })) {
  // The trainer learns of an install from the next message of the work stream, even if the synchronizer is gone.
  engine_->SetInstallListener([work = work_](const PolicyVersion& version) { work->SetServing(version); });
}

RolloutNode::~RolloutNode() { Leave(absl::ZeroDuration()); }

absl::Status RolloutNode::Join(const std::string& address, const std::string& metrics_address,
                               const std::string& endpoint_address) {
  member::MemberClient::Options member;
  member.synchronizer_address = options_.synchronizer_address;
  member.security = options_.security;
  member.hello.member = options_.member;
  member.secret = options_.secret;
  member.hello.run_id = options_.run_id;
  member.hello.address = address;
  member.hello.metrics_address = metrics_address;
  member.hello.endpoint_address = endpoint_address;
  member.hello.manifest = std::make_shared<const Manifest>(engine_->manifest());
  for (const auto& transport : options_.device->transports) member.hello.transports.push_back(transport->name());
  member.hello.layout = options_.layout;
  member.hello.facts = options_.device->facts;
  member.hello.build = options_.build;
  member.events = options_.events;
  member.serving = [this] {
    rollouter::EngineStatus status = engine_->GetStatus();
    return member::MemberClient::Serving{status.serving, status.serving_digest, WhyHeld(status),
                                         receiver_.base_digest()};
  };
  member.on_refused = [this](const absl::Status& why) { Refuse(why); };
  member.lost_after = options_.lost_after;
  SYNCOPATE_ASSIGN_OR_RETURN(member_, member::MemberClient::Start(std::move(member), &participant_));
  engine_->SetPinListener(member_->Announcer());
  member_->SetDirectoryListener([this](const synchronizer::Directory& directory) {
    {
      MutexLock lock(&mutex_);
      directory_ = directory;
    }
    // There is no directory before the welcome, so this does not wait.
    absl::StatusOr<synchronizer::Welcome> welcome = member_->WaitForWelcome(absl::ZeroDuration());
    if (welcome.ok()) work_->SetTrainer(directory.trainer_address, welcome->run_id);
  });
  return absl::OkStatus();
}

void RolloutNode::Refuse(const absl::Status& why) {
  MutexLock lock(&mutex_);
  refused_.Update(why);
}

absl::Status RolloutNode::CheckAlive() const {
  {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(refused_);
  }
  // Checked before the engine, whose failure would be only a consequence.
  if (options_.leader != nullptr) SYNCOPATE_RETURN_IF_ERROR(options_.leader->lost());
  SYNCOPATE_RETURN_IF_ERROR(work_->refusal());
  return engine_->GetStatus().failure;
}

absl::Status RolloutNode::CheckReady() const {
  PolicyVersion newest;
  {
    MutexLock lock(&mutex_);
    newest = directory_.newest;
  }
  return rollouter::CheckReady(engine_->GetStatus(), newest, options_.allowed_lag);
}

bool RolloutNode::Moves() const { return engine_->GetStatus().round_seconds < kLongRound; }

bool RolloutNode::run_completed() const {
  MutexLock lock(&mutex_);
  return directory_.completed;
}

void RolloutNode::Leave(absl::Duration grace) {
  const absl::Time start = Clock::Real()->Now();
  auto left = [start, grace](double share) {
    return std::max(absl::ZeroDuration(), grace * share - (Clock::Real()->Now() - start));
  };
  work_->SetDraining(true);
  if (member_ != nullptr) member_->Leave("stopping");  // so that no weight sync begins with a leaving node
  if (grace > absl::ZeroDuration()) {
    const absl::Status drained = engine_->Drain(left(0.5));
    if (!drained.ok()) SYNCOPATE_LOG(kWarning, "leaving with work unfinished: %s", drained.ToString());
    if (!work_->WaitScored(left(0.5))) SYNCOPATE_LOG(kWarning, "leaving with answers that have no rewards yet");
    work_->HandBack(Error(absl::StatusCode::kUnavailable, "STOPPING", "this rollouter stops; lease it elsewhere"));
    if (!work_->WaitIdle(left(0.6))) SYNCOPATE_LOG(kWarning, "leaving before every group was acknowledged");
  }
  work_->Report();
  work_->Stop(left(0.7));
  if (member_ != nullptr) member_->Stop(left(0.8));
  scorer_->Stop();
  engine_->Stop();  // before the server, whose calls may wait for the engine: a drain of a paused engine for minutes
}

}  // namespace syncopate::rollouterd
