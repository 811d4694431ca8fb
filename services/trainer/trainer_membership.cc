#include "services/trainer/trainer_membership.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/reasons.h"
#include "services/config/duration.h"
#include "services/config/model_options.h"
#include "services/config/ranks.h"
#include "services/config/run_config.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kJoinDeadline = absl::Seconds(60);
constexpr absl::Duration kStopPoll = absl::Milliseconds(200);
constexpr absl::Duration kLeaveWithin = absl::Seconds(1);

std::vector<synchronizer::SourceTransport*> OfferedTransports(const TrainDevice& device, member::GrpcSource* grpc) {
  std::vector<synchronizer::SourceTransport*> offered;
  for (const auto& transport : device.transports) offered.push_back(transport.get());
  // Last: gRPC carries weights only where nothing faster connects the two.
  if (device.offers_grpc) offered.push_back(grpc);
  return offered;
}

// All ranks of a trainer are one replica, whatever their processes are named.
MemberId TrainerRank(const daemon::Daemon& daemon, int32_t rank) {
  return {std::string(synchronizer::kTrainerRole), "trainer-0", rank,
          static_cast<int32_t>(daemon.config().trainer().world()), daemon.incarnation()};
}

}  // namespace

TrainerMembership::TrainerMembership(Options options)
    : options_(std::move(options)),
      grpc_source_(options_.address),
      transports_(OfferedTransports(*options_.device, &grpc_source_)),
      source_(
          options_.device->stager->store(), transports_,
          synchronizer::WeightSource::Options{
              .layout = options_.device->stager->layout(),
              .destination_layout = config::MakeRolloutLayout(options_.daemon->config(), options_.device->model.shape),
              .base_rendezvous = [device = options_.device] { return device->LendBase(); }}),
      participant_(&source_) {}

TrainerMembership::~TrainerMembership() { Stop(); }

absl::StatusOr<synchronizer::Welcome> TrainerMembership::Join(const Claim& claim) {
  const v1::RunConfig& config = options_.daemon->config();
  const TrainDevice& device = *options_.device;
  synchronizer::Hello hello;
  hello.member = TrainerRank(*options_.daemon, device.rank);
  hello.start = claim.start.empty() ? hello.member.incarnation : claim.start;
  hello.held_epoch = claim.held_epoch;
  hello.run_id = claim.run_id;
  hello.address = options_.address;
  hello.metrics_address = options_.metrics_address;
  hello.manifest = std::make_shared<const Manifest>(device.stager->manifest());
  for (const synchronizer::SourceTransport* transport : transports_) hello.transports.push_back(transport->name());
  hello.layout = device.stager->layout();
  hello.destination_layout = config::MakeRolloutLayout(config, device.model.shape);
  hello.facts = device.facts;
  hello.checkpoint_epoch = claim.checkpoint_epoch;
  hello.build = daemon::BuildVersion();
  SYNCOPATE_ASSIGN_OR_RETURN(
      member_, member::MemberClient::Start({.synchronizer_address = config.synchronizer().address(),
                                            .security = options_.daemon->security(),
                                            .hello = std::move(hello),
                                            .secret = options_.daemon->secret(),
                                            .on_refused = options_.on_refused,
                                            .events = options_.daemon->events(),
                                            .lost_after = config::CheckedDuration(config.synchronizer().lost_after())},
                                           &participant_));
  SYNCOPATE_LOG(kInfo, "trainer rank %d sends its shard (%s) from %d bytes of send slots, at %s", device.rank,
                device.stager->layout(), device.stager->bytes(), options_.address);
  const absl::Time deadline = Clock::Real()->Now() + kJoinDeadline;
  while (true) {
    absl::StatusOr<synchronizer::Welcome> welcome = member_->WaitForWelcome(kStopPoll);
    if (options_.daemon->StopRequested(absl::ZeroDuration())) {
      return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before the synchronizer had answered");
    }
    if (ErrorReason(welcome.status()) == reason::kNotJoined && Clock::Real()->Now() < deadline) continue;
    return welcome;
  }
}

absl::Status TrainerMembership::Begin() {
  const v1::RunConfig& config = options_.daemon->config();
  SYNCOPATE_ASSIGN_OR_RETURN(synchronizer_, SynchronizerClient::Create({.address = config.synchronizer().address(),
                                                                        .security = options_.daemon->security(),
                                                                        .member = TrainerRank(*options_.daemon, 0),
                                                                        .secret = options_.daemon->secret()}));
  publisher_ = std::make_unique<trainer::VersionPublisher>(trainer::VersionPublisher::Options{
      .tell = [this](const trainer::Publication& version) { return synchronizer_->Publish(version); },
      .on_refused = options_.on_refused});
  sync_watch_ = std::make_unique<trainer::SyncWatch>(
      trainer::SyncWatch::Options{.count = [this] { return synchronizer_->CountSyncs(); },
                                  .why_failed = [this] { return synchronizer_->LastSyncFailure(); },
                                  .give_up_after = config::CheckedDuration(config.sync().give_up_after()),
                                  .on_failing = options_.on_refused});
  return absl::OkStatus();
}

void TrainerMembership::Stop() {
  if (member_ != nullptr) member_->Stop(kLeaveWithin);
  if (publisher_ != nullptr) publisher_->Stop();
  if (sync_watch_ != nullptr) sync_watch_->Stop();
}

}  // namespace syncopate::trainerd
