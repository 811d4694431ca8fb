#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/backoff.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "services/member/member_client.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/timer.h"
#include "synchronizer/member/command_runner.h"
#include "synchronizer/member/directory_feed.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::member {

// The implementation behind a MemberClient; it outlives the client for as long as gRPC may still call back. It has one
// Join stream after the other, and one timer for the next event that is due (a new try, a welcome that does not come, a
// heartbeat, the end of an evicted member's stream). Thread-safe.
class JoinLoop final : public std::enable_shared_from_this<JoinLoop> {
 public:
  // `options` must be valid; `participant` is borrowed until Stop has returned.
  JoinLoop(MemberClient::Options options, SyncParticipant* participant);

  // Opens a stream unless there is one or the member is leaving. Does not block.
  void Connect();
  // These four are documented in MemberClient.
  absl::StatusOr<synchronizer::Welcome> WaitForWelcome(absl::Duration deadline);
  void SetDirectoryListener(DirectoryFeed::Listener listener) { directory_.SetListener(std::move(listener)); }
  void Leave(const std::string& reason);
  void Stop(absl::Duration deadline);
  // Sends a heartbeat now and schedules the next one an interval later; does nothing if not joined.
  void SendHeartbeat();

 private:
  using Stream = rpc::ClientBidiStream<v1::JoinRequest, v1::JoinResponse>;

  void Open(const std::shared_ptr<Stream>& stream, const std::shared_ptr<grpc::Channel>& channel);
  void SendReport(const std::shared_ptr<Stream>& stream, const synchronizer::SyncReport& report);

  // Handle the synchronizer's messages, on gRPC threads.
  void OnMessage(const v1::JoinResponse& message);
  void Handle(const synchronizer::Welcome& welcome);
  void Handle(const synchronizer::Directory& directory) { directory_.Update(directory); }
  void Handle(synchronizer::Prepare& command) { commands_.Run(std::move(command)); }
  void Handle(synchronizer::Transfer& command) { commands_.Run(std::move(command)); }
  void Handle(synchronizer::Install& command) { commands_.Run(std::move(command)); }
  void Handle(const synchronizer::Finish& finish) { commands_.Finish(finish.attempt); }
  void Handle(const synchronizer::Evicted& evicted);

  void OnStreamDone(const absl::Status& status);
  // The meaning of a stream's end, as an error for the log and for waiters.
  absl::Status ExplainLocked(const absl::Status& status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the client for good.
  void Refuse(const absl::Status& status);
  void ReportToOwner(const absl::Status& status);

  // Calls `fire` after `delay`, unless the timer was set again or cancelled meanwhile.
  void SetTimerLocked(absl::Duration delay, void (JoinLoop::*fire)()) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelTimerLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsDue(int64_t timer);
  // Cancels the stream: a welcome, or the end of an evicted member's stream, does not come.
  void BreakOff();

  // True as soon as no gRPC callback of this object will run any more; false after `deadline`.
  bool AwaitQuiet(absl::Duration deadline);

  const MemberClient::Options options_;

  Mutex mutex_;
  synchronizer::Hello hello_ ABSL_GUARDED_BY(mutex_);       // the hello of the next stream
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);  // null between tries
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;           // on this stream
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status verdict_ ABSL_GUARDED_BY(mutex_);     // known before the stream ends, more exact than its status
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);  // of the last try; logged when it changes
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
  absl::Time alone_since_ ABSL_GUARDED_BY(mutex_);                        // while not welcomed
  std::optional<synchronizer::Welcome> welcome_ ABSL_GUARDED_BY(mutex_);  // the latest
  Backoff backoff_ ABSL_GUARDED_BY(mutex_);
  rpc::Timer timer_ ABSL_GUARDED_BY(mutex_);
  int64_t timers_ ABSL_GUARDED_BY(mutex_) = 0;   // counts sets and cancellations: the number of the present timer
  int64_t reports_ ABSL_GUARDED_BY(mutex_) = 0;  // reports sent so far
  int heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;   // heartbeats being made now

  // Last: the threads of these members use all others.
  Worker callbacks_;
  DirectoryFeed directory_{&callbacks_};
  CommandRunner commands_;
};

}  // namespace syncopate::member
