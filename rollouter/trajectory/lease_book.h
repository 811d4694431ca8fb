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
#include "rollouter/trajectory/answer_reports.h"

namespace syncopate::rollouter {

// The number of tokens generated for one lease so far; the engine's thread increments it.
using TokenCount = std::atomic<int64_t>;

// Decides which leases a rollouter holds, which of them made progress, and how many more it requests. A lease belongs
// to the stream that brought it: when the stream breaks, all of its leases are given up. A lease that was given up
// occupies capacity until its generation and scoring have ended. Sans-IO: events in, decisions out; no thread, lock or
// clock. Not thread-safe.
class LeaseBook {
 public:
  struct Options {
    int64_t max_groups = 16;         // the number of training groups in work at once
    int32_t samples_per_group = 16;  // the number of samples of one training group
    int64_t max_parked = 0;          // the most samples that wait for an environment and occupy no capacity
    absl::Status Validate() const;   // INVALID_ARGUMENT (reason BAD_OPTIONS) unless the first two are positive
  };

  explicit LeaseBook(const Options& options) : options_(options) {}

  // A new stream is being opened. Returns its number (from 1), which names it in the calls below. Events of older
  // streams are ignored.
  int64_t OnConnecting();
  // The trainer has answered on the current stream.
  void OnWelcome() { welcomed_ = true; }
  // The current stream is over. Returns the leases whose generation must be aborted.
  std::vector<LeaseId> OnDisconnected();

  // A lease has arrived on the current stream. OK: generate it. Otherwise return it to the trainer with this error:
  // UNAVAILABLE (reason DRAINING or ASLEEP), or ALREADY_EXISTS (reason LEASE_HELD) for a lease that is already being
  // generated or scored.
  // `reports`: what TakeParts() takes; null: nothing of this lease is reported. `open_calls`: the calls of environments
  // that its samples wait for; null: they wait for none.
  absl::Status OnLease(const Lease& lease, std::shared_ptr<const TokenCount> made,
                       std::shared_ptr<AnswerReports> reports = nullptr,
                       std::shared_ptr<const std::atomic<int64_t>> open_calls = nullptr);
  // The state of a lease when its work ended; it says what the caller reports.
  enum class Ended : uint8_t {
    kHeld,     // the lease is still held: send the result or the error to the trainer
    kRevoked,  // the trainer revoked the lease: return it, as the trainer waits to hear that its work has ended
    kGivenUp,  // the lease was given up: report nothing
  };
  // All samples of a lease are generated, and scoring begins. Returns false if the lease is no longer held; then end
  // it.
  bool OnScoring(int64_t stream, const LeaseId& lease);
  // Work on a lease has ended, with success or without. `submitted`: the result is a whole group, so the trainer
  // acknowledges it if the lease was still held.
  Ended OnEnded(int64_t stream, const LeaseId& lease, bool submitted);
  void OnAck(const LeaseId& lease) { unacknowledged_.erase(lease); }
  // Gives up every lease that is being generated or scored, while the stream stays open. Returns those leases: return
  // them to the trainer and abort their work.
  std::vector<LeaseId> GiveUp();
  // The trainer has revoked a lease. Returns true if its generation or scoring is in progress and must be aborted.
  bool OnRevoke(const LeaseId& lease);

  // The number of samples that wait for an environment now.
  void SetParked(int64_t samples) { parked_ = samples; }
  void SetDraining(bool draining) { draining_ = draining; }
  bool draining() const { return draining_; }
  void SetPaused(bool paused) { paused_ = paused; }
  // `asleep`: the engine has released its memory, or has had no weights since then.
  void SetAsleep(bool asleep) { asleep_ = asleep; }
  // `yielded`: the engine has given up its device for a turn of the trainer. Leases wait, and none is requested.
  void SetYielded(bool yielded) { yielded_ = yielded; }
  // `away`: a scorer is unavailable without which no group gets its reward. No work is requested until it is back.
  void SetScorerAway(bool away) { scorer_away_ = away; }
  bool scorer_away() const { return scorer_away_; }

  // Returns the leases that made progress since the last call. A lease made progress if it gained a token; or if it has
  // no token yet and `engine_tokens`, the number of tokens that the engine has processed in total, has grown; or if it
  // is being scored or waits for an environment, because each of these calls has a time limit of its own.
  std::vector<LeaseId> TakeProgress(int64_t engine_tokens);

  // Takes what the samples of the leases that are held have made since they were last taken; see AnswerReports::Take.
  std::vector<std::pair<LeaseId, AnswerPart>> TakeParts(int64_t least);

  // Returns the number of further training groups to request now: 0 while draining, paused, asleep,
  // yielded or without a scorer.
  // An evaluation lease counts by its number of samples. Parked samples do not count, up to max_parked.
  int32_t Credits() const;
  bool welcomed() const { return welcomed_; }
  int64_t stream() const { return stream_; }
  int64_t generating() const { return static_cast<int64_t>(generating_.size()); }
  // True if no lease is being generated or scored and every submission is acknowledged.
  bool idle() const { return generating_.empty() && unacknowledged_.empty(); }

 private:
  const Options options_;
  int64_t stream_ = 0;
  bool welcomed_ = false;
  bool draining_ = false;
  bool paused_ = false;
  bool asleep_ = false;
  bool yielded_ = false;
  bool scorer_away_ = false;
  int64_t samples_ = 0;  // the samples of all leases in `generating_` and `ending_`
  int64_t parked_ = 0;
  int64_t engine_tokens_ = 0;
  struct Held {
    int32_t samples = 0;
    std::shared_ptr<const TokenCount> made;
    std::shared_ptr<AnswerReports> reports;
    std::shared_ptr<const std::atomic<int64_t>> open_calls;
    int64_t reported = 0;  // the value of `made` at the last TakeProgress
    bool scoring = false;
  };
  std::map<LeaseId, Held> generating_;
  struct Ending {
    int32_t samples = 0;
    bool revoked = false;
  };
  std::map<std::pair<int64_t, LeaseId>, Ending> ending_;  // leases given up, by stream
  std::set<LeaseId> unacknowledged_;
};

}  // namespace syncopate::rollouter
