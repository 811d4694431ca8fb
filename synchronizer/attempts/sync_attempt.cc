#include "synchronizer/attempts/sync_attempt.h"

#include <algorithm>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

// The machine-readable reason of a failure, or the name of its code if the peer gave none.
std::string ReasonOf(const absl::Status& status) {
  std::string reason = ErrorReason(status);
  return reason.empty() ? absl::StatusCodeToString(status.code()) : reason;
}

}  // namespace

void AttemptOutput::Append(AttemptOutput other) {
  absl::c_move(other.sends, std::back_inserter(sends));
  absl::c_move(other.ended, std::back_inserter(ended));
}

SyncAttempt::SyncAttempt(Spec spec) : spec_(std::move(spec)) {
  for (const MemberId& id : spec_.sources) sources_.push_back({id, false, ""});
  for (const Receiver& receiver : spec_.receivers) {
    Part& part = parts_[receiver.replica_id];
    part.receiver = receiver;
    for (const MemberId& id : receiver.ranks) part.ranks.push_back({id, RankState::kPreparing, false, {}});
  }
  open_parts_ = static_cast<int>(parts_.size());
}

AttemptOutput SyncAttempt::Begin() {
  AttemptOutput output;
  Prepare prepare;
  prepare.attempt = spec_.id;
  prepare.version = spec_.version.version;
  prepare.digest = spec_.version.digest;
  prepare.manifest_fingerprint = spec_.manifest_fingerprint;
  prepare.transport = spec_.transport;
  prepare.deadline = spec_.deadline - spec_.begun;
  prepare.receivers = static_cast<int32_t>(parts_.size());
  prepare.sources = static_cast<int32_t>(sources_.size());
  prepare.source = true;
  for (const Source& source : sources_) output.sends.emplace_back(source.id, prepare);
  prepare.source = false;
  for (const auto& [replica_id, part] : parts_) {
    prepare.plan_hash = part.receiver.plan_hash;
    for (const Rank& rank : part.ranks) output.sends.emplace_back(rank.id, prepare);
  }
  return output;
}

AttemptOutput SyncAttempt::OnReport(const MemberId& from, const SyncReport& report, absl::Time now) {
  for (Source& source : sources_) {
    if (source.id == from) return OnSourceReport(source, report, now);
  }
  auto found = parts_.find(from.replica_id);
  if (found == parts_.end() || found->second.ended) return {};
  for (Rank& rank : found->second.ranks) {
    if (rank.id == from) return OnRankReport(found->second, rank, report, now);
  }
  return {};
}

AttemptOutput SyncAttempt::OnSourceReport(Source& source, const SyncReport& report, absl::Time now) {
  if (source.ready || report.stage != SyncStage::kPrepare) return {};
  if (!report.status.ok()) {
    return EndSources(ReasonOf(report.status),
                      absl::StrFormat("source rank %d: %s", source.id.rank, report.status.message()), now);
  }
  source.ready = true;
  source.rendezvous = report.rendezvous;
  AttemptOutput output;
  if (!SourcesReady()) return output;
  for (auto& [replica_id, part] : parts_) output.Append(Advance(part, now));
  return output;
}

AttemptOutput SyncAttempt::OnRankReport(Part& part, Rank& rank, const SyncReport& report, absl::Time now) {
  bool answers = (rank.state == RankState::kPreparing && report.stage == SyncStage::kPrepare) ||
                 (rank.state == RankState::kTransferring && report.stage == SyncStage::kTransfer) ||
                 (rank.state == RankState::kInstalling && report.stage == SyncStage::kInstall);
  if (!answers) return {};
  if (!report.status.ok()) {
    std::string where = rank.id.world == 1 ? "" : absl::StrFormat("rank %d: ", rank.id.rank);
    return End(part, ReasonOf(report.status), absl::StrCat(where, report.status.message()), now);
  }
  switch (report.stage) {
    case SyncStage::kPrepare:
      rank.held = report.already_held;
      rank.state = rank.held ? RankState::kVerified : RankState::kPrepared;
      break;
    case SyncStage::kTransfer:
      rank.state = RankState::kVerified;
      part.bytes += report.bytes;
      part.verify_seconds = std::max(part.verify_seconds, report.verify_seconds);
      break;
    case SyncStage::kInstall:
      rank.state = RankState::kInstalled;
      part.pause_seconds = std::max(part.pause_seconds, report.pause_seconds);
      break;
  }
  return Advance(part, now);
}

