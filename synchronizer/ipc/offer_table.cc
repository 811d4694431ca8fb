#include "synchronizer/ipc/offer_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/superseded.h"

namespace syncopate::synchronizer::ipc {
namespace {

absl::Status Superseded() { return SupersededError("the memory was taken for a newer version"); }

absl::Status AttemptEnded(int64_t attempt) {
  return Error(absl::StatusCode::kUnavailable, "PEER_LOST",
               absl::StrFormat("the sender has ended attempt %d", attempt));
}

}  // namespace

OfferTable::Actions OfferTable::Add(Offer offer) {
  SYNCOPATE_CHECK(offer.memory != nullptr && offer.memory->handles.size() <= kMaxHandles);
  int64_t attempt = offer.attempt;
  auto known = offers_.find(attempt);
  // A repeated command repeats the offer; its readers must not be refused.
  bool same = known != offers_.end() && known->second.memory->info.id == offer.memory->info.id &&
              known->second.version == offer.version;
  if (same) return {};
  Actions actions = Drop(attempt, Superseded());
  offers_[attempt] = std::move(offer);
  return actions;
}

OfferTable::Actions OfferTable::Advance(int64_t attempt, int32_t source, int64_t bytes) {
  auto found = offers_.find(attempt);
  if (found == offers_.end()) return {};
  Offer& offer = found->second;
  if (source < 0 || source >= static_cast<int32_t>(offer.progress.size())) return {};
  offer.progress[source] = std::max(offer.progress[source], bytes);
  return GetProgress(offer);
}

OfferTable::Actions OfferTable::Complete(int64_t attempt) {
  auto found = offers_.find(attempt);
  if (found != offers_.end()) found->second.complete = true;
  return {};  // the last Advance has told the readers
}

OfferTable::Actions OfferTable::Withdraw(int64_t attempt, const absl::Status& why) {
  if (offers_.contains(attempt)) withdrawn_[attempt] = why;
  // The lowest attempt is the oldest.
  if (withdrawn_.size() > kWithdrawnKept) withdrawn_.erase(withdrawn_.begin());
  return Drop(attempt, why);
}

OfferTable::Actions OfferTable::Drop(int64_t attempt, const absl::Status& why) {
  auto found = offers_.find(attempt);
  if (found == offers_.end()) return {};
  Actions actions = SendToReaders(attempt, GetRefusal(attempt, why));
  offers_.erase(found);
  std::erase_if(reading_, [attempt](const auto& entry) { return entry.second.attempt == attempt; });
  return actions;
}

OfferTable::Actions OfferTable::Retire(int64_t attempt) {
  auto found = offers_.find(attempt);
  if (found == offers_.end()) return {};
  // A complete offer stays: a slower replica of the same attempt may still read it. Its memory is taken back only when
  // a newer version needs it.
  return found->second.complete ? Actions{} : Drop(attempt, AttemptEnded(attempt));
}

OfferTable::Actions OfferTable::Reclaim(uint64_t memory_id, const PolicyVersion& version) {
  std::vector<int64_t> attempts;
  for (const auto& [attempt, offer] : offers_) {
    if (offer.memory->info.id == memory_id) attempts.push_back(attempt);
  }
  Actions actions;
  for (int64_t attempt : attempts) {
    // If the memory is reused for the same version, readers ask again in the new attempt. If it is reused for a newer
    // one, later readers must be told why this version is gone.
    const bool newer = offers_.at(attempt).version < version;
    std::ranges::move(newer ? Withdraw(attempt, Superseded()) : Drop(attempt, Superseded()),
                      std::back_inserter(actions));
  }
  return actions;
}

absl::StatusOr<OfferTable::Actions> OfferTable::OnMessage(SessionId session, const Message& message) {
  if (const auto* want = std::get_if<Want>(&message)) return OnWant(session, *want);
  if (const auto* release = std::get_if<Release>(&message)) {
    auto found = reading_.find(session);
    if (found != reading_.end() && found->second.attempt == release->attempt) reading_.erase(found);
    return Actions{};
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", "a downstream may only ask and release");
}

void OfferTable::OnGone(SessionId session) { reading_.erase(session); }

OfferTable::Actions OfferTable::OnWant(SessionId session, const Want& want) {
  reading_.erase(session);  // a session has one grant at a time
  absl::Status good = Check(session, want);
  if (!good.ok()) return {{session, GetRefusal(want.attempt, good), nullptr}};
  const Offer& offer = offers_.at(want.attempt);
  reading_[session] = {want.attempt, want.borrower};
  // Descriptors are scarce, so they are sent only to a reader that has not mapped this memory.
  bool with_handles = want.mapped_memory != offer.memory->info.id;
  Grant grant{want.attempt, offer.memory->info, offer.complete, offer.progress, with_handles};
  return {{session, std::move(grant), with_handles ? offer.memory : nullptr}};
}

bool OfferTable::IsOnLoan(SessionId session, const Want& want) const {
  return std::ranges::any_of(reading_, [session, &want](const auto& entry) {
    const auto& [other, reading] = entry;
    const bool is_other_process = reading.borrower == 0 || reading.borrower != want.borrower;
    return other != session && reading.attempt == want.attempt && is_other_process;
  });
}

absl::Status OfferTable::Check(SessionId session, const Want& want) const {
  auto found = offers_.find(want.attempt);
  if (found == offers_.end()) {
    auto ended = withdrawn_.find(want.attempt);
    return ended == withdrawn_.end() ? AttemptEnded(want.attempt) : ended->second;
  }
  const Offer& offer = found->second;
  if (offer.fingerprint != want.fingerprint) {
    return Error(absl::StatusCode::kFailedPrecondition, reason::kModelMismatch, "the source stages another model");
  }
  if (offer.version != want.version) {
    return Error(absl::StatusCode::kNotFound, kVersionNotStaged,
                 absl::StrFormat("attempt %d is of version %s, not %s", want.attempt, offer.version.ToString(),
                                 want.version.ToString()));
  }
  const std::string& gpu = offer.memory->info.device;
  const std::string device = gpu.empty() ? kHostMemory : gpu;
  if (!want.device.empty() && want.device != device) {
    return Error(absl::StatusCode::kFailedPrecondition, "OTHER_DEVICE",
                 absl::StrFormat("the memory is of %s, and not of %s", device, want.device));
  }
  if (offer.exclusive && IsOnLoan(session, want)) {
    return Error(absl::StatusCode::kUnavailable, "ON_LOAN",
                 "another process has the memory on loan, and one at a time may write to it");
  }
  return absl::OkStatus();
}

int64_t OfferTable::readers(int64_t attempt) const {
  return std::ranges::count_if(reading_, [attempt](const auto& entry) { return entry.second.attempt == attempt; });
}

OfferTable::Actions OfferTable::SendToReaders(int64_t attempt, const Message& message) const {
  Actions actions;
  for (const auto& [session, reads] : reading_) {
    if (reads.attempt == attempt) actions.push_back({session, message, nullptr});
  }
  return actions;
}

OfferTable::Actions OfferTable::GetProgress(const Offer& offer) const {
  return SendToReaders(offer.attempt, Progress{offer.attempt, offer.progress});
}

}  // namespace syncopate::synchronizer::ipc
