#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// Tokens made of one lease so far; the engine's thread counts them.
using TokenCount = std::atomic<int64_t>;

// Which leases a rollouter holds, which of them come further, and how many more it asks for. Leases belong to the
// stream that brought them: when it breaks, all of them are given up. One that is given up takes room until its
// generation and the scoring of what was made have ended. Sans-IO: events in, decisions out; no thread, lock or clock.
class LeaseBook {
 public:
  struct Options {
    int64_t max_groups = 16;         // training groups to work on at once
    int32_t samples_per_group = 16;  // of a training group
    absl::Status Validate() const;   // INVALID_ARGUMENT (reason BAD_OPTIONS) unless both are positive
  };

  explicit LeaseBook(const Options& options) : options_(options) {}

  // A new stream is being opened; its number, from 1, names it below. What comes from older streams is ignored.
  int64_t OnConnecting();
  // The trainer has answered on the current stream.
  void OnWelcome() { welcomed_ = true; }
  // The current stream is over. Returns the leases whose generation must be aborted.
  std::vector<LeaseId> OnDisconnected();

  // A lease of the current stream. OK: generate it. Else hand it back with this error: UNAVAILABLE (reason DRAINING or
  // ASLEEP), or ALREADY_EXISTS (reason LEASE_HELD) for one that is held already.
  absl::Status OnLease(const Lease& lease, std::shared_ptr<const TokenCount> made);
  enum class Ended : uint8_t {
    kHeld,     // tell the trainer how
    kRevoked,  // hand it back: the trainer waits to hear that it has ended
    kGivenUp,  // nobody wants to know
  };
  // All of a lease is generated, and its rewards are being made. False if nobody wants them any more: end it.
  bool OnScoring(int64_t stream, const LeaseId& lease);
  // Work on a lease has ended, well or not: it is scored, or will not be. `submitted`: the result is a whole group, and
  // an acknowledgement will follow if it was still held.
  Ended OnEnded(int64_t stream, const LeaseId& lease, bool submitted);
  void OnAck(const LeaseId& lease) { unacknowledged_.erase(lease); }
  // Gives up what is generating or being scored, on the stream that stays. Returns those leases: hand them back and abort
  // them.
  std::vector<LeaseId> GiveUp();
  // True: its generation or scoring is under way and must be aborted.
  bool OnRevoke(const LeaseId& lease);

  void SetDraining(bool draining) { draining_ = draining; }
  bool draining() const { return draining_; }
  void SetPaused(bool paused) { paused_ = paused; }
  // The engine has given its memory back, or has no weights since.
  void SetAsleep(bool asleep) { asleep_ = asleep; }
  // Somebody is away without whom no group gets its reward: no work is asked for until then.
  void SetScorerAway(bool away) { scorer_away_ = away; }
  bool scorer_away() const { return scorer_away_; }

  // The leases that have come further since the last call: a token was made of it, or it has none yet and the engine
  // has worked on some token, of which it has now done `engine_tokens`, or it is being scored, whose calls have budgets
  // of their own.
  std::vector<LeaseId> TakeProgress(int64_t engine_tokens);

  // How many more training groups to ask for now; 0 while draining, paused, asleep or without a scorer. Evaluation
  // counts by its samples.
  int32_t Credits() const;
  bool welcomed() const { return welcomed_; }
  int64_t stream() const { return stream_; }
  int64_t generating() const { return static_cast<int64_t>(generating_.size()); }
  // Nothing is generated or scored and every submission has been answered.
  bool idle() const { return generating_.empty() && unacknowledged_.empty(); }

 private:
  const Options options_;
  int64_t stream_ = 0;
  bool welcomed_ = false;
  bool draining_ = false;
  bool paused_ = false;
  bool asleep_ = false;
  bool scorer_away_ = false;
  int64_t samples_ = 0;  // of all that is generating and ending
  int64_t engine_tokens_ = 0;
  struct Held {
    int32_t samples = 0;
    std::shared_ptr<const TokenCount> made;
    int64_t reported = 0;  // of them
    bool scoring = false;
  };
  std::map<LeaseId, Held> generating_;
  struct Ending {
    int32_t samples = 0;
    bool revoked = false;
  };
  std::map<std::pair<int64_t, LeaseId>, Ending> ending_;  // given up, by stream
  std::set<LeaseId> unacknowledged_;
};

}  // namespace syncopate::rollouter
