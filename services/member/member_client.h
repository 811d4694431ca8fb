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
// out sync commands and passes on where the others are.
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
// A stream that breaks is opened again after a jittered backoff, for ever. Ends by itself only if it is refused for
// good: INVALID_ARGUMENT or FAILED_PRECONDITION (BAD_MEMBER, MODEL_MISMATCH, WRONG_RUN, FENCED, REPLACED, EVICTED),
// at a join or later; or if the synchronizer is lost for good (UNAVAILABLE reason SYNCHRONIZER_LOST). A participant
// that reports a device that is stuck (ABORT_STUCK, COPY_STUCK) can take part in nothing any more: on_refused hears of
// that too, while the membership goes on.
//
// Threads: two of its own, for commands and for the callbacks; nothing blocks gRPC's. Thread-safe. Leave and Stop must
// not be called from the callbacks or from the participant.
class MemberClient {
 public:
  // What this member serves, for hello and heartbeats.
  struct Serving {
    PolicyVersion version;  // none: nothing yet
    uint64_t digest = 0;
    std::string held = {};  // why it takes no version for now; "": it does
  };

  struct Options {
    std::string synchronizer_address;                                   // host:port
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext
    // Who we are. `serving` and `serving_digest` come from the callback below. Once welcomed, `run_id` and for
    // trainers `held_epoch` are what the synchronizer said, in every later hello of this client.
    synchronizer::Hello hello;
    MemberSecret secret;  // of hello.member's incarnation
    // Called at each hello and heartbeat, by any thread, from before Start returns until Stop does: thread-safe and
    // quick. Null: serves nothing, as trainers.
    std::function<Serving()> serving = nullptr;
    // Called when the client has ended because it was refused for good, or when a device is stuck: the process should
    // exit with this error. From the callbacks' thread; the first call says why.
    std::function<void(const absl::Status&)> on_refused = nullptr;
    // Where the phases of syncs are recorded (phase_events.h). Borrowed, also by transfers that have not ended
    // when the client has; null: nowhere.
    EventRecorder* events = nullptr;
    // Between tries; halved at random at most. A restarted synchronizer wants everybody back well within 5 s.
    absl::Duration min_backoff = absl::Milliseconds(50);
    absl::Duration max_backoff = absl::Seconds(1);
    absl::Duration welcome_timeout = absl::Seconds(5);  // connected, but not welcomed for this long: try again
    // Not welcomed by anybody for this long: the client ends as if refused, reason SYNCHRONIZER_LOST.
    absl::Duration lost_after = absl::InfiniteDuration();

    // INVALID_ARGUMENT reason BAD_OPTIONS, or BAD_ADDRESS.
    absl::Status Validate() const;
  };

  // Starts to join in the background, whether or not anybody listens. `participant` is borrowed and used until Stop
  // has returned.
  static absl::StatusOr<std::unique_ptr<MemberClient>> Start(Options options, SyncParticipant* participant);
  ~MemberClient();  // Stop with no grace
  MemberClient(const MemberClient&) = delete;
  MemberClient& operator=(const MemberClient&) = delete;

  // Blocks until the synchronizer has welcomed this member, now or before, and returns its latest welcome. The refusal
  // if there was one; UNAVAILABLE reason NOT_JOINED after `deadline`, saying what is wrong (the tries go on);
  // CANCELLED after Leave or Stop.
  absl::StatusOr<synchronizer::Welcome> WaitForWelcome(absl::Duration deadline);

  // Calls `listener` with the latest directory, as soon as there is one, and again after each change; one that was
  // overtaken while the listener was busy is skipped. From the callbacks' thread. Replaces the listener before.
  void SetDirectoryListener(std::function<void(const synchronizer::Directory&)> listener);

  // A function that sends a heartbeat at once, for when what `serving` says has changed in a way that the synchronizer
  // should not learn a heartbeat later. Does nothing while not joined, or after the client's end. Does not block;
  // thread-safe.
  std::function<void()> Announcer();

  // Says farewell with `reason` and does not come back; commands under way are ended as by a broken stream.
  // Idempotent: the first reason counts. Does not block.
  void Leave(const std::string& reason);

  // Leaves, gives the stream `deadline` to end before it is broken off, and joins the threads; so it also waits for
  // the command and the callback that run. Idempotent. No callback and no use of the participant after it.
  void Stop(absl::Duration deadline);

 private:
  explicit MemberClient(std::shared_ptr<JoinLoop> loop);

  const std::shared_ptr<JoinLoop> loop_;  // shared with the calls and timers under way
};

}  // namespace syncopate::member
