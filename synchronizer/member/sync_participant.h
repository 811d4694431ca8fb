#pragma once

#include <cstdint>
#include <functional>

#include "synchronizer/messages.h"
#include "synchronizer/transport/weight_receiver.h"
#include "synchronizer/transport/weight_source.h"

namespace syncopate::member {

// A member's part in weight syncs: carries out the synchronizer's commands. Prepare, Transfer, Install and
// WorkAfterReport are called by one thread, in the order of the commands, and may block until their attempt's deadline.
// Finish and FinishAll may be called by any thread at any time, also during the other calls, which then return soon;
// they do not block.
class SyncParticipant {
 public:
  virtual ~SyncParticipant() = default;

  // Takes the report of a command. The caller fills in `attempt` and `stage`.
  using Done = std::function<void(synchronizer::SyncReport)>;

  virtual synchronizer::SyncReport Prepare(const synchronizer::Prepare& command) = 0;
  // `done` is called exactly once, by any thread, before or after this returns.
  virtual void Transfer(const synchronizer::Transfer& command, Done done) = 0;
  virtual synchronizer::SyncReport Install(const synchronizer::Install& command) = 0;
  // Called while the report of Install is on its way: does work that needs no answer.
  virtual void WorkAfterReport() {}

  // The attempt is over: releases its resources. Ignores unknown attempts.
  virtual void Finish(int64_t attempt) = 0;
  // Finishes all attempts: the stream to the synchronizer has ended, so no Finish will come.
  virtual void FinishAll() = 0;
};

// The result of an install in a rollouter.
struct InstalledVersion {
  PolicyVersion version;
  uint64_t digest = 0;
  double pause_seconds = 0;  // how long the install kept decode steps from running
  bool relabelled = false;   // the bits served before are those of this version: nothing was moved
};

// A rollouter's part. Refuses to be a source: FAILED_PRECONDITION reason NOT_A_SOURCE. Its Transfer blocks, except in a
// rehearsal, so that a sync does not queue behind a rehearsal.
class ReceiverParticipant final : public SyncParticipant {
 public:
  // Get successful results, for counting. Called on the commands' thread before their reports; must not block.
  struct Listeners {
    std::function<void(int64_t bytes, double seconds)> received;  // verified; seconds of the transfer alone
    std::function<void(const InstalledVersion&)> installed;
  };

  // `receiver` is borrowed.
  explicit ReceiverParticipant(synchronizer::WeightReceiver* receiver) : ReceiverParticipant(receiver, Listeners()) {}
  ReceiverParticipant(synchronizer::WeightReceiver* receiver, Listeners listeners)
      : receiver_(receiver), listeners_(std::move(listeners)) {}

  synchronizer::SyncReport Prepare(const synchronizer::Prepare& command) override;
  void Transfer(const synchronizer::Transfer& command, Done done) override;
  synchronizer::SyncReport Install(const synchronizer::Install& command) override;
  void WorkAfterReport() override { receiver_->WorkAfterReport(); }
  void Finish(int64_t attempt) override { receiver_->Finish(attempt); }
  void FinishAll() override { receiver_->FinishAny(); }

 private:
  synchronizer::WeightReceiver* const receiver_;
  const Listeners listeners_;
};

// A trainer rank's part. It only sends: a request to receive or to install is refused with FAILED_PRECONDITION reason
// NOT_A_RECEIVER. Its Transfer does not block, so commands for other attempts do not wait for a push.
class SourceParticipant final : public SyncParticipant {
 public:
  // `source` is borrowed.
  explicit SourceParticipant(synchronizer::WeightSource* source) : source_(source) {}

  synchronizer::SyncReport Prepare(const synchronizer::Prepare& command) override;
  void Transfer(const synchronizer::Transfer& command, Done done) override;
  synchronizer::SyncReport Install(const synchronizer::Install& command) override;
  void Finish(int64_t attempt) override { source_->Finish(attempt); }
  void FinishAll() override { source_->FinishAll(); }

 private:
  synchronizer::WeightSource* const source_;
};

}  // namespace syncopate::member
