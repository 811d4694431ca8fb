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

// The ranks that send, and the layout and model that they send.
struct SourceGroup {
  int64_t epoch = 0;
  std::vector<SyncPeer> ranks;  // in rank order, all of one layout; empty while the group is not complete
  std::shared_ptr<const Manifest> manifest;
  std::string destination_layout = {};  // the receivers' layout for which the ranks stage, as in Hello

  std::string layout() const { return ranks.empty() ? "" : ranks.front().layout; }
};

// A replica whose ranks are all reachable.
struct ReceiverReplica {
  std::string replica_id;
  std::vector<SyncPeer> ranks;  // in rank order
  PolicyVersion serving;        // the oldest version that one of its ranks serves
  std::string held = {};        // why one of its ranks takes no version for now; "": all ranks take versions
  uint64_t base_digest = 0;     // names the base weights that all of its ranks have; 0: there are none
};

// Keeps every reachable replica at the newest version: starts sync attempts, ends them at their deadline, repeats
// failed ones. Sans-IO and deterministic.
//
// A new publication, a replica that becomes reachable or idle, and a back-off that runs out each start attempts with
// all replicas that are idle, behind and not backing off: one attempt for each transport and plan. If the version has
// adapters, the replicas that lack its base weights get an attempt of their own: the others do not wait for the base
// weights, and do not receive them if they form a group. So a replica takes part in one attempt at a time, a busy
// replica joins the next attempt when its own ends, and a publication aborts nothing. A replica that did not answer in
// time gets attempts of its own until one succeeds, so that it delays the other replicas only once, by at most
// `prepare_deadline`.
//
// Trigger() of a version with adapters also has every replica digest its weights again, in attempts of their own, whose
// Prepare may take longer: also replicas that serve the version, and those that are busy or held as soon as they are
// free. It is repeated like a sync until it succeeds; a replica whose weights have changed refuses with WEIGHTS_DAMAGED
// and ends.
//
// A failed replica is tried again with the newest version, after a back-off that doubles with each failure in a row up
// to a bound. There are three exceptions. First, a superseded replica waits for the newer version instead; if it is
// superseded again, it skips that version too and joins all others at the next publication, for which it waits as long
// as the last publication took to come. Second, a replica whose group was lost through another member is tried again at
// once. Third, a refusal that would be repeated for ever (another model, layout, dtype, plan, NCCL version, no common
// transport) is not retried: the replica is left alone until it or the sources change, another version is published, or
// Trigger() is called. A replica that takes no version for now (it sleeps) is left out until it reports that it takes
// versions again. That does not count as a failure. A replica that unexpectedly refuses a Prepare with HELD is asked
// again after `max_backoff` at the latest. Only versions of the present sources' epoch are sent: the bits of an older
// trainer are gone.
//
// Forming a group takes longer than a sync. So after members have joined or left, when no replica is behind and no
// attempt is under way, a rehearsal forms the group that the next sync would need. A sync that starts during the
// rehearsal does not wait for idle members. If the members have been told to connect, the rehearsal may go on for as
// long as forming a group took last, and a sync of the same members uses that group; otherwise the rehearsal ends. A
// failed rehearsal is not repeated: the next sync forms the group itself.
class SyncCoordinator {
 public:
  struct Options {
    std::string transport = "auto";
    absl::Duration min_deadline = absl::Seconds(10);          // an attempt may take max(this, 4 x the recent median)
    absl::Duration prepare_deadline = absl::Seconds(1);       // receivers that have not agreed by then are left out
    absl::Duration rehearse_after = absl::Milliseconds(250);  // no member may have joined or left for this long
    absl::Duration backoff = absl::Milliseconds(100);
    absl::Duration max_backoff = absl::Seconds(2);
    int64_t first_attempt = 1;  // above all of earlier incarnations, so that old reports match no attempt
    absl::Status Validate() const;
  };

  explicit SyncCoordinator(const Options& options)
      : options_(options), forming_(options.prepare_deadline), next_attempt_(options.first_attempt) {}

  // Replaces the sources. An attempt that uses a rank which is no longer among them ends with SOURCE_LOST.
  AttemptOutput SetSources(SourceGroup sources, absl::Time now);
  // Call when the replica becomes reachable, or its version, its ranks or `held` change.
  AttemptOutput SetReceiver(ReceiverReplica replica, absl::Time now);
  // Call when the replica is no longer reachable. Its part in an attempt ends with `reason`.
  AttemptOutput RemoveReceiver(const std::string& replica_id, const std::string& reason, const std::string& detail,
                               absl::Time now);
  // `version` becomes the newest one. `stage_seconds`: how long its staging took, added to the attempts that start
  // here.
  AttemptOutput Publish(const PublishedVersion& version, double stage_seconds, absl::Time now);
  AttemptOutput OnReport(const MemberId& from, const SyncReport& report, absl::Time now);
  // Forgets back-offs and refusals, and starts all possible attempts, with a check of all weights if there are
  // adapters.
  AttemptOutput Trigger(absl::Time now);

