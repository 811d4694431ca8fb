#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// Names the ordered set of processes that take part in a sync: 16 hexadecimal digits, a hash over roles, replica ids,
// ranks and incarnations. A transport that keeps a communicator from one attempt to the next stores it under this name.
std::string GroupName(const std::vector<MemberId>& sources, const std::vector<MemberId>& receivers);

// The result of one event: commands to send in this order, and the records of receivers whose part has ended.
struct AttemptOutput {
  std::vector<std::pair<MemberId, Command>> sends;
  std::vector<SyncRecord> ended;

  void Append(AttemptOutput other);
};

// One weight sync: one version, all source ranks, and the replicas that were idle when it began. Sans-IO.
//
// Prepare goes to all members. A rank that already has the bits skips Transfer. There is one barrier: Transfer goes to
// the sources and all other replicas together, as soon as all have agreed, or when `prepare_by` has passed and the
// sources have agreed. A replica that has not answered by then ends with NOT_PREPARED. After the barrier each replica
// proceeds independently: Install once all its ranks have verified, then Finish. A replica that refuses, fails,
// disappears or runs out of time ends with the reason, its ranks are told to drop their shadow, and no other replica
// waits for it.
//
// If the members form one group (Spec::group_transport), a member that fails or disappears during Transfer breaks the
// communicator: the replicas that still transfer end with GROUP_LOST. A source that refuses, fails or disappears ends
// all replicas that still need bytes; replicas that have verified continue. Exception: a source of a group whose
// version was superseded while it sent still sends to the end, and so do the other sources, because stopping would
// destroy the communicator. The receiving replicas end when they report, with SUPERSEDED if their bytes are wrong.
// Therefore wrong bytes are judged only when all sources have reported. When the last replica has ended, the sources
// are told to unpin the version.
//
// An attempt sends the base weights to all of its receivers or to none (Spec::sends_base): a receiver takes them in
// place, and what serves is never overwritten by what it has. A replica that reports at Prepare that it lacks them in an
// attempt that does not send them ends with BASE_LACKING, and one whose ranks all have them in one that does, with
// BASE_HELD.
//
// A rehearsal (Spec::rehearsal) runs Prepare and Transfer only. Its members form the communicators that a sync between
// them would need; no version is touched. All replicas end together: with "connected" when all members have reported,
// sources too, or with "not_connected" as soon as one member refuses, fails, disappears, or has not agreed by
// `prepare_by`.
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
    bool sends_base = false;          // of a version with adapters: all receivers get the base weights, else none does
    bool checks_weights = false;      // receivers digest their live weights again; they may serve the version already
    bool receivers_meet = false;      // false: a receiver is told about itself only, which keeps messages short
    double stage_seconds = 0;         // 0.0 unless this attempt starts right after the staging
    std::vector<MemberId> sources;    // in rank order
    std::vector<Receiver> receivers;  // by replica_id
    absl::Time begun;
    absl::Time prepare_by;
    absl::Time deadline;
  };

  explicit SyncAttempt(Spec spec);

  // Sends Prepare to all members. Call once, first.
  AttemptOutput Begin();
  // A report that does not answer the newest command to its sender is ignored.
  AttemptOutput OnReport(const MemberId& from, const SyncReport& report, absl::Time now);
  // Call when the replica cannot go on, for example because one of its ranks is gone.
  AttemptOutput EndReceiver(const std::string& replica_id, const std::string& reason, const std::string& detail,
                            absl::Time now);
  // Call when the sources cannot go on.
  AttemptOutput EndSources(const std::string& reason, const std::string& detail, absl::Time now);
  // Call when NextDeadline() has come. Opens the barrier for the members that have agreed, or ends every part that is
  // still under way with reason DEADLINE.
  AttemptOutput Tick(absl::Time now);
  absl::Time NextDeadline() const;
  // Call when the synchronizer did not read members' messages for this long. Moves all deadlines by as much.
  void Postpone(absl::Duration by);
  // Call when a sync needs members of this rehearsal. The rehearsal ends now if no member has been told to connect yet,
  // otherwise at `until` at the latest.
  AttemptOutput GiveWay(absl::Time until, absl::Time now);

  // GroupName of the members that were sent Transfer; "" if there were none.
  const std::string& group() const { return group_; }
  bool done() const { return open_parts_ == 0; }
  const Spec& spec() const { return spec_; }

 private:
  // kWrong: the received bytes are wrong, and not all sources have reported yet that they sent the version to the end.
  enum class RankState : uint8_t { kPreparing, kPrepared, kTransferring, kWrong, kVerified, kInstalling, kInstalled };

  struct Rank {
    MemberId id;
    RankState state = RankState::kPreparing;
    bool already_serves = false;
    bool needs_base = true;
    std::string rendezvous;
  };

  struct Part {
    Receiver receiver;
    std::vector<Rank> ranks;
    bool ended = false;
    absl::Time transfer_sent = absl::InfiniteFuture();
    absl::Time install_sent = absl::InfiniteFuture();
    double connect_seconds = 0;  // of the slowest rank
    double verify_seconds = 0;   // of the slowest rank
    double pause_seconds = 0;    // of the slowest rank
    PayloadBytes bytes;
    std::vector<int64_t> bytes_by_source;  // by rank of the source
    std::string wrong_reason;              // of the first rank that is kWrong
    std::string wrong_detail;
  };

  enum class SourceState : uint8_t { kPreparing, kReady, kTransferring, kSent };
  struct Source {
    MemberId id;
    SourceState state = SourceState::kPreparing;
    std::string rendezvous;
    std::string base_rendezvous = {};
  };

  bool SourcesReady() const;
  static bool AllAt(const Part& part, RankState state);
  static bool AnyAt(const Part& part, RankState state);
  bool NeedsBytes(const Part& part) const;
  AttemptOutput HandleSourceReport(Source& source, const SyncReport& report, absl::Time now);
  AttemptOutput HandleRankReport(Part& part, Rank& rank, const SyncReport& report, absl::Time now);
  AttemptOutput RecordSent(Source& source, const std::string& superseded, absl::Time now);
  AttemptOutput JudgeWrongParts(absl::Time now);
  void RecordReport(Part& part, Rank& rank, const SyncReport& report) const;
  AttemptOutput Advance(Part& part, absl::Time now);
  AttemptOutput EndIfAllConnected(absl::Time now);
  AttemptOutput EndAll(const std::string& result, const std::string& detail, absl::Time now);
  AttemptOutput FailRehearsal(const std::string& reason, const std::string& detail, absl::Time now);
  AttemptOutput OpenBarrierIfComplete(absl::Time now);
  AttemptOutput SendTransfers(absl::Time now);
  // Whether a rank that needs bytes of the part lacks the base weights: then all of its ranks get them together.
  static bool LacksBase(const Part& part);
  AttemptOutput SendInstalls(Part& part, absl::Time now);
  // Ends the part. If the part broke the communicator, ends the other parts that still transfer too.
  AttemptOutput Fail(Part& part, const std::string& result, const std::string& detail, absl::Time now);
  AttemptOutput End(Part& part, const std::string& result, const std::string& detail, absl::Time now);
  SyncRecord MakeRecord(const Part& part, absl::Time now) const;

  Spec spec_;
  std::vector<Source> sources_;
  std::map<std::string, Part> parts_;  // by replica id
  int open_parts_ = 0;
  bool barrier_open_ = false;
  std::string superseded_;  // message of the first source whose version was superseded while its group received
  std::string group_;
};

}  // namespace syncopate::synchronizer
