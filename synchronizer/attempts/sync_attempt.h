#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// Names the set of processes that take part in a sync, in their order: 16 hexadecimal digits, a hash over roles,
// places and incarnations. What a transport keeps from one attempt to the next (a communicator) it keeps by this name.
std::string GroupName(const std::vector<MemberId>& sources, const std::vector<MemberId>& receivers);

// What an event made of an attempt: commands to be sent in this order, and receivers whose part has ended.
struct AttemptOutput {
  std::vector<std::pair<MemberId, Command>> sends;
  std::vector<SyncRecord> ended;

  void Append(AttemptOutput other);
};

// One weight sync: one version, all source ranks, and the replicas that were idle when it began. Sans-IO.
//
// Prepare goes to everybody. A rank that holds the bits already skips Transfer. There is one barrier: Transfer goes to
// the sources and to all other replicas at once, when all of them have agreed, or when `prepare_by` has passed and the
// sources have agreed; a replica that has not answered by then ends with NOT_PREPARED. From there on each replica goes
// its own way: Install once all its ranks have verified, Finish. A replica that refuses, fails, disappears or runs out
// of time ends with the reason, tells its ranks to drop their shadow, and holds up nobody.
//
// Where the members form one group (Spec::group_transport) a member that fails or disappears during Transfer takes the
// communicator with it: the replicas that still transfer end with GROUP_LOST. A source that refuses, fails or
// disappears ends all replicas that still need bytes; those that have verified go on. But a source of a group whose
// version was superseded while it sent has sent to the end, and so do the others: ending them would cost the
// communicator. Their replicas end when they report, with SUPERSEDED if what they got is wrong; so what is wrong is
// judged when all sources have reported. When the last replica has ended, the sources are told to unpin the version.
//
// A rehearsal (Spec::rehearsal) goes the same way as far as Transfer, by which its members form what a sync between
// them would need; no version is touched. It is for all of them or for none: it ends for all replicas at once, with
// "connected" when everybody has reported, sources too, or with "not_connected" as soon as anybody refuses, fails,
// disappears, or has not agreed by `prepare_by`.
class SyncAttempt {
 public:
  struct Receiver {
    std::string replica_id;
    std::vector<MemberId> ranks;  // in rank order
  };
  struct Spec {
    int64_t id = 0;
    bool rehearsal = false;
    PublishedVersion version;  // none in a rehearsal
    uint64_t manifest_fingerprint = 0;
    uint64_t plan_hash = 0;
    std::string source_layout;
    std::string destination_layout;
    std::string transport;
    std::string transport_reason;
    bool group_transport = false;
    bool receivers_meet = false;    // else each is told of itself alone: with many receivers, that is much less to say
    double stage_seconds = 0;       // 0.0 unless this attempt follows the staging at once
    std::vector<MemberId> sources;  // in rank order
    std::vector<Receiver> receivers;  // by replica_id
    absl::Time begun;
    absl::Time prepare_by;
    absl::Time deadline;
  };

  explicit SyncAttempt(Spec spec);

  // Prepare to everybody. Call once, first.
  AttemptOutput Begin();
  // Reports that do not answer the newest command to that member are ignored.
  AttemptOutput OnReport(const MemberId& from, const SyncReport& report, absl::Time now);
  // The replica cannot go on, e.g. one of its ranks is gone.
  AttemptOutput EndReceiver(const std::string& replica_id, const std::string& reason, const std::string& detail,
                            absl::Time now);
  // The sources cannot go on.
  AttemptOutput EndSources(const std::string& reason, const std::string& detail, absl::Time now);
  // Call when NextDeadline() has come: the barrier opens for those who are there, or every part that is still under
  // way ends with reason DEADLINE.
  AttemptOutput Tick(absl::Time now);
  absl::Time NextDeadline() const;
  // Members were not listened to for this long: they have that much more time.
  void Postpone(absl::Duration by);
  // A sync needs members of this rehearsal: it ends now if nobody has been told to connect yet, otherwise at `until` at
  // the latest.
  AttemptOutput GiveWay(absl::Time until, absl::Time now);

  // GroupName of those who were told to transfer; "" if nobody was.
  const std::string& group() const { return group_; }
  bool done() const { return open_parts_ == 0; }
  const Spec& spec() const { return spec_; }

 private:
  // kWrong: what it received is, and not all sources have said that they sent it whole.
  enum class RankState : uint8_t { kPreparing, kPrepared, kTransferring, kWrong, kVerified, kInstalling, kInstalled };

  struct Rank {
    MemberId id;
    RankState state = RankState::kPreparing;
    bool held = false;
    bool needs_base = true;
    std::string rendezvous;
  };

  struct Part {
    Receiver receiver;
    std::vector<Rank> ranks;
    bool ended = false;
    absl::Time transfer_sent = absl::InfiniteFuture();
    absl::Time install_sent = absl::InfiniteFuture();
    double connect_seconds = 0;  // the slowest rank's
    double verify_seconds = 0;   // likewise
    double pause_seconds = 0;    // likewise
    PayloadBytes bytes;
    std::string wrong_reason;  // of the first rank that is kWrong
    std::string wrong_detail;
  };

  enum class SourceState : uint8_t { kPreparing, kReady, kTransferring, kSent };
  struct Source {
    MemberId id;
    SourceState state = SourceState::kPreparing;
    std::string rendezvous;
  };

  bool SourcesReady() const;
  static bool AllAt(const Part& part, RankState state);
  static bool AnyAt(const Part& part, RankState state);
  bool NeedsBytes(const Part& part) const;
  AttemptOutput HandleSourceReport(Source& source, const SyncReport& report, absl::Time now);
  AttemptOutput HandleRankReport(Part& part, Rank& rank, const SyncReport& report, absl::Time now);
  AttemptOutput RecordSent(Source& source, const std::string& superseded, absl::Time now);
  AttemptOutput JudgeWrongParts(absl::Time now);
  static void RecordReport(Part& part, Rank& rank, const SyncReport& report);
  AttemptOutput Advance(Part& part, absl::Time now);
  AttemptOutput EndIfAllConnected(absl::Time now);
  AttemptOutput EndAll(const std::string& result, const std::string& detail, absl::Time now);
  AttemptOutput FailRehearsal(const std::string& reason, const std::string& detail, absl::Time now);
  AttemptOutput OpenBarrierIfComplete(absl::Time now);
  AttemptOutput SendTransfers(absl::Time now);
  bool AnyPreparedNeedsBase() const;
  AttemptOutput SendInstalls(Part& part, absl::Time now);
  // Ends the part, and the group with it if the part broke the group.
  AttemptOutput Fail(Part& part, const std::string& result, const std::string& detail, absl::Time now);
  AttemptOutput End(Part& part, const std::string& result, const std::string& detail, absl::Time now);
  SyncRecord MakeRecord(const Part& part, absl::Time now) const;

  Spec spec_;
  std::vector<Source> sources_;
  std::map<std::string, Part> parts_;  // by replica
  int open_parts_ = 0;
  bool barrier_open_ = false;
  std::string superseded_;  // what the source said whose version was, while its group received
  std::string group_;
};

}  // namespace syncopate::synchronizer