  AttemptOutput Tick(absl::Time now);
  // Call when the synchronizer did not read members' messages for this long. Moves the deadlines of attempts by as
  // much.
  void Postpone(absl::Duration by);
  absl::Time NextDeadline() const;  // InfiniteFuture if nothing is under way, backing off, or to be rehearsed

  // The number of reachable replicas that take versions and do not serve the newest one.
  int behind() const;
  int unchecked() const;  // the number of replicas that are to digest their weights again and have not done so yet
  int attempts_under_way() const;  // without rehearsals
  // The attempt, other than a rehearsal, that a replica takes part in; 0 if none.
  int64_t MakeAttempt(const std::string& replica_id) const;
  // Text for people: why a replica that is behind is left alone, and until when; "" if it is not left alone.
  std::string WhyLeftAlone(const std::string& replica_id) const;
  const std::map<int64_t, SyncAttempt>& attempts() const { return attempts_; }
  absl::Duration CurrentDeadline() const;

 private:
  static constexpr size_t kMedianOver = 64;  // number of durations of successful parts that are kept
  static constexpr size_t kKeptGroups = 2;   // groups that members keep, see nccl::GroupWorker::Options

  struct State {
    ReceiverReplica replica;
    int64_t attempt = 0;        // 0: idle
    uint64_t offered_base = 0;  // Subset::base_digest of the version of `attempt`
    int failures = 0;           // in a row
    int superseded = 0;         // in a row
    absl::Time not_before = absl::InfinitePast();
    bool wants_newer = false;  // its version is no longer staged: a publication ends the back-off
    bool laggard = false;      // did not answer in time: gets attempts of its own
    bool regroups = false;     // its group was lost: it aborts a communicator before it answers
    bool unchecked = false;    // a check of its weights was asked for and has not succeeded yet
    std::string refusal;       // reason of a refusal that would be repeated for ever; "" otherwise
  };

  bool IsBehind(const State& state) const;
  // Whether the newest version has base weights that the replica does not have.
  bool LacksBase(const State& state) const;
  bool CanSend() const;
  // Whether the replica is behind or unchecked, and neither refused nor held.
  bool WantsVersion(const State& state) const;
  // Starts all possible syncs, or else a rehearsal.
  AttemptOutput StartAttempts(double stage_seconds, absl::Time now);
  AttemptOutput StartSyncs(double stage_seconds, absl::Time now);
  AttemptOutput StartRehearsals(absl::Time now);
  bool Idle() const;
  AttemptOutput MakeRehearsalsGiveWay(absl::Time now);
  // How the replica can be served now. An error if it cannot.
  struct Route {
    TransportChoice transport;
    std::string destination_layout;
    uint64_t plan_hash = 0;
  };
  absl::StatusOr<Route> RouteTo(const ReceiverReplica& replica);
  // The fields that a sync and a rehearsal share.
  SyncAttempt::Spec SpecFor(const std::vector<std::string>& replica_ids, const Route& route, absl::Time now);
  struct Extras {
    bool sends_base = false;
    bool checks_weights = false;
    friend auto operator<=>(const Extras&, const Extras&) = default;
  };
  AttemptOutput StartSync(const std::vector<std::string>& replica_ids, const Route& route, const Extras& extras,
                          double stage_seconds, absl::Time now);
  AttemptOutput Rehearse(const std::vector<std::string>& replica_ids, const Route& route, absl::Time now);
  AttemptOutput Begin(SyncAttempt::Spec spec);
  void RememberGroup(const std::string& name);
  void ForgetRefusals();
  // Records what ended, erases finished attempts, and starts what has become possible.
  AttemptOutput ContinueAfter(AttemptOutput output, absl::Time now);
  void ForgetEnded(const AttemptOutput& output, absl::Time now);
  void RecordOutcome(const SyncRecord& record, absl::Time now);
  SyncRecord Refusal(const std::string& replica_id, const absl::Status& status) const;

  Options options_;
  SourceGroup sources_;
  std::optional<PublishedVersion> newest_;
  std::map<std::string, State> receivers_;
  std::map<int64_t, SyncAttempt> attempts_;
  std::optional<PlanCache> plans_;  // for the present sources' manifest
  std::deque<double> recent_seconds_;
  std::deque<std::string> groups_;  // groups that members keep, or failed to form in a rehearsal; the newest last
  absl::Duration forming_;          // how long forming a group took last
  absl::Time published_ = absl::InfinitePast();             // when the newest version was published
  absl::Duration publish_interval_ = absl::ZeroDuration();  // between the two newest publications
  absl::Time rehearse_at_ = absl::InfiniteFuture();  // earliest time; infinite if there is nothing new to rehearse
  int64_t next_attempt_;
};

}  // namespace syncopate::synchronizer
