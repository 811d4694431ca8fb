#pragma once

#include "services/member/sync_participant.h"
#include "services/telemetry/rollout_metrics.h"

namespace syncopate::rollouterd {

// A rollouter's part in weight syncs, with what it received and how long that took counted. Threads as of
// SyncParticipant.
class MeteredReceiver final : public member::SyncParticipant {
 public:
  // `receiver` and `clock` are borrowed; the registry must outlive this.
  MeteredReceiver(synchronizer::WeightReceiver* receiver, prometheus::Registry& registry,
                  const Clock* clock = Clock::Real())
      : receiver_(receiver), clock_(clock), metrics_(registry) {}

  synchronizer::SyncReport Prepare(const synchronizer::Prepare& command) override { return receiver_.Prepare(command); }
  // A transfer that failed is not counted: its bytes say nothing of the rate.
  void Transfer(const synchronizer::Transfer& command, Done done) override;
  synchronizer::SyncReport Install(const synchronizer::Install& command) override { return receiver_.Install(command); }
  void Settle() override { receiver_.Settle(); }
  void Finish(int64_t attempt) override { receiver_.Finish(attempt); }
  void FinishAll() override { receiver_.FinishAll(); }

 private:
  member::ReceiverParticipant receiver_;
  const Clock* const clock_;
  telemetry::ReceiveMetrics metrics_;
};

}  // namespace syncopate::rollouterd
