#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/event_recorder.h"
#include "base/identity.h"
#include "services/auth/transport_security.h"
#include "synchronizer/member/sync_participant.h"
#include "synchronizer/messages.h"

namespace syncopate::member {

class JoinLoop;

// A member's end of SynchronizerService.Join, for the trainer and rollouter daemons: joins, sends heartbeats, carries
// out sync commands and passes on the directory of the other members.
//
//   WeightReceiver receiver(...);
//   ReceiverParticipant participant(&receiver);
//   SYNCOPATE_ASSIGN_OR_RETURN(auto member, MemberClient::Start({.synchronizer_address = ..., .hello = ...,
//                                                                .serving = ..., .on_refused = ...}, &participant));
//   SYNCOPATE_ASSIGN_OR_RETURN(synchronizer::Welcome welcome, member->WaitForWelcome(absl::Seconds(30)));
//   member->SetDirectoryListener([&](const synchronizer::Directory& directory) { work.SetTrainer(...); });
//   ...
//   member->Stop(absl::Seconds(2));
//
// A stream that breaks is opened again after a jittered backoff, for ever. The client ends by itself only if it is
// refused for good: INVALID_ARGUMENT or FAILED_PRECONDITION (BAD_MEMBER, MODEL_MISMATCH, WRONG_RUN, FENCED, REPLACED,
// EVICTED), at a join or later; or if the synchronizer is lost for good (UNAVAILABLE reason SYNCHRONIZER_LOST). A
// participant that reports a stuck device (ABORT_STUCK, COPY_STUCK) can take part in nothing any more: on_refused is
// called for that too, while the membership goes on.
//
// Threads: two of its own, one for commands and one for callbacks; gRPC's threads are never blocked. Thread-safe. Leave
// and Stop must not be called from the callbacks or from the participant.
class MemberClient {
 public:
  // What this member serves, for hello and heartbeats.
  struct Serving {
    PolicyVersion version;  // none: it serves nothing yet
    uint64_t digest = 0;
    std::string held = {};     // why it accepts no version for now; "": it does
    uint64_t base_digest = 0;  // names the base weights that it has; 0: none
  };

  struct Options {
    std::string synchronizer_address;                                   // host:port
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext
    // The identity of this member. The client fills in `serving` and `serving_digest` from the callback below. After a
    // welcome, every later hello of this client has the synchronizer's `run_id` and, for a trainer, its epoch as
    // `held_epoch`.
    synchronizer::Hello hello;
    MemberSecret secret;  // the secret of hello.member's incarnation
    // Called at each hello and heartbeat, by any thread, from before Start returns until Stop does: must be thread-safe
    // and quick. Null: the member serves nothing, as a trainer.
    std::function<Serving()> serving = nullptr;
    // Called when the client has ended because it was refused for good, or when a device is stuck: the process should
    // exit with this error. Runs on the callbacks' thread; the first call has the reason.
    std::function<void(const absl::Status&)> on_refused = nullptr;
    // Records the phases of syncs (phase_events.h). Borrowed, also by transfers that end after the client; null:
    // nothing is recorded.
    EventRecorder* events = nullptr;
    // The wait between tries, before a random factor in [0.5, 1). A restarted synchronizer wants all members back well
    // within 5 s.
    absl::Duration min_backoff = absl::Milliseconds(50);
    absl::Duration max_backoff = absl::Seconds(1);
    absl::Duration welcome_timeout = absl::Seconds(5);  // connected, but not welcomed for so long: try again
    // Without a welcome for this long the client ends as if refused, with reason SYNCHRONIZER_LOST.
    absl::Duration lost_after = absl::InfiniteDuration();

    // INVALID_ARGUMENT reason BAD_OPTIONS or BAD_ADDRESS.
    absl::Status Validate() const;
  };

  // Starts to join in the background, whether or not the synchronizer listens yet. `participant` is borrowed and used
  // until Stop has returned.
  static absl::StatusOr<std::unique_ptr<MemberClient>> Start(Options options, SyncParticipant* participant);
  ~MemberClient();  // calls Stop with no grace
  MemberClient(const MemberClient&) = delete;
  MemberClient& operator=(const MemberClient&) = delete;

  // Blocks until the synchronizer has welcomed this member, now or before, and returns its latest welcome. Returns the
  // refusal if there was one; UNAVAILABLE reason NOT_JOINED after `deadline`, with what is wrong (the tries go on);
  // CANCELLED after Leave or Stop.
  absl::StatusOr<synchronizer::Welcome> WaitForWelcome(absl::Duration deadline);

  // Calls `listener` with the latest directory, as soon as there is one, and again after each change; a directory that
  // was replaced while the listener was busy is skipped. Runs on the callbacks' thread. Replaces the previous listener.
  void SetDirectoryListener(std::function<void(const synchronizer::Directory&)> listener);

  // Returns a function that sends a heartbeat at once, for a change of `serving` that the synchronizer should know
  // before the next heartbeat. The function does nothing while not joined, or after the client's end. Does not block;
  // thread-safe.
  std::function<void()> Announcer();

  // Tells the synchronizer `reason` and does not join again; commands under way are ended as by a broken stream.
  // Idempotent: the first reason counts. Does not block.
  void Leave(const std::string& reason);

  // Leaves, gives the stream `deadline` to end before it is cancelled, and joins the threads; so it also waits for the
  // command and the callback that are running. Idempotent. No callback and no use of the participant afterwards.
  void Stop(absl::Duration deadline);

 private:
  explicit MemberClient(std::shared_ptr<JoinLoop> loop);

  const std::shared_ptr<JoinLoop> loop_;  // shared with running calls and timers
};

}  // namespace syncopate::member
