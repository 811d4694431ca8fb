#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/manifest.h"
#include "synchronizer/attempts/sync_attempt.h"
#include "synchronizer/attempts/transport_choice.h"
#include "synchronizer/messages.h"
#include "synchronizer/transport/plan_cache.h"

namespace syncopate::synchronizer {

// The ranks that send, and what they send.
struct SourceGroup {
  int64_t epoch = 0;
  std::vector<SyncPeer> ranks;  // in rank order, of one layout; empty while the group is not complete
  std::shared_ptr<const Manifest> manifest;
  std::string destination_layout = {};  // that they stage for, as in Hello

  std::string layout() const { return ranks.empty() ? "" : ranks.front().layout; }
};

// A replica all of whose ranks are reachable.
struct ReceiverReplica {
  std::string replica_id;
  std::vector<SyncPeer> ranks;  // in rank order
  PolicyVersion serving;        // the oldest of its ranks
  std::string held = {};        // why one of them takes no version for now; "": all do
};

// Keeps every reachable replica at the newest version: starts sync attempts, ends them by their deadline, repeats what
// failed. Sans-IO and deterministic.
//
// A new publication, a replica that has become reachable or idle, and a back-off that has run out each start attempts
// with all replicas that are idle, behind and not backing off, one attempt a transport. So a replica takes part in one
// attempt at a time, one that is busy joins the next attempt when it ends, and a publication aborts nothing. A replica
// that did not answer in time last time gets attempts of its own until one succeeds, so that it holds the others up
// once, for `prepare_deadline`, and no more.
//
// A failed replica is tried again with the version that is newest then, after a back-off that doubles with each failure
// in a row up to a bound. There are three exceptions. One that was superseded waits for the newer version instead; if
// that happens to it again, it lets that one pass too and goes with all others at the next publication, for which it
// waits as long as the last one took to come. One whose group was lost through another member is tried again at once.
// And a refusal that would be repeated for ever (another model, layout, dtype, plan, NCCL version, no common transport)
// is not: the replica is left alone until it or the sources change, or another version is published, or somebody
// triggers. One that takes no version for now (it sleeps) is left out until it says that it does again: nothing of that
// counts as failed, and whoever it surprises by refusing a Prepare with HELD asks again after `max_backoff` at the latest.
// Only versions of the epoch that the present sources work in are sent: an older trainer's bits are gone.
//
// Where the members of a sync form a group, that takes longer than the sync. So when members have come or gone, and
// then nobody is behind and nothing is under way, the group that the next sync would need is formed by a rehearsal. A
// sync that begins meanwhile does not wait for its members to be idle. If they have been told to connect, the rehearsal
// may go on for as long as forming a group took last, and a sync of the same members uses what it forms; otherwise it
// ends. A rehearsal that fails is not repeated: the next sync forms the group itself.
class SyncCoordinator {
 public:
  struct Options {
    std::string transport = "auto";
    absl::Duration min_deadline = absl::Seconds(10);          // an attempt may take max(this, 4 x the recent median)
    absl::Duration prepare_deadline = absl::Seconds(1);       // receivers that have not agreed by then are left behind
    absl::Duration rehearse_after = absl::Milliseconds(250);  // for so long nobody may have come or gone
    absl::Duration backoff = absl::Milliseconds(100);
    absl::Duration max_backoff = absl::Seconds(2);
    int64_t first_attempt = 1;  // above those of an earlier life, so that old reports are never mistaken for new ones
    absl::Status Validate() const;
  };

  explicit SyncCoordinator(const Options& options)
      : options_(options), forming_(options.prepare_deadline), next_attempt_(options.first_attempt) {}

  // Replaces the sources. Attempts that lean on ranks which are no longer among them end with SOURCE_LOST.
  AttemptOutput SetSources(SourceGroup sources, absl::Time now);
  // The replica is reachable, or serves another version than before, or has other ranks than before.
  AttemptOutput SetReceiver(ReceiverReplica replica, absl::Time now);
  // It is no longer reachable. Its part in an attempt ends with `reason`.
  AttemptOutput RemoveReceiver(const std::string& replica_id, const std::string& reason, const std::string& detail,
                               absl::Time now);
  // `version` is the newest one. `stage_seconds`: what staging it cost, counted to the attempt that starts here.
  AttemptOutput Publish(const PublishedVersion& version, double stage_seconds, absl::Time now);
  AttemptOutput OnReport(const MemberId& from, const SyncReport& report, absl::Time now);
  // Forgets back-offs and starts what can start.
  AttemptOutput Trigger(absl::Time now);

