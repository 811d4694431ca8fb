#include "bench/fleet/fleet_world.h"

#include <malloc.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/status.h"
#include "services/wire/sync_codec.h"
#include "synchronizer/plan/layout_text.h"

namespace syncopate::bench {
namespace {

using synchronizer::Command;
using synchronizer::ControlPlane;
using synchronizer::Hello;
using synchronizer::SessionId;
using synchronizer::SyncPlan;
using synchronizer::SyncReport;
using synchronizer::SyncStage;

const PolicyVersion kVersion{1, 1};

double SecondsSince(absl::Time begun) { return absl::ToDoubleSeconds(Clock::Real()->Now() - begun); }

int64_t HeapBytes() { return static_cast<int64_t>(mallinfo2().uordblks); }

std::string SourceLayout(const FleetCase& fleet) {
  // "units:fp32" of 8 ranks is "units:8:fp32".
  const size_t colon = fleet.source_layout.find(':');
  const std::string kind = fleet.source_layout.substr(0, colon);
  const std::string dtype = colon == std::string::npos ? "" : fleet.source_layout.substr(colon);
  return absl::StrCat(kind, ":", fleet.trainer_ranks, dtype);
}

std::string ReceiverLayout(const FleetCase& fleet) {
  return fleet.tensor_parallel == 1 ? "whole" : absl::StrCat("tp:", fleet.tensor_parallel, ":fused:vocab");
}

}  // namespace

absl::StatusOr<FleetFigures> FleetWorld::Measure(const FleetCase& fleet) {
  if (fleet.trainer_ranks < 1 || fleet.replicas < 1 || fleet.tensor_parallel < 1 ||
      (fleet.transport != "grpc" && fleet.transport != "nccl")) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CASE",
                 "expected at least one trainer rank, replica and rank of a replica, and the transport grpc or nccl");
  }
  auto manifest = std::make_shared<const Manifest>(fleet.manifest);
  absl::Time begun = Clock::Real()->Now();
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout source,
                             synchronizer::BuildLayout(*manifest, SourceLayout(fleet)));
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout destination,
                             synchronizer::BuildLayout(*manifest, ReceiverLayout(fleet)));
  FleetFigures figures;
  figures.layout_seconds = SecondsSince(begun);
  begun = Clock::Real()->Now();
  SYNCOPATE_ASSIGN_OR_RETURN(SyncPlan plan, SyncPlan::Create(*manifest, source, destination));
  figures.plan_seconds = SecondsSince(begun);
  figures.plan_copies = static_cast<int64_t>(plan.copies().size());
  figures.plan_buckets = static_cast<int64_t>(plan.buckets().size());

  // Everything that the decisions keep is allocated after this point.
  const int64_t heap_before = HeapBytes();
  ControlPlane::Options options;
  options.sync.transport = fleet.transport;
  options.sync.rehearse_after = absl::Hours(1);  // a rehearsal's messages are not those of a sync
  options.run_id = "fleet";
  SYNCOPATE_ASSIGN_OR_RETURN(ControlPlane plane, ControlPlane::Restore(options, {}));
  FleetWorld world(fleet, std::move(manifest), std::move(plan), std::move(plane));
  world.figures_ = figures;
  SYNCOPATE_RETURN_IF_ERROR(world.JoinAll());
  SYNCOPATE_RETURN_IF_ERROR(world.PublishOne());
  world.reports_ = {};  // the members' own memory is not the synchronizer's
  world.figures_.heap_bytes = HeapBytes() - heap_before;
  return world.figures_;
}

FleetWorld::FleetWorld(const FleetCase& fleet, std::shared_ptr<const Manifest> manifest, SyncPlan plan,
                       ControlPlane plane)
    : fleet_(fleet), manifest_(std::move(manifest)), plan_(std::move(plan)), plane_(std::move(plane)) {}

// Sessions 1 to T are the trainer's ranks, the others those of the replicas in order.
MemberId FleetWorld::GetMember(SessionId session) const {
  const auto index = static_cast<int32_t>(session - 1);
  if (IsSource(session)) {
    return {synchronizer::kTrainerRole, "trainer-0", index, fleet_.trainer_ranks, absl::StrCat("trainer-", index)};
  }
  const int32_t receiver = index - fleet_.trainer_ranks, world = fleet_.tensor_parallel;
  const int32_t replica = receiver / world, rank = receiver % world;
  // An incarnation is 64 hexadecimal digits.
  return {synchronizer::kRollouterRole, absl::StrCat("rollouter-", replica), rank, world,
          absl::StrCat(absl::Hex(receiver, absl::kZeroPad16), std::string(48, '0'))};
}

