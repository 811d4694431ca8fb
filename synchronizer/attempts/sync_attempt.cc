#include "synchronizer/attempts/sync_attempt.h"

#include <algorithm>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/reasons.h"
#include "base/status.h"

// States of an attempt's members. A report changes a state only if it answers the newest command to its sender:
//
//   source    kPreparing --Prepare ok--> kReady --barrier--> kTransferring --Transfer ok--> kSent
//   rank      kPreparing --Prepare ok--> kPrepared --barrier--> kTransferring --Transfer ok--> kVerified
//             kPreparing --Prepare ok, serves the bits already-----------------------------> kVerified
//             kTransferring --wrong bytes, in a group--> kWrong            judged when all sources are kSent
//             kVerified --all ranks of the replica are--> kInstalling --Install ok--> kInstalled
//   replica   open --all ranks kInstalled--> ended "ok", or "relabelled" if no bytes moved
//             open --a refusal, a loss, the deadline, a lost group--> ended with the reason
//   barrier   closed --all sources kReady, and no rank of an open replica kPreparing or prepare_by has passed--> open
//   rehearsal the same up to kSent and kVerified; ends for all replicas at once, "connected" or "not_connected"
//
// The attempt is done when no replica is open. Then Finish makes the sources unpin the version.
namespace syncopate::synchronizer {
namespace {

// The machine-readable reason of a failure, or the name of its status code if the peer gave no reason.
std::string GetReason(const absl::Status& status) {
  std::string reason = ErrorReason(status);
  return reason.empty() ? absl::StatusCodeToString(status.code()) : reason;
}

// All bytes had arrived when this error was found, so the communicator is intact and other members are not affected.
bool AfterTheBytes(const std::string& reason) {
  return reason == reason::kDigestMismatch || reason == reason::kNonFinite;
}

}  // namespace

// A pure function of the members, so every member computes the same name by itself, and a new process in an old place
// gives another name. With a counter instead, a member that missed an attempt would wait for a group that no other
// member forms.
std::string GroupName(const std::vector<MemberId>& sources, const std::vector<MemberId>& receivers) {
  uint64_t hash = HashCombine(sources.size(), receivers.size());
  for (const std::vector<MemberId>* side : {&sources, &receivers}) {
    for (const MemberId& id : *side) {
      const std::string place = absl::StrCat(id.role, "/", id.replica_id, "/", id.rank, "/", id.incarnation);
      hash = HashCombine(hash, DigestBytes(place.data(), static_cast<int64_t>(place.size())));
    }
  }
  return absl::StrFormat("%016x", hash);
}

void AttemptOutput::Append(AttemptOutput other) {
  absl::c_move(other.sends, std::back_inserter(sends));
  absl::c_move(other.ended, std::back_inserter(ended));
}

SyncAttempt::SyncAttempt(Spec spec) : spec_(std::move(spec)) {
  for (const MemberId& id : spec_.sources) sources_.push_back({id, SourceState::kPreparing, ""});
  for (const Receiver& receiver : spec_.receivers) {
    Part& part = parts_[receiver.replica_id];
    part.receiver = receiver;
    for (const MemberId& id : receiver.ranks) part.ranks.push_back({.id = id, .rendezvous = ""});
  }
  open_parts_ = static_cast<int>(parts_.size());
}

AttemptOutput SyncAttempt::Begin() {
  AttemptOutput output;
  std::vector<MemberId> planned;
  for (const auto& [replica_id, part] : parts_) absl::c_copy(part.receiver.ranks, std::back_inserter(planned));
  Prepare prepare;
  prepare.attempt = spec_.id;
  prepare.rehearsal = spec_.rehearsal;
  prepare.version = spec_.version.version;
  prepare.digest = spec_.version.digest;
  prepare.manifest_fingerprint = spec_.manifest_fingerprint;
  prepare.plan_hash = spec_.plan_hash;
  prepare.transport = spec_.transport;
  prepare.deadline = spec_.deadline - spec_.begun;
  prepare.receivers = static_cast<int32_t>(parts_.size());
  prepare.sources = static_cast<int32_t>(sources_.size());
  prepare.group = GroupName(spec_.sources, planned);
  prepare.source_layout = spec_.source_layout;
  prepare.destination_layout = spec_.destination_layout;
  prepare.subset = spec_.version.subset;
  prepare.source = true;
  for (const Source& source : sources_) output.sends.emplace_back(source.id, prepare);
  prepare.source = false;
  prepare.check_weights = spec_.checks_weights;
  for (const MemberId& id : planned) output.sends.emplace_back(id, prepare);
  return output;
}

AttemptOutput SyncAttempt::OnReport(const MemberId& from, const SyncReport& report, absl::Time now) {
  for (Source& source : sources_) {
    if (source.id == from) return HandleSourceReport(source, report, now);
  }
  auto found = parts_.find(from.replica_id);
  if (found == parts_.end() || found->second.ended) return {};
  for (Rank& rank : found->second.ranks) {
    if (rank.id == from) return HandleRankReport(found->second, rank, report, now);
  }
  return {};
}

AttemptOutput SyncAttempt::HandleSourceReport(Source& source, const SyncReport& report, absl::Time now) {
  // A report counts only as the answer to the newest command; any other report is late or repeated.
  bool answers = (source.state == SourceState::kPreparing && report.stage == SyncStage::kPrepare) ||
                 (source.state == SourceState::kTransferring && report.stage == SyncStage::kTransfer);
  if (!answers) return {};
  const std::string said = absl::StrFormat("source rank %d: %s", source.id.rank, report.status.message());
  const bool sent = report.stage == SyncStage::kTransfer;
  // A source in a group sends to the end even if its version is gone, because stopping would break the communicator.
  if (sent && spec_.group_transport && GetReason(report.status) == kSuperseded) return RecordSent(source, said, now);
  if (!report.status.ok()) return EndSources(GetReason(report.status), said, now);
  if (sent) return RecordSent(source, "", now);
  source.state = SourceState::kReady;
  source.rendezvous = report.rendezvous;
  source.base_rendezvous = report.base_rendezvous;
  return OpenBarrierIfComplete(now);
}

AttemptOutput SyncAttempt::RecordSent(Source& source, const std::string& superseded, absl::Time now) {
  source.state = SourceState::kSent;
  // The first source's message is kept: it explains wrong bytes in any replica.
  if (superseded_.empty()) superseded_ = superseded;
  return spec_.rehearsal ? EndIfAllConnected(now) : JudgeWrongParts(now);
}

// Wrong bytes were either damaged on the way or overwritten because a newer version took the send slot. Which of the
// two is known only after every source has reported how its sending ended.
AttemptOutput SyncAttempt::JudgeWrongParts(absl::Time now) {
  if (absl::c_any_of(sources_, [](const Source& source) { return source.state == SourceState::kTransferring; })) {
    return {};
  }
  AttemptOutput output;
  for (auto& [replica_id, part] : parts_) {
    const bool over = AnyAt(part, RankState::kWrong) && !AnyAt(part, RankState::kTransferring);
    if (part.ended || !over) continue;
    output.Append(superseded_.empty() ? Fail(part, part.wrong_reason, part.wrong_detail, now)
                                      : Fail(part, kSuperseded, superseded_, now));
  }
  return output;
}

AttemptOutput SyncAttempt::HandleRankReport(Part& part, Rank& rank, const SyncReport& report, absl::Time now) {
  bool answers = (rank.state == RankState::kPreparing && report.stage == SyncStage::kPrepare) ||
                 (rank.state == RankState::kTransferring && report.stage == SyncStage::kTransfer) ||
                 (rank.state == RankState::kInstalling && report.stage == SyncStage::kInstall);
  if (!answers) return {};
  if (!report.status.ok()) {
    std::string where = rank.id.world == 1 ? "" : absl::StrFormat("rank %d: ", rank.id.rank);
    const std::string reason = GetReason(report.status);
    const std::string detail = absl::StrCat(where, report.status.message());
    // In a group, wrong bytes may come from a source that was superseded while it sent: wait for the sources' reports.
    if (!spec_.group_transport || !AfterTheBytes(reason)) return Fail(part, reason, detail, now);
    rank.state = RankState::kWrong;
    if (part.wrong_reason.empty()) part.wrong_reason = reason;
    if (part.wrong_detail.empty()) part.wrong_detail = detail;
    return JudgeWrongParts(now);
  }
  RecordReport(part, rank, report);
  return AnyAt(part, RankState::kWrong) ? JudgeWrongParts(now) : Advance(part, now);
}

void SyncAttempt::RecordReport(Part& part, Rank& rank, const SyncReport& report) const {
  switch (report.stage) {
    case SyncStage::kPrepare:
      rank.already_serves = report.already_serves;
      rank.rendezvous = report.rendezvous;
      rank.needs_base = NeedsBase(report.weights);
      // A rank that already has the bits gets no bytes, and installs together with the other ranks.
      rank.state = rank.already_serves ? RankState::kVerified : RankState::kPrepared;
      break;
    case SyncStage::kTransfer:
      rank.state = RankState::kVerified;
      part.bytes.lora += report.lora_bytes;
      part.bytes.full += report.bytes - report.lora_bytes;
      part.bytes.mapped += report.mapped_bytes;
      part.bytes_by_source.resize(sources_.size());
      for (size_t i = 0; i < std::min(sources_.size(), report.bytes_by_source.size()); ++i) {
        part.bytes_by_source[i] += report.bytes_by_source[i];
      }
      // The seconds of a replica are those of its slowest rank; the bytes of its ranks are added.
      part.connect_seconds = std::max(part.connect_seconds, report.connect_seconds);
      part.verify_seconds = std::max(part.verify_seconds, report.verify_seconds);
      break;
    case SyncStage::kInstall:
      rank.state = RankState::kInstalled;
      part.pause_seconds = std::max(part.pause_seconds, report.pause_seconds);
      break;
  }
}

AttemptOutput SyncAttempt::EndReceiver(const std::string& replica_id, const std::string& reason,
                                       const std::string& detail, absl::Time now) {
  auto found = parts_.find(replica_id);
  if (found == parts_.end()) return {};
  return Fail(found->second, reason, detail, now);
}

AttemptOutput SyncAttempt::EndSources(const std::string& reason, const std::string& detail, absl::Time now) {
  if (spec_.rehearsal) return FailRehearsal(reason, detail, now);
  AttemptOutput output;
  // Replicas that have verified no longer need the sources and continue.
  for (auto& [replica_id, part] : parts_) {
    if (NeedsBytes(part)) output.Append(End(part, reason, detail, now));
  }
  return output;
}

AttemptOutput SyncAttempt::EndAll(const std::string& result, const std::string& detail, absl::Time now) {
  AttemptOutput output;
  for (auto& [replica_id, part] : parts_) output.Append(End(part, result, detail, now));
  return output;
}

AttemptOutput SyncAttempt::FailRehearsal(const std::string& reason, const std::string& detail, absl::Time now) {
  return EndAll(kNotConnected, absl::StrCat(reason, ": ", detail), now);
}

AttemptOutput SyncAttempt::EndIfAllConnected(absl::Time now) {
  const bool connected =
      absl::c_all_of(sources_, [](const Source& source) { return source.state == SourceState::kSent; }) &&
      absl::c_all_of(parts_, [](const auto& entry) { return AllAt(entry.second, RankState::kVerified); });
  return connected ? EndAll(kConnected, "", now) : AttemptOutput{};
}

AttemptOutput SyncAttempt::GiveWay(absl::Time until, absl::Time now) {
  // Once connecting has begun, letting it end is cheaper than aborting a half-formed communicator.
  if (!barrier_open_)
    return FailRehearsal(kSuperseded, "a version was published before the members had connected", now);
  spec_.deadline = std::min(spec_.deadline, until);
  return {};
}

AttemptOutput SyncAttempt::Tick(absl::Time now) {
  if (now < spec_.deadline) return OpenBarrierIfComplete(now);
  std::string detail = absl::StrFormat("not finished within %s", absl::FormatDuration(spec_.deadline - spec_.begun));
  return spec_.rehearsal ? FailRehearsal(reason::kDeadline, detail, now) : EndAll(reason::kDeadline, detail, now);
}

void SyncAttempt::Postpone(absl::Duration by) {
  spec_.prepare_by += by;
  spec_.deadline += by;
}

absl::Time SyncAttempt::NextDeadline() const {
  // Sources have no deadline of their own in Prepare: if one is missing, there is nothing to send.
  bool waits_for_receivers = !barrier_open_ && SourcesReady();
  return waits_for_receivers ? std::min(spec_.prepare_by, spec_.deadline) : spec_.deadline;
}

bool SyncAttempt::SourcesReady() const {
  return absl::c_all_of(sources_, [](const Source& source) { return source.state != SourceState::kPreparing; });
}

bool SyncAttempt::AllAt(const Part& part, RankState state) {
  return absl::c_all_of(part.ranks, [state](const Rank& rank) { return rank.state == state; });
}

bool SyncAttempt::AnyAt(const Part& part, RankState state) {
  return absl::c_any_of(part.ranks, [state](const Rank& rank) { return rank.state == state; });
}

bool SyncAttempt::NeedsBytes(const Part& part) const {
  return !part.ended && !AllAt(part, RankState::kVerified) && part.install_sent == absl::InfiniteFuture();
}

AttemptOutput SyncAttempt::Advance(Part& part, absl::Time now) {
  if (spec_.rehearsal && barrier_open_) return EndIfAllConnected(now);
  if (AllAt(part, RankState::kInstalled)) {
    // "relabelled" only if every rank already had the bits.
    bool moved = absl::c_any_of(part.ranks, [](const Rank& rank) { return !rank.already_serves; });
    return End(part, moved ? "ok" : "relabelled", "", now);
  }
  AttemptOutput output;
  if (!spec_.rehearsal && AllAt(part, RankState::kVerified)) output = SendInstalls(part, now);
  output.Append(OpenBarrierIfComplete(now));
  return output;
}

AttemptOutput SyncAttempt::OpenBarrierIfComplete(absl::Time now) {
  if (barrier_open_ || done() || !SourcesReady()) return {};
  bool all_answered = absl::c_all_of(
      parts_, [](const auto& entry) { return entry.second.ended || !AnyAt(entry.second, RankState::kPreparing); });
  if (!all_answered && now < spec_.prepare_by) return {};  // silent receivers delay the others until prepare_by at most
  AttemptOutput output;
  std::string detail =
      absl::StrFormat("no answer to Prepare within %s", absl::FormatDuration(spec_.prepare_by - spec_.begun));
  if (spec_.rehearsal && !all_answered) return FailRehearsal(reason::kNotPrepared, detail, now);
  barrier_open_ = true;
  for (auto& [replica_id, part] : parts_) {
    bool silent = !part.ended && AnyAt(part, RankState::kPreparing);
    if (silent) output.Append(End(part, reason::kNotPrepared, detail, now));
  }
  output.Append(SendTransfers(now));
  return output;
}

AttemptOutput SyncAttempt::SendTransfers(absl::Time now) {
  AttemptOutput output;
  Transfer transfer;
  transfer.attempt = spec_.id;
  transfer.bucket_digests = spec_.version.bucket_digests;
  for (const Source& source : sources_) {
    SyncMember member{.id = source.id, .rendezvous = source.rendezvous};
    if (spec_.sends_base) member.base_rendezvous = source.base_rendezvous;
    transfer.sources.push_back(std::move(member));
  }
  std::vector<MemberId> receivers;
  const bool has_adapters = !spec_.version.subset.adapters.empty();
  for (auto& [replica_id, part] : parts_) {
    if (part.ended || !has_adapters || !AnyAt(part, RankState::kPrepared) || LacksBase(part) == spec_.sends_base)
      continue;
    output.Append(spec_.sends_base
                      ? End(part, reason::kBaseHeld, "it has the base weights; only adapters are sent to it", now)
                      : End(part, reason::kBaseLacking, "it no longer has the base weights; they are sent to it", now));
  }
  const bool sends_base = !has_adapters || spec_.sends_base;
  for (auto& [replica_id, part] : parts_) {
    if (part.ended || !AnyAt(part, RankState::kPrepared)) continue;
    part.transfer_sent = now;
    for (Rank& rank : part.ranks) {
      if (rank.state != RankState::kPrepared) continue;
      rank.state = RankState::kTransferring;
      receivers.push_back(rank.id);
      transfer.receivers.push_back({rank.id, rank.rendezvous, sends_base});
    }
  }
  if (receivers.empty()) return output;
  // The group is named for the members that take part now: a member that dropped out before the barrier is in no
  // communicator.
  transfer.group = group_ = GroupName(spec_.sources, receivers);
  for (Source& source : sources_) {
    source.state = SourceState::kTransferring;
    output.sends.emplace_back(source.id, transfer);
  }
  for (const SyncMember& receiver : std::vector<SyncMember>(transfer.receivers)) {
    // The message names only its receiver: otherwise each of 1000 messages would name 1000 separate receivers.
    if (!spec_.receivers_meet) transfer.receivers = {receiver};
    output.sends.emplace_back(receiver.id, transfer);
  }
  return output;
}

bool SyncAttempt::LacksBase(const Part& part) {
  return absl::c_any_of(part.ranks,
                        [](const Rank& rank) { return rank.state == RankState::kPrepared && rank.needs_base; });
}

AttemptOutput SyncAttempt::SendInstalls(Part& part, absl::Time now) {
  AttemptOutput output;
  for (Rank& rank : part.ranks) {
    rank.state = RankState::kInstalling;
    output.sends.emplace_back(rank.id, Install{spec_.id});
  }
  part.install_sent = now;
  return output;
}

AttemptOutput SyncAttempt::Fail(Part& part, const std::string& result, const std::string& detail, absl::Time now) {
  if (spec_.rehearsal) return FailRehearsal(absl::StrCat(part.receiver.replica_id, ": ", result), detail, now);
  bool breaks_group =
      spec_.group_transport && !part.ended && AnyAt(part, RankState::kTransferring) && !AfterTheBytes(result);
  AttemptOutput output = End(part, result, detail, now);
  // A member that fails during Transfer breaks the communicator, so the other members cannot continue either.
  if (breaks_group) {
    for (auto& [replica_id, other] : parts_) {
      bool in_it = !other.ended && AnyAt(other, RankState::kTransferring);
      std::string why = absl::StrFormat("%s left the group: %s", part.receiver.replica_id, result);
      if (in_it) output.Append(End(other, reason::kGroupLost, why, now));
    }
  }
  if (!done()) output.Append(OpenBarrierIfComplete(now));  // the barrier may have waited for this part only
  return output;
}

AttemptOutput SyncAttempt::End(Part& part, const std::string& result, const std::string& detail, absl::Time now) {
  if (part.ended) return {};
  part.ended = true;
  --open_parts_;
  AttemptOutput output;
  SyncRecord record = MakeRecord(part, now);
  record.SetResult(result);
  record.detail = detail;
  for (const Rank& rank : part.ranks) {
    // Finish follows a failure too: a receiver keeps its opened resources until it gets Finish.
    output.sends.emplace_back(rank.id, Finish{spec_.id, record.ok() || result == kConnected ? "" : result});
  }
  if (done()) {
    for (const Source& source : sources_) output.sends.emplace_back(source.id, Finish{spec_.id, ""});
  }
  output.ended.push_back(std::move(record));
  return output;
}

SyncRecord SyncAttempt::MakeRecord(const Part& part, absl::Time now) const {
  SyncRecord record;
  record.attempt = spec_.id;
  record.version = spec_.version.version;
  record.replica_id = part.receiver.replica_id;
  record.transport = spec_.transport;
  record.transport_reason = spec_.transport_reason;
  if (!spec_.rehearsal) {
    record.bytes = part.bytes.total();
    record.bytes_by_kind = part.bytes;
    if (record.bytes > 0) record.bytes_by_source = part.bytes_by_source;
  }
  record.pause_seconds = part.pause_seconds;
  // A phase ends when the next one began, or now. A phase that never began has length 0.
  absl::Time install_begun = std::min(part.install_sent, now);
  absl::Time prepare_ended = std::min(part.transfer_sent, install_begun);
  double receive = absl::ToDoubleSeconds(install_begun - prepare_ended);
  double connect = spec_.rehearsal ? receive : std::min(part.connect_seconds, receive);
  double verify = std::min(part.verify_seconds, receive - connect);
  record.connect_seconds = connect;
  StageSeconds& seconds = record.seconds;
  seconds.stage = spec_.stage_seconds;
  seconds.prepare = absl::ToDoubleSeconds(prepare_ended - spec_.begun) + connect;
  seconds.transfer = receive - connect - verify;
  seconds.verify = verify;
  seconds.install = absl::ToDoubleSeconds(now - install_begun);
  seconds.total = spec_.stage_seconds + absl::ToDoubleSeconds(now - spec_.begun);
  return record;
}

}  // namespace syncopate::synchronizer
