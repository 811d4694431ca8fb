#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <variant>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "synchronizer/member/phase_events.h"
#include "synchronizer/member/sync_participant.h"
#include "synchronizer/messages.h"

namespace syncopate::member {

// Carries out the sync commands of the Join streams, which follow one another, on one thread, in order. Each command
// gets exactly one report, or none if its stream has ended. A source's Transfer is only started in that order: its
// report comes when it has ended. Thread-safe; only Stop blocks.
//
// Finish does not queue behind the commands, because it must end a transfer in progress. So it can overtake commands of
// its own attempt: such commands are not carried out, and a Prepare that was in progress is finished afterwards.
class CommandRunner {
 public:
  using Command = std::variant<synchronizer::Prepare, synchronizer::Transfer, synchronizer::Install>;
  // Sends a report on the stream that brought the command; does nothing after that stream has ended. Called without a
  // lock. May outlive the runner: a transfer that has not ended keeps it.
  using Reply = std::function<void(const synchronizer::SyncReport&)>;

  // All pointers are borrowed. Phases are recorded in `events` unless it is null (see PhaseEvents).
  explicit CommandRunner(SyncParticipant* participant, const Clock* clock = Clock::Real(),
                         EventRecorder* events = nullptr)
      : participant_(participant), clock_(clock), phases_(events, clock) {}

  // Call when a stream begins. Each Begin must be followed by its End before the next Begin.
  void Begin(Reply reply);
  // Queues a command of the present stream.
  void Run(Command command);
  void Finish(int64_t attempt);
  // Call when the stream has ended: all attempts are finished, queued commands are dropped.
  void End();

  // Stops the runner and joins the thread once the command in progress has returned. Idempotent.
  void Stop();

 private:
  struct Attempt {
    int commands = 0;  // queued or in progress; the entry is erased at 0
    bool finished = false;
  };
  // Shared with this stream's commands that are in progress.
  struct Stream {
    explicit Stream(Reply reply) : reply(std::move(reply)) {}
    void Add(int64_t attempt);
    void Finish(int64_t attempt);
    void End();
    // False if the attempt was finished or the stream has ended.
    bool Wants(int64_t attempt);
    // Counts one command less; false if the attempt was finished meanwhile.
    bool Done(int64_t attempt);

    const Reply reply;
    Mutex mutex;
    std::map<int64_t, Attempt> attempts ABSL_GUARDED_BY(mutex);
    bool ended ABSL_GUARDED_BY(mutex) = false;
  };

  void Execute(const std::shared_ptr<Stream>& stream, Command command, absl::Time arrived);
  // Calls `done` exactly once.
  void CarryOut(Command& command, absl::Time arrived, SyncParticipant::Done done);
  std::shared_ptr<Stream> Present();

  SyncParticipant* const participant_;
  const Clock* const clock_;
  PhaseEvents phases_;
  Mutex mutex_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);  // null between streams
  Worker thread_;                                           // last: its tasks use the other members
};

}  // namespace syncopate::member
