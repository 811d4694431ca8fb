#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/manifest.h"
#include "base/policy_version.h"
#include "base/trajectory.h"
#include "synchronizer/plan/payload.h"
#include "synchronizer/superseded.h"
#include "synchronizer/sync_outcome.h"

// What members and the synchronizer say to each other, without a wire format; proto/syncopate/v1/synchronizer.proto
// documents each field. Plain data, no behaviour.
namespace syncopate::synchronizer {

inline constexpr char kTrainerRole[] = "trainer";
inline constexpr char kRollouterRole[] = "rollouter";

// One Join stream. 0 means "none"; the shell numbers streams from 1 and never reuses a number.
using SessionId = int64_t;

// Tensors [begin, end) of a manifest.
struct TensorRange {
  int32_t begin = 0;
  int32_t end = 0;
  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};

// What a sender says of versions that differ in some tensors only (adapters). Without adapters every version is new in
// all of them.
struct Subset {
  std::vector<TensorRange> adapters;  // ascending, disjoint
  uint64_t base_digest = 0;           // names the bits of the others (base weights); not 0 if there are adapters
  friend bool operator==(const Subset&, const Subset&) = default;
};

// A version that may be sent, with what receivers verify it by.
struct PublishedVersion {
  PolicyVersion version;
  std::vector<uint64_t> bucket_digests;
  uint64_t digest = 0;  // CombineDigests(bucket_digests)
  double unix_seconds = 0;
  Subset subset = {};
  friend bool operator==(const PublishedVersion&, const PublishedVersion&) = default;
};

// Upwards.

// What a member's process sees of its machine; "" and false where it has no GPU. Transports are chosen by it.
struct DeviceFacts {
  std::string host;                    // equal iff two processes run on the same machine in the same boot
  std::string gpu_uuid;                // of the one that holds the weights
  std::vector<std::string> peer_gpus;  // uuids of the GPUs whose memory this one can reach
  bool nvlink = false;                 // all of peer_gpus over NVLink
  std::string nccl_version;            // "2.28.9"
  friend bool operator==(const DeviceFacts&, const DeviceFacts&) = default;
};

struct Hello {
  MemberId member;
  std::string run_id;
  std::string address;
  std::string metrics_address;
  // Null: a rollouter that has yet to learn the model. It is a member and told where the trainer is, but receives
  // nothing before it has joined again with one.
  std::shared_ptr<const Manifest> manifest;
  std::vector<std::string> transports;
  PolicyVersion serving;
  uint64_t serving_digest = 0;
  std::string held = {};  // why it takes no version for now; "": it does
  int64_t held_epoch = 0;
  int64_t checkpoint_epoch = 0;
  std::string build;
  DeviceFacts facts;
  std::string layout;              // of this member's weights; "": flat shards (trainer), whole (rollouter)
  std::string destination_layout;  // trainer: the receivers' layout that it stages for; "": whole
  // Trainer: names the start that this rank is of, the same for all its ranks and for those of no other start, such as
  // the incarnation of its rank 0. "" if this is the only rank.
  std::string start;
};

enum class SyncStage : uint8_t { kPrepare = 1, kTransfer = 2, kInstall = 3 };

struct SyncReport {
  int64_t attempt = 0;
  SyncStage stage = SyncStage::kPrepare;
  absl::Status status;        // OK: the stage is done; else it failed or was refused
  bool already_held = false;  // kPrepare: the receiver serves these bits
  // kPrepare: what decides whether base weights are sent; `base_present` means those that Prepare named.
  ReceiverWeights weights = {};
  double verify_seconds = 0;   // kTransfer: the part of it that went into digests and finite checks
  double connect_seconds = 0;  // kTransfer: the part that formed communicators or mapped memory
  int64_t bytes = 0;           // kTransfer: received in all
  int64_t lora_bytes = 0;      // kTransfer: of them, adapters
  double pause_seconds = 0;    // kInstall
  std::string rendezvous;      // kPrepare: where the others find this member
};

// Downwards.

struct Directory {
  std::string trainer_address;
  int64_t trainer_epoch = 0;
  PolicyVersion newest;
  bool completed = false;  // the trainer of that epoch has said that the run is complete
  friend bool operator==(const Directory&, const Directory&) = default;
};

struct Welcome {
  std::string run_id;
  int64_t epoch = 0;
  absl::Duration heartbeat;
  absl::Duration dead_after;
  Directory directory;
};

// A rank that takes part in an attempt, and where the others find it.
struct SyncMember {
  MemberId id;
  std::string rendezvous;
  bool base = true;  // receiver: it gets the base weights too, not the adapters alone
  friend bool operator==(const SyncMember&, const SyncMember&) = default;
};

struct Prepare {
  int64_t attempt = 0;
  PolicyVersion version;
  uint64_t digest = 0;
  uint64_t manifest_fingerprint = 0;
  uint64_t plan_hash = 0;
  std::string transport;
  bool source = false;
  absl::Duration deadline;  // for the whole attempt, from now
  int32_t receivers = 0;
  int32_t sources = 0;  // ranks that send; the plan is a function of it
  // GroupName of the sources and of all receivers that were asked. Fewer may take part in the end: see Transfer.
  std::string group = {};
  std::string source_layout = {};  // as in Hello; with the next one, what the plan is a function of
  std::string destination_layout = {};
  Subset subset = {};  // the version's
  // Form what a sync between these members would need, so that none has to wait for it: Transfer follows, and moves no
  // byte. There is no version then.
  bool rehearsal = false;
};

// To everybody who takes part, sources too, once all of them have agreed. In a rehearsal there are no digests.
struct Transfer {
  int64_t attempt = 0;
  std::vector<SyncMember> sources = {};    // by rank
  std::vector<SyncMember> receivers = {};  // by (replica_id, rank); a receiver that need not know the others: itself
  std::string group = {};                  // GroupName of these
  std::vector<uint64_t> bucket_digests = {};
};

struct Install {
  int64_t attempt = 0;
};

struct Finish {
  int64_t attempt = 0;
  std::string reason;  // "" if it succeeded
};

struct Evicted {  // the stream's status says more
  std::string reason;
};

using Command = std::variant<Welcome, Directory, Prepare, Transfer, Install, Finish, Evicted>;

// How long the stages of one weight sync took. The parts add up to the total; a part that did not run is 0.0.
struct StageSeconds {
  double stage = 0, prepare = 0, transfer = 0, verify = 0, install = 0, total = 0;
};
// The stages by their names, in their order.
inline constexpr std::pair<const char*, double StageSeconds::*> kStages[] = {
    {"stage", &StageSeconds::stage},   {"prepare", &StageSeconds::prepare}, {"transfer", &StageSeconds::transfer},
    {"verify", &StageSeconds::verify}, {"install", &StageSeconds::install}, {"total", &StageSeconds::total}};

// One receiver's part in one attempt, when it has ended.
struct SyncRecord {
  int64_t attempt = 0;
  PolicyVersion version;
  std::string replica_id;
  std::string transport;
  std::string transport_reason;
  SyncOutcome outcome = SyncOutcome::kFailed;
  // The reason of the error; of a rehearsal kConnected or kNotConnected, with the error's reason in `detail`, and `version` is
  // none; "" if the receiver serves the version.
  std::string reason;
  std::string detail;
  int64_t bytes = 0;
  PayloadBytes bytes_by_kind = {};  // adds up to `bytes`
  StageSeconds seconds;
  double connect_seconds = 0;  // of "prepare": forming communicators, mapping memory
  double pause_seconds = 0;

  // "ok", "relabelled", or the reason: the word for people and for other processes.
  std::string result() const {
    return outcome == SyncOutcome::kDone ? "ok" : outcome == SyncOutcome::kRelabelled ? "relabelled" : reason;
  }
  void SetResult(const std::string& result) {
    outcome = ClassifySyncResult(result);
    reason = ok() ? "" : result;
  }
  bool ok() const { return outcome == SyncOutcome::kDone || outcome == SyncOutcome::kRelabelled; }
  bool superseded() const { return outcome == SyncOutcome::kSuperseded; }
  bool rehearsal() const { return outcome == SyncOutcome::kRehearsed; }
  bool held() const { return outcome == SyncOutcome::kHeld; }
  bool failed() const { return outcome == SyncOutcome::kFailed; }
};

}  // namespace syncopate::synchronizer