  AttemptOutput Tick(absl::Time now);
  // Members were not listened to for this long: what is under way has that much more time.
  void Postpone(absl::Duration by);
  absl::Time NextDeadline() const;  // InfiniteFuture if nothing is under way, backing off, or to be rehearsed

  // Reachable replicas that do not serve the newest version, and take one.
  int behind() const;
  int attempts_under_way() const;  // rehearsals not counted
  // The attempt, other than a rehearsal, that a replica takes part in; 0 if none.
  int64_t AttemptOf(const std::string& replica_id) const;
  // Why a replica that is behind is left alone, and until when, for people; "" if it is not.
  std::string WhyLeftAlone(const std::string& replica_id) const;
  const std::map<int64_t, SyncAttempt>& attempts() const { return attempts_; }
  absl::Duration CurrentDeadline() const;

 private:
  static constexpr size_t kMedianOver = 64;  // durations of successful parts
  static constexpr size_t kKeptGroups = 2;   // what members keep, see nccl::GroupWorker::Options

  struct State {
    ReceiverReplica replica;
    int64_t attempt = 0;  // 0: idle
    int failures = 0;     // in a row
    int superseded = 0;   // likewise
    absl::Time not_before = absl::InfinitePast();
    bool wants_newer = false;  // its version is no longer staged: a publication ends the back-off
    bool laggard = false;      // did not answer in time: gets attempts of its own
    bool regroups = false;     // its group was lost: it has a communicator to abort before it can answer
    std::string refusal;       // reason of a refusal that would be repeated for ever; "" otherwise
  };

  bool IsBehind(const State& state) const;
  bool CanSend() const;
  // Behind, and not left alone.
  bool WantsVersion(const State& state) const;
  // Starts what can start: syncs, or else a rehearsal.
  AttemptOutput StartAttempts(double stage_seconds, absl::Time now);
  AttemptOutput StartSyncs(double stage_seconds, absl::Time now);
  AttemptOutput StartRehearsals(absl::Time now);
  bool Idle() const;
  AttemptOutput MakeRehearsalsGiveWay(absl::Time now);
  // Whether and how the replica could be served now.
  struct Route {
    TransportChoice transport;
    std::string destination_layout;
    uint64_t plan_hash = 0;
  };
  absl::StatusOr<Route> RouteTo(const ReceiverReplica& replica);
  // What a sync and a rehearsal have in common.
  SyncAttempt::Spec SpecFor(const std::vector<std::string>& replica_ids, const Route& route, absl::Time now);
  AttemptOutput StartSync(const std::vector<std::string>& replica_ids, const Route& route, double stage_seconds,
                          absl::Time now);
  AttemptOutput Rehearse(const std::vector<std::string>& replica_ids, const Route& route, absl::Time now);
  AttemptOutput Begin(SyncAttempt::Spec spec);
  void RememberGroup(const std::string& name);
  void ForgetRefusals();
  // Takes note of what ended, forgets finished attempts, starts what became possible.
  AttemptOutput ContinueAfter(AttemptOutput output, absl::Time now);
  void ForgetEnded(const AttemptOutput& output, absl::Time now);
  void RecordOutcome(const SyncRecord& record, absl::Time now);
  SyncRecord Refusal(const std::string& replica_id, const absl::Status& status) const;

  Options options_;
  SourceGroup sources_;
  std::optional<PublishedVersion> newest_;
  std::map<std::string, State> receivers_;
  std::map<int64_t, SyncAttempt> attempts_;
  std::optional<PlanCache> plans_;  // of the present sources' manifest
  std::deque<double> recent_seconds_;
  std::deque<std::string> groups_;  // that members keep, or have failed to form in a rehearsal; the newest last
  absl::Duration forming_;          // how long it took last
  absl::Time published_ = absl::InfinitePast();             // the newest
  absl::Duration publish_interval_ = absl::ZeroDuration();  // between the newest and the one before
  absl::Time rehearse_at_ = absl::InfiniteFuture();         // not before; infinite if there is nothing new to rehearse
  int64_t next_attempt_;
};

}  // namespace syncopate::synchronizer
