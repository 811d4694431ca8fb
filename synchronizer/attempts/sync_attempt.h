#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// A rank that can take part in a sync.
struct SyncPeer {
  MemberId id;
  std::vector<std::string> transports;
  friend bool operator==(const SyncPeer&, const SyncPeer&) = default;
};

// What an event made of an attempt: commands to be sent in this order, and receivers whose part has ended.
struct AttemptOutput {
  std::vector<std::pair<MemberId, Command>> sends;
  std::vector<SyncRecord> ended;

  void Append(AttemptOutput other);
};

// One weight sync: one version, all source ranks, and the replicas that were idle when it began. Sans-IO.
//
// Each replica goes its own way and ends on its own: Prepare, Transfer once the sources and all ranks of the replica
// have agreed, Install once all its ranks have verified, Finish. A rank that holds the bits already skips Transfer. A
// replica that refuses, fails, disappears or runs out of time ends with the reason, tells its ranks to drop their
// shadow, and holds up nobody. A source that refuses or disappears ends all replicas that still need bytes; those that
// have verified go on. When the last replica has ended, the sources are told to unpin the version.
class SyncAttempt {
 public:
  struct Receiver {
    std::string replica_id;
    std::vector<MemberId> ranks;  // in rank order
    uint64_t plan_hash = 0;
  };
  struct Spec {
    int64_t id = 0;
    PublishedVersion version;
    uint64_t manifest_fingerprint = 0;
    std::string transport;
    std::string transport_reason;
    double stage_seconds = 0;       // 0.0 unless this attempt follows the staging at once
    std::vector<MemberId> sources;  // in rank order
    std::vector<Receiver> receivers;
    absl::Time begun;
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
  // The deadline has come: every part that is still under way ends with reason DEADLINE.
  AttemptOutput Expire(absl::Time now);

  bool done() const { return open_parts_ == 0; }
  const Spec& spec() const { return spec_; }

 private:
  enum class RankState : uint8_t { kPreparing, kPrepared, kTransferring, kVerified, kInstalling, kInstalled };

  struct Rank {
    MemberId id;
    RankState state = RankState::kPreparing;
    bool held = false;
    SyncReport last;  // newest report that was taken
  };

  struct Part {
    Receiver receiver;
    std::vector<Rank> ranks;
    bool ended = false;
    absl::Time transfer_sent = absl::InfiniteFuture();
    absl::Time install_sent = absl::InfiniteFuture();
    double verify_seconds = 0;  // the slowest rank's
    double pause_seconds = 0;   // likewise
    int64_t bytes = 0;
  };

  struct Source {
    MemberId id;
    bool ready = false;
    std::string rendezvous;
  };

  bool SourcesReady() const;
  static bool AllAt(const Part& part, RankState state);
  AttemptOutput OnSourceReport(Source& source, const SyncReport& report, absl::Time now);
  AttemptOutput OnRankReport(Part& part, Rank& rank, const SyncReport& report, absl::Time now);
  AttemptOutput Advance(Part& part, absl::Time now);
  AttemptOutput SendTransfers(Part& part, absl::Time now);
  AttemptOutput SendInstalls(Part& part, absl::Time now);
  AttemptOutput End(Part& part, const std::string& result, const std::string& detail, absl::Time now);
  SyncRecord RecordOf(const Part& part, absl::Time now) const;

  Spec spec_;
  std::vector<Source> sources_;
  std::map<std::string, Part> parts_;  // by replica
  int open_parts_ = 0;
};

}  // namespace syncopate::synchronizer
