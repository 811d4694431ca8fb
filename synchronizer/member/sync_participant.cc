#include "synchronizer/member/sync_participant.h"

#include <utility>

#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::member {
namespace {

using synchronizer::SyncReport;

SyncReport MakeReport(const absl::Status& status) {
  SyncReport report;
  report.status = status;
  return report;
}

SyncReport Rendezvous(absl::StatusOr<std::string> rendezvous) {
  SyncReport report = MakeReport(rendezvous.status());
  if (rendezvous.ok()) report.rendezvous = *std::move(rendezvous);
  return report;
}

// The synchronizer knows each member's role, so it never sends this. The refusal keeps an attempt from waiting until
// its deadline if it does.
SyncReport OnlySends() {
  return MakeReport(Error(absl::StatusCode::kFailedPrecondition, reason::kNotAReceiver,
                          "a trainer sends weights and receives none; join with the role rollouter to receive"));
}

}  // namespace

SyncReport ReceiverParticipant::Prepare(const synchronizer::Prepare& command) {
  if (command.source) {
    return MakeReport(Error(absl::StatusCode::kFailedPrecondition, reason::kNotASource,
                            "a rollouter receives weights and sends none; join with the role trainer to send"));
  }
  // A rehearsal has no version to compare with what serves: only the plan and the transport are checked.
  if (command.rehearsal) return Rendezvous(receiver_->PrepareRehearsal(command));
  absl::StatusOr<synchronizer::WeightReceiver::Prepared> prepared = receiver_->Prepare(command);
  if (!prepared.ok()) return MakeReport(prepared.status());
  SyncReport report;
  report.already_serves = prepared->already_serves;
  report.rendezvous = std::move(prepared->rendezvous);
  report.weights = prepared->weights;
  return report;
}

void ReceiverParticipant::Transfer(const synchronizer::Transfer& command, Done done) {
  // Forming a group takes longer than a sync, and a sync's commands need this thread, so Connect does not block it.
  if (receiver_->Rehearses(command.attempt)) {
    return receiver_->Connect(command, [done = std::move(done)](const absl::StatusOr<double>& seconds) {
      SyncReport report = MakeReport(seconds.status());
      report.connect_seconds = seconds.value_or(0.0);
      done(report);
    });
  }
  absl::StatusOr<synchronizer::WeightReceiver::Received> received = receiver_->Transfer(command);
  if (!received.ok()) return done(MakeReport(received.status()));
  // A failed transfer is not passed on: its bytes say nothing about the rate.
  const int64_t bytes = received->bytes.total();
  if (listeners_.received && bytes > 0) listeners_.received(bytes, received->transfer_seconds);
  SyncReport report;
  report.bytes = bytes;
  report.lora_bytes = received->bytes.lora;
  report.mapped_bytes = received->bytes.mapped;
  report.bytes_by_source = std::move(received->bytes_by_source);
  report.verify_seconds = received->verify_seconds;
  report.connect_seconds = received->connect_seconds;
  done(report);
}

SyncReport ReceiverParticipant::Install(const synchronizer::Install& command) {
  absl::StatusOr<synchronizer::WeightReceiver::Installed> installed = receiver_->Install(command);
  if (!installed.ok()) return MakeReport(installed.status());
  // Called before the report, so that the install is counted when the synchronizer announces it.
  if (listeners_.installed && !installed->unchanged) {
    listeners_.installed(
        {receiver_->serving(), receiver_->serving_digest(), installed->pause_seconds, installed->relabelled});
  }
  SyncReport report;
  report.pause_seconds = installed->pause_seconds;
  return report;
}

SyncReport SourceParticipant::Prepare(const synchronizer::Prepare& command) {
  if (!command.source) return OnlySends();
  SyncReport report = Rendezvous(source_->Prepare(command));
  if (report.status.ok() && !command.rehearsal) report.base_rendezvous = source_->base_rendezvous();
  return report;
}

void SourceParticipant::Transfer(const synchronizer::Transfer& command, Done done) {
  source_->Transfer(command, [done = std::move(done)](const absl::Status& status) { done(MakeReport(status)); });
}

SyncReport SourceParticipant::Install(const synchronizer::Install&) { return OnlySends(); }

}  // namespace syncopate::member
