#pragma once

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "bench/process/event_sink.h"
#include "bench/sync/decode_loop.h"
#include "synchronizer/member/sync_participant.h"

namespace syncopate::bench {

// A participant that reports to the conductor when each stage begins, remembers when transfers ran, and signals itself
// at a stage if a strike was ordered. Thread-safe as SyncParticipant requires.
class WatchedParticipant final : public member::SyncParticipant {
 public:
  struct Strike {
    std::string stage;     // "prepare", "transfer" or "install": the next such stage
    int signal = 0;        // the signal that this process sends itself
    absl::Duration after;  // time from the beginning of the stage
  };

  // Both are borrowed.
  WatchedParticipant(member::SyncParticipant* inner, EventSink* sink) : inner_(inner), sink_(sink) {}

  void Arm(Strike strike);

  // Windows since the last Forget. Calm: from the end of one attempt to the beginning of the next.
  std::vector<DecodeLoop::Window> Transfers() const;
  std::vector<DecodeLoop::Window> Calm() const;
  void Forget();

  synchronizer::SyncReport Prepare(const synchronizer::Prepare& command) override;
  void Transfer(const synchronizer::Transfer& command, Done done) override;
  synchronizer::SyncReport Install(const synchronizer::Install& command) override;
  void WorkAfterReport() override { inner_->WorkAfterReport(); }
  void Finish(int64_t attempt) override;
  void FinishAll() override;

 private:
  bool Rehearses(int64_t attempt) const;
  // Reports that the stage begins, and strikes if that was ordered.
  void Enter(const std::string& stage, int64_t attempt);
  void EndAttempt();
  void NoteTransfer(absl::Time begin, const absl::Status& status);

  member::SyncParticipant* const inner_;
  EventSink* const sink_;
  mutable Mutex mutex_;
  int64_t rehearsal_ ABSL_GUARDED_BY(mutex_) = 0;  // the last one, about which nothing is reported
  std::optional<Strike> strike_ ABSL_GUARDED_BY(mutex_);
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;  // of the last prepared version
  std::optional<absl::Time> calm_since_ ABSL_GUARDED_BY(mutex_);
  std::vector<DecodeLoop::Window> transfers_ ABSL_GUARDED_BY(mutex_);
  std::vector<DecodeLoop::Window> calm_ ABSL_GUARDED_BY(mutex_);
  std::jthread striker_;  // used by the commands' thread; set once
};

}  // namespace syncopate::bench
