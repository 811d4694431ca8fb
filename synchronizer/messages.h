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

// The messages between members and the synchronizer, without a wire format. Plain data, no behaviour.
// proto/syncopate/v1/synchronizer.proto documents each field.
namespace syncopate::synchronizer {

inline constexpr char kTrainerRole[] = "trainer";
inline constexpr char kRollouterRole[] = "rollouter";

// Identifies one Join stream. 0 means "none"; the shell numbers streams from 1 and never reuses a number.
using SessionId = int64_t;

// Tensors [begin, end) of a manifest.
struct TensorRange {
  int32_t begin = 0;
  int32_t end = 0;
  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};

// A sender's declaration about versions that differ in some tensors only (adapters). Without adapters every version
// changes all tensors.
struct Subset {
  std::vector<TensorRange> adapters;  // ascending, disjoint
  uint64_t base_digest = 0;           // names the bits of all other tensors (base weights); not 0 if there are adapters
  friend bool operator==(const Subset&, const Subset&) = default;
};

// A version that may be sent, with the digests by which receivers verify it.
struct PublishedVersion {
  PolicyVersion version;
  std::vector<uint64_t> bucket_digests;
  uint64_t digest = 0;  // CombineDigests(bucket_digests)
  double unix_seconds = 0;
  Subset subset = {};
  friend bool operator==(const PublishedVersion&, const PublishedVersion&) = default;
};

// Messages from a member to the synchronizer.

// The facts that a member's process knows about its machine; "" and false if it has no GPU. Transports are chosen by
// these facts.
struct DeviceFacts {
  std::string host;                    // equal iff two processes run on the same machine in the same boot
  std::string gpu_uuid;                // the GPU that stores the weights
  std::vector<std::string> peer_gpus;  // uuids of the GPUs whose memory gpu_uuid's GPU can access
  bool nvlink = false;                 // every GPU in peer_gpus is reached over NVLink
  std::string nccl_version;            // "2.28.9"
  friend bool operator==(const DeviceFacts&, const DeviceFacts&) = default;
};

struct Hello {
  MemberId member;
  std::string run_id;
  std::string address;
  std::string metrics_address;
  std::string endpoint_address = {};  // a rollouter's OpenAI endpoint; "": it has none
  // Null: a rollouter that does not know the model yet. It is a member and learns the trainer's address, but it
  // receives no weights before it joins again with a manifest.
  std::shared_ptr<const Manifest> manifest;
  std::vector<std::string> transports;
  PolicyVersion serving;
  uint64_t serving_digest = 0;
  std::string held = {};     // why the member takes no version for now; "": it takes versions
  uint64_t base_digest = 0;  // names the base weights that the member has (Subset::base_digest); 0: none
  int64_t held_epoch = 0;
  int64_t checkpoint_epoch = 0;
  std::string build;
  DeviceFacts facts;
  std::string layout;              // the layout of this member's weights; "": flat shards (trainer), whole (rollouter)
  std::string destination_layout;  // trainer: the receivers' layout for which it stages; "": whole
  // Trainer: names the start of the trainer to which this rank belongs, for example by the incarnation of its rank 0.
  // All ranks of one start give the same name, and no other start has it. "" if this is the only rank.
  std::string start;
};

enum class SyncStage : uint8_t { kPrepare = 1, kTransfer = 2, kInstall = 3 };

struct SyncReport {
  int64_t attempt = 0;
  SyncStage stage = SyncStage::kPrepare;
  absl::Status status;          // OK: the stage is done; else it failed or was refused
  bool already_serves = false;  // kPrepare: the receiver already serves these bits
  // kPrepare: decides whether base weights are sent. `base_present` is about the base weights that Prepare named.
  ReceiverWeights weights = {};
  double verify_seconds = 0;   // kTransfer: the part of its time spent on digests and finite checks
  double connect_seconds = 0;  // kTransfer: the part of its time spent forming communicators or mapping memory
  int64_t bytes = 0;           // kTransfer: all bytes received
  int64_t lora_bytes = 0;      // kTransfer: the part of `bytes` that belongs to adapters
  std::vector<int64_t> bytes_by_source = {};  // kTransfer: the parts of `bytes` by trainer rank
  int64_t mapped_bytes = 0;                   // kTransfer: base weights that were mapped instead; not part of `bytes`
  double pause_seconds = 0;                   // kInstall
  std::string rendezvous;                     // kPrepare: the address at which other members find this one
  // kPrepare, of a source: where receivers on its host can map its base weights (ipc::Rendezvous); "": nowhere
  std::string base_rendezvous = {};
};

// Commands from the synchronizer to a member.

struct Directory {
  std::string trainer_address;
  int64_t trainer_epoch = 0;
  PolicyVersion newest;
  bool completed = false;  // the trainer of trainer_epoch has reported that the run is complete
  friend bool operator==(const Directory&, const Directory&) = default;
};

struct Welcome {
  std::string run_id;
  int64_t epoch = 0;
  absl::Duration heartbeat;
  absl::Duration dead_after;
  Directory directory;
};

// A rank that takes part in an attempt, and the address at which the others find it.
struct SyncMember {
  MemberId id;
  std::string rendezvous;
  bool base = true;                  // receiver: it gets the base weights too, not only the adapters
  std::string base_rendezvous = {};  // source: as in SyncReport, if the attempt sends base weights
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
  int32_t sources = 0;  // number of ranks that send; the plan is a function of it
  // GroupName of the sources and of all receivers that get this Prepare. Fewer may take part in the end: see Transfer.
  std::string group = {};
  std::string source_layout = {};  // see Hello; the plan is a function of both layouts
  std::string destination_layout = {};
  Subset subset = {};  // the subset of `version`
  // The members form the communicators that a sync between them would need, so that no sync has to wait for them. A
  // Transfer follows and moves no byte. `version` is none.
  bool rehearsal = false;
  // Receiver: digests its live weights again before it answers. `version` may be the one that it serves.
  bool check_weights = false;
};

// Sent to all members that take part, sources too, once all of them have agreed. A rehearsal has no digests.
struct Transfer {
  int64_t attempt = 0;
  std::vector<SyncMember> sources = {};    // by rank
  std::vector<SyncMember> receivers = {};  // by (replica_id, rank); only the addressee if it need not know the others
  std::string group = {};                  // GroupName of the sources and of all receivers that take part
  std::vector<uint64_t> bucket_digests = {};
};

struct Install {
  int64_t attempt = 0;
};

struct Finish {
  int64_t attempt = 0;
  std::string reason;  // "" if it succeeded
};

struct Evicted {  // the status of the stream says more
  std::string reason;
};

using Command = std::variant<Welcome, Directory, Prepare, Transfer, Install, Finish, Evicted>;

// How long the stages of one weight sync took. The parts add up to the total; a part that did not run is 0.0.
struct StageSeconds {
  double stage = 0, prepare = 0, transfer = 0, verify = 0, install = 0, total = 0;
};
// The name and the field of each stage, in the order in which they run.
inline constexpr std::pair<const char*, double StageSeconds::*> kStages[] = {
    {"stage", &StageSeconds::stage},   {"prepare", &StageSeconds::prepare}, {"transfer", &StageSeconds::transfer},
    {"verify", &StageSeconds::verify}, {"install", &StageSeconds::install}, {"total", &StageSeconds::total}};

// The record of one receiver's part in one attempt, made when that part has ended.
struct SyncRecord {
  int64_t attempt = 0;
  PolicyVersion version;
  std::string replica_id;
  std::string transport;
  std::string transport_reason;
  SyncOutcome outcome = SyncOutcome::kFailed;
  // The reason of the error; "" if the receiver serves the version. For a rehearsal kConnected or kNotConnected: the
  // error's reason is then in `detail`, and `version` is none.
  std::string reason;
  std::string detail;
  int64_t bytes = 0;
  PayloadBytes bytes_by_kind = {};            // their total is `bytes`
  std::vector<int64_t> bytes_by_source = {};  // by trainer rank; their sum is `bytes`; empty if nothing moved
  StageSeconds seconds;
  double connect_seconds = 0;  // part of "prepare": forming communicators, mapping memory
  double pause_seconds = 0;

  // "ok", "relabelled", or the reason: the word that people and other processes read.
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
