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
// The thread waits for the next event or the plane's next deadline, and otherwise only for the disk. Thread-safe.
//
// A full disk stops the loop: the record that does not fit is tried again every Options::disk_retry, and everything
// after it waits, in order. Meanwhile calls are answered UNAVAILABLE, reason NO_SPACE, and PostedEvents says which
// messages of members are kept. Once there is room, the deadlines of all members begin anew. Any other error of the
// disk ends the loop.
class ControlLoop {
 public:
  // Receives one member's commands. Called on the loop's thread; must not block.
  class Session {
   public:
    virtual ~Session() = default;
    virtual void Send(const Command& command) = 0;
    virtual void Close(const absl::Status& status) = 0;  // after everything that was sent
  };

  // Is informed of what happened, on the loop's thread; must not block.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void RecordSync(const SyncRecord& record) = 0;
    // Called at the start, and after each event that changed the members, the newest version, or whether the run is
    // complete.
    virtual void RecordState(const ControlPlane& plane) = 0;
    // The state cannot be written: the loop has stopped, and the process should end.
    virtual void RecordFailure(const absl::Status& status) = 0;
  };

  struct Options {
    ControlPlane::Options plane;
    std::string state_dir;  // StateLog's folder
    StateCodec codec;       // StateLog's codec
    FileSystem* files = FileSystem::Real();
    const Clock* clock = Clock::Real();
    // Called on the loop's thread in each iteration, at least every kLongestWait; must not block. May be null.
    std::function<void()> on_round = nullptr;
    absl::Duration disk_retry = kDiskRetry;
  };
  static constexpr absl::Duration kLongestWait = absl::Seconds(1);
  static constexpr absl::Duration kDiskRetry = absl::Seconds(1);

  // Reads the state and starts the thread. `observer` is borrowed until Stop. Errors of StateLog::Open and
  // ControlPlane::Restore.
  static absl::StatusOr<std::unique_ptr<ControlLoop>> Start(const Options& options, Observer* observer);
  ~ControlLoop();  // calls Stop

  using Event = PostedEvents::Event;
  using Kind = PostedEvents::Kind;

  // Runs `event` on the loop's thread, carries out the plane's resulting actions, durably, then calls `then` with OK.
  // If the loop has stopped or failed, `event` is not run, and `then` gets UNAVAILABLE at once on the calling thread.
  // While the disk is full, the `then` of a call also gets UNAVAILABLE at once (reason NO_SPACE). Does not block.
  void Post(Event event, const PostedEvents::Answer& then = nullptr);

  // Posts a message of a stream; it has no answer. A heartbeat (about a thousand arrive each second) is not urgent:
  // several are handled together, at most kGather later, or as soon as another event is posted. The order of all posted
  // events is kept.
  void PostFrom(SessionId session, Kind kind, Event event);

  // Allocates a stream's id. The stream's owner posts its events; commands for it go to `session`.
  SessionId Open(std::shared_ptr<Session> session);
  // Call when the stream has ended, from either side. Its session is released.
  void Closed(SessionId session);

  // Closes every session with `status`, so that members reconnect elsewhere or later.
  void CloseAll(const absl::Status& status);

  // Counts over the whole run, including earlier incarnations. For events and the observer, on the loop's thread.
  const SyncTally& syncs() const { return syncs_; }

  // Ends the thread after it has handled all posted events; while the disk is full, without handling them. Idempotent.
  void Stop();

 private:
  static constexpr absl::Duration kGather = absl::Milliseconds(20);

  using Posted = PostedEvents::Posted;

  ControlLoop(const Options& options, Observer* observer, ControlPlane plane, StateLog::Opened opened);
  void Run();
  // The posted events: at once if there are any, else when the plane's next deadline has come; nullopt at the end.
  std::optional<std::list<Posted>> NextBatch();
  absl::Status Handle();
  static void Drop(const std::list<Posted>& dropped);
  absl::Status CarryOut();
  absl::Status Write(const LedgerRecord& record);
  // Retries until there is room. CANCELLED if Stop is called first.
  absl::Status WriteOnceThereIsRoom(const LedgerRecord& record, const absl::Status& full);
  void Block(const absl::Status& full);
  void WriteEndedSyncs();
  std::shared_ptr<Session> FindSession(SessionId session);

  const Options options_;
  Observer* const observer_;
  // Used by the thread only.
  ControlPlane plane_;
  std::unique_ptr<StateLog> log_;
  SyncTally syncs_;
  SyncTally ended_;          // the part of syncs_ that is not in the log yet
  std::list<Posted> batch_;  // taken from posted_ and not handled yet

  Mutex mutex_;
  PostedEvents posted_ ABSL_GUARDED_BY(mutex_);
  absl::Status blocked_ ABSL_GUARDED_BY(mutex_);  // the answer to calls while the disk is full; OK: it is not full
  bool hurry_ ABSL_GUARDED_BY(mutex_) = false;    // posted_ has events that must not wait for kGather
  std::map<SessionId, std::shared_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);
  SessionId next_session_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;  // lets concurrent Stops join once
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace syncopate::synchronizer
