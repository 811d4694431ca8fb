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

// A participant that tells the conductor of each stage as it begins, remembers when transfers ran, and falls dead at a
// stage if it was told to. Thread-safe as SyncParticipant asks.
class WatchedParticipant final : public member::SyncParticipant {
 public:
  struct Strike {
    std::string stage;     // "prepare", "transfer" or "install": the next one
    int signal = 0;        // that this process sends itself
    absl::Duration after;  // from the begin of the stage
  };

  // Both are borrowed.
  WatchedParticipant(member::SyncParticipant* inner, EventSink* sink) : inner_(inner), sink_(sink) {}

  void Arm(Strike strike);

  // Since the last Forget. Calm: from the end of one attempt to the begin of the next.
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
  // Says that the stage begins, and strikes if that was asked for.
  void Enter(const std::string& stage, int64_t attempt);
  void EndAttempt();
  void NoteTransfer(absl::Time begin, const absl::Status& status);

  member::SyncParticipant* const inner_;
  EventSink* const sink_;
  mutable Mutex mutex_;
  int64_t rehearsal_ ABSL_GUARDED_BY(mutex_) = 0;  // the last one: nothing is said of it
  std::optional<Strike> strike_ ABSL_GUARDED_BY(mutex_);
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;  // of the version that was prepared last
  std::optional<absl::Time> calm_since_ ABSL_GUARDED_BY(mutex_);
  std::vector<DecodeLoop::Window> transfers_ ABSL_GUARDED_BY(mutex_);
  std::vector<DecodeLoop::Window> calm_ ABSL_GUARDED_BY(mutex_);
  std::jthread striker_;  // of the commands' thread; set once
};

}  // namespace syncopate::bench