AttemptOutput SyncAttempt::EndReceiver(const std::string& replica_id, const std::string& reason,
                                       const std::string& detail, absl::Time now) {
  auto found = parts_.find(replica_id);
  if (found == parts_.end()) return {};
  return End(found->second, reason, detail, now);
}

AttemptOutput SyncAttempt::EndSources(const std::string& reason, const std::string& detail, absl::Time now) {
  AttemptOutput output;
  for (auto& [replica_id, part] : parts_) {
    bool needs_bytes = !AllAt(part, RankState::kVerified) && part.install_sent == absl::InfiniteFuture();
    if (needs_bytes) output.Append(End(part, reason, detail, now));
  }
  return output;
}

AttemptOutput SyncAttempt::Expire(absl::Time now) {
  AttemptOutput output;
  for (auto& [replica_id, part] : parts_) {
    output.Append(End(part, "DEADLINE",
                      absl::StrFormat("not finished within %s", absl::FormatDuration(spec_.deadline - spec_.begun)),
                      now));
  }
  return output;
}

bool SyncAttempt::SourcesReady() const {
  return absl::c_all_of(sources_, [](const Source& source) { return source.ready; });
}

bool SyncAttempt::AllAt(const Part& part, RankState state) {
  return absl::c_all_of(part.ranks, [state](const Rank& rank) { return rank.state == state; });
}

AttemptOutput SyncAttempt::Advance(Part& part, absl::Time now) {
  if (part.ended) return {};
  if (AllAt(part, RankState::kInstalled)) {
    bool moved = absl::c_any_of(part.ranks, [](const Rank& rank) { return !rank.held; });
    return End(part, moved ? "ok" : "relabelled", "", now);
  }
  if (AllAt(part, RankState::kVerified)) return SendInstalls(part, now);
  bool agreed = absl::c_all_of(part.ranks, [](const Rank& rank) {
    return rank.state == RankState::kPrepared || rank.state == RankState::kVerified;
  });
  if (agreed && SourcesReady() && part.transfer_sent == absl::InfiniteFuture()) return SendTransfers(part, now);
  return {};
}

AttemptOutput SyncAttempt::SendTransfers(Part& part, absl::Time now) {
  AttemptOutput output;
  Transfer transfer;
  transfer.attempt = spec_.id;
  transfer.bucket_digests = spec_.version.bucket_digests;
  for (const Source& source : sources_) transfer.rendezvous.push_back(source.rendezvous);
  for (Rank& rank : part.ranks) {
    if (rank.state != RankState::kPrepared) continue;
    rank.state = RankState::kTransferring;
    output.sends.emplace_back(rank.id, transfer);
  }
  part.transfer_sent = now;
  return output;
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

AttemptOutput SyncAttempt::End(Part& part, const std::string& result, const std::string& detail, absl::Time now) {
  if (part.ended) return {};
  part.ended = true;
  --open_parts_;
  AttemptOutput output;
  SyncRecord record = RecordOf(part, now);
  record.result = result;
  record.detail = detail;
  for (const Rank& rank : part.ranks) {
    output.sends.emplace_back(rank.id, Finish{spec_.id, record.ok() ? "" : result});
  }
  if (done()) {
    for (const Source& source : sources_) output.sends.emplace_back(source.id, Finish{spec_.id, ""});
  }
  output.ended.push_back(std::move(record));
  return output;
}

SyncRecord SyncAttempt::RecordOf(const Part& part, absl::Time now) const {
  SyncRecord record;
  record.attempt = spec_.id;
  record.version = spec_.version.version;
  record.replica_id = part.receiver.replica_id;
  record.transport = spec_.transport;
  record.transport_reason = spec_.transport_reason;
  record.bytes = part.bytes;
  record.pause_seconds = part.pause_seconds;
  // A phase ends where the next one began, or now. One that never began has no length at all.
  absl::Time install_begun = std::min(part.install_sent, now);
  absl::Time prepare_ended = std::min(part.transfer_sent, install_begun);
  double receive = absl::ToDoubleSeconds(install_begun - prepare_ended);
  double verify = std::min(part.verify_seconds, receive);
  std::map<std::string, double>& seconds = record.seconds;
  seconds["stage"] = spec_.stage_seconds;
  seconds["prepare"] = absl::ToDoubleSeconds(prepare_ended - spec_.begun);
  seconds["transfer"] = receive - verify;
  seconds["verify"] = verify;
  seconds["install"] = absl::ToDoubleSeconds(now - install_begun);
  seconds["total"] = spec_.stage_seconds + absl::ToDoubleSeconds(now - spec_.begun);
  return record;
}

}  // namespace syncopate::synchronizer
