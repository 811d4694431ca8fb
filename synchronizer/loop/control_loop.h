#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/mutex.h"
#include "base/status.h"
#include "synchronizer/loop/control_plane.h"
#include "synchronizer/loop/posted_events.h"
#include "synchronizer/loop/state_log.h"

namespace syncopate::synchronizer {

// The synchronizer's one loop: a thread that feeds events to the ControlPlane and carries out its actions, in order.
// It waits for the next event or the plane's next deadline, and for nothing else but the disk. Thread-safe.
//
// A full disk holds the loop up: the record that has no room is tried again each kDiskRetry, and all that follows from it
// waits, in order. Meanwhile calls are answered UNAVAILABLE, reason NO_SPACE, and of what members send is kept what
// PostedEvents says. Once there is room the deadlines of all members begin anew. Every other error of the disk ends it.
class ControlLoop {
 public:
  // Where one member's commands go. Called on the loop's thread; must not block.
  class Session {
   public:
    virtual ~Session() = default;
    virtual void Send(const Command& command) = 0;
    virtual void Close(const absl::Status& status) = 0;  // after what was sent
  };

  // Hears what happened, on the loop's thread; must not block.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void RecordSync(const SyncRecord& record) = 0;
    // At the start, and after each event that changed who is there, which version is the newest or that the run goes
    // on.
    virtual void RecordState(const ControlPlane& plane) = 0;
    // The state cannot be written: the loop has stopped, the process should end.
    virtual void RecordFailure(const absl::Status& status) = 0;
  };

  struct Options {
    ControlPlane::Options plane;
    std::string state_dir;  // StateLog's folder
    StateCodec codec;       // its
    FileSystem* files = FileSystem::Real();
    const Clock* clock = Clock::Real();
    // Called on the loop's thread whenever it comes round, at least every kLongestWait; must not block. Null: nobody
    // wants to know.
    std::function<void()> on_round = nullptr;
    absl::Duration disk_retry = kDiskRetry;
  };
  static constexpr absl::Duration kLongestWait = absl::Seconds(1);
  static constexpr absl::Duration kDiskRetry = absl::Seconds(1);

  // Reads the state and starts the thread. `observer` is borrowed until Stop. Errors of StateLog::Open and
  // ControlPlane::Restore.
  static absl::StatusOr<std::unique_ptr<ControlLoop>> Start(const Options& options, Observer* observer);
  ~ControlLoop();  // Stop

  using Event = PostedEvents::Event;
  using Kind = PostedEvents::Kind;

  // Runs `event` on the loop's thread; then does what the plane wants done because of it, durably; then calls `then`
  // with OK. Once the loop has stopped or failed `event` is not run and `then` gets UNAVAILABLE, at once and from the
  // calling thread; so does the `then` of a call while the disk is full (NO_SPACE). Does not block.
  void Post(Event event, PostedEvents::Answer then = nullptr);

  // What a stream has sent; nobody waits for an answer. A heartbeat, which comes a thousand times a second, is in no
  // haste: several are handled in one go, at most kGather later, or as soon as something else is posted. The order of
  // all that is posted is kept.
  void PostFrom(SessionId session, Kind kind, Event event);

  // Names a stream. Its events are posted by its owner; commands for it go to `session`.
  SessionId Open(std::shared_ptr<Session> session);
  // The stream has ended, whoever ended it. Its session is released.
  void Closed(SessionId session);

  // Closes every session with `status`, so that members reconnect elsewhere or later.
  void CloseAll(const absl::Status& status);

  // Of the whole run, over all lives. For events and the observer, on the loop's thread.
  const SyncTally& syncs() const { return syncs_; }

  // Ends the thread after what was posted before; while the disk is full, without it. Idempotent.
  void Stop();

 private:
  static constexpr absl::Duration kGather = absl::Milliseconds(20);

  using Posted = PostedEvents::Posted;

  ControlLoop(const Options& options, Observer* observer, ControlPlane plane, StateLog::Opened opened);
  void Run();
  // What was posted, at once if there is something, else when the plane's next deadline has come; nullopt at the end.
  std::optional<std::list<Posted>> NextBatch();
  absl::Status Handle();
  static void Drop(std::list<Posted> dropped);
  absl::Status CarryOut();
  absl::Status Write(const LedgerRecord& record);
  // Tries until there is room. CANCELLED if the loop is to stop before.
  absl::Status WriteOnceThereIsRoom(const LedgerRecord& record, const absl::Status& full);
  void HoldUp(const absl::Status& full);
  void WriteEndedSyncs();
  std::shared_ptr<Session> FindSession(SessionId session);

  const Options options_;
  Observer* const observer_;
  // Of the thread alone.
  ControlPlane plane_;
  std::unique_ptr<StateLog> log_;
  SyncTally syncs_;
  SyncTally ended_;          // of those, what is not in the log yet
  std::list<Posted> batch_;  // taken from posted_ and not handled

  Mutex mutex_;
  PostedEvents posted_ ABSL_GUARDED_BY(mutex_);
  absl::Status held_up_ ABSL_GUARDED_BY(mutex_);  // what calls are answered while the disk is full; OK: it is not
  bool hurry_ ABSL_GUARDED_BY(mutex_) = false;    // there is more in posted_ than what can wait
  std::map<SessionId, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);
  SessionId next_session_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;  // makes concurrent Stops join once
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace syncopate::synchronizer