Hello FleetWorld::MakeHello(SessionId session) const {
  Hello hello;
  hello.member = GetMember(session);
  hello.run_id = "fleet";
  hello.address = absl::StrCat(hello.member.replica_id, ".fleet.example:50051");
  hello.metrics_address = absl::StrCat(hello.member.replica_id, ".fleet.example:9090");
  hello.manifest = manifest_;
  hello.transports = {fleet_.transport};
  hello.facts.host = absl::StrCat("host-", (session - 1) / 8);
  if (fleet_.transport == "nccl") {
    hello.facts.gpu_uuid = absl::StrCat("GPU-", session);
    hello.facts.nccl_version = "2.28.9";
  }
  hello.layout = IsSource(session) ? SourceLayout(fleet_) : ReceiverLayout(fleet_);
  if (IsSource(session)) {
    hello.destination_layout = ReceiverLayout(fleet_);
    hello.start = "trainer-0";
  }
  return hello;
}

// Only the calls into the control plane are timed: making hellos and reports is the members' work.
absl::Status FleetWorld::JoinAll() {
  for (SessionId session = 1; session <= fleet_.members(); ++session) {
    const Hello hello = MakeHello(session);
    const absl::Time begun = Clock::Real()->Now();
    plane_.OnHello(session, hello, now_);
    figures_.join_seconds += SecondsSince(begun);
    Run(&figures_.join_seconds);
  }
  int64_t alive = 0;
  for (const auto& [key, member] : plane_.membership().members()) alive += member.Reachable() ? 1 : 0;
  if (alive == fleet_.members()) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, "NOT_JOINED",
               absl::StrCat("of ", fleet_.members(), " members ", alive, " have joined"));
}

absl::Status FleetWorld::PublishOne() {
  counts_ = true;
  ControlPlane::Publication publication;  // rank 0 publishes for all ranks
  publication.member = GetMember(/*session=*/1);
  publication.version = kVersion;
  for (int64_t i = 0; i < plan_.digests(); ++i) publication.bucket_digests.push_back(Mix64(static_cast<uint64_t>(i)));
  publication.manifest_fingerprint = manifest_->fingerprint();
  const absl::Time begun = Clock::Real()->Now();
  SYNCOPATE_RETURN_IF_ERROR(plane_.OnPublish(publication, now_).status());
  figures_.publish_seconds += SecondsSince(begun);
  Run(&figures_.publish_seconds);
  return absl::OkStatus();
}

// Carries out actions and feeds their reports back until no member has anything more to report.
void FleetWorld::Run(double* seconds) {
  for (;;) {
    const absl::Time begun = Clock::Real()->Now();
    std::vector<synchronizer::Action> actions = plane_.TakeActions();
    *seconds += SecondsSince(begun);
    int64_t queued = 0;
    for (const synchronizer::Action& action : actions) {
      if (const auto* send = std::get_if<synchronizer::SendCommand>(&action)) {
        if (counts_) {
          const auto bytes = static_cast<int64_t>(wire::ToProto(send->command).ByteSizeLong());
          ++figures_.commands;
          figures_.command_bytes += bytes;
          figures_.largest_command_bytes = std::max(figures_.largest_command_bytes, bytes);
          queued += bytes;
        }
        Obey(send->session, send->command);
      } else if (const auto* ended = std::get_if<synchronizer::SyncEnded>(&action)) {
        if (ended->record.ok()) ++figures_.served;
      }
    }
    // All commands of one round are queued at once, each on its member's stream.
    figures_.queued_bytes = std::max(figures_.queued_bytes, queued);
    actions.clear();
    if (reports_.empty()) return;
    for (const auto& [session, report] : std::exchange(reports_, {})) {
      const absl::Time reported = Clock::Real()->Now();
      plane_.OnReport(session, report, now_);
      *seconds += SecondsSince(reported);
    }
  }
}

void FleetWorld::Obey(SessionId session, const Command& command) {
  if (const auto* prepare = std::get_if<synchronizer::Prepare>(&command)) {
    Report(session, SyncStage::kPrepare, prepare->attempt);
  } else if (const auto* transfer = std::get_if<synchronizer::Transfer>(&command)) {
    Report(session, SyncStage::kTransfer, transfer->attempt);
  } else if (const auto* install = std::get_if<synchronizer::Install>(&command)) {
    Report(session, SyncStage::kInstall, install->attempt);
  }
}

void FleetWorld::Report(SessionId session, SyncStage stage, int64_t attempt) {
  SyncReport report;
  report.attempt = attempt;
  report.stage = stage;
  if (stage == SyncStage::kPrepare) report.rendezvous = absl::StrCat("member-", session, ".fleet.example:50051");
  if (stage == SyncStage::kTransfer && !IsSource(session)) report.bytes = plan_.bytes() / fleet_.tensor_parallel;
  if (counts_) {
    ++figures_.reports;
    figures_.report_bytes += static_cast<int64_t>(wire::ToProto(report).ByteSizeLong());
  }
  reports_.emplace_back(session, std::move(report));
}

}  // namespace syncopate::bench
