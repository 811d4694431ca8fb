#include "rollouter/trajectory/lease_book.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"

namespace syncopate::rollouter {

absl::Status LeaseBook::Options::Validate() const {
  if (max_groups > 0 && samples_per_group > 0 && max_parked >= 0) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               absl::StrCat("LeaseBook: max_groups is ", max_groups, " and samples_per_group ", samples_per_group,
                            "; both must be positive, and max_parked ", max_parked, " not negative"));
}

int64_t LeaseBook::OnConnecting() {
  welcomed_ = false;
  return ++stream_;
}

std::vector<LeaseId> LeaseBook::OnDisconnected() {
  std::vector<LeaseId> lost = GiveUp();
  // The submitted groups may or may not have arrived. The trainer knows, and leases the missing ones again.
  unacknowledged_.clear();
  welcomed_ = false;
  return lost;
}

std::vector<LeaseId> LeaseBook::GiveUp() {
  std::vector<LeaseId> given_up;
  for (const auto& [lease, held] : generating_) {
    given_up.push_back(lease);
    // The capacity of the lease stays occupied until the engine reports its end: credits for it now would double the
    // work.
    ending_[{stream_, lease}] = {.samples = held.samples};
  }
  generating_.clear();
  return given_up;
}

absl::Status LeaseBook::OnLease(const Lease& lease, std::shared_ptr<const TokenCount> made,
                                std::shared_ptr<AnswerReports> reports,
                                std::shared_ptr<const std::atomic<int64_t>> open_calls) {
  if (draining_) {
    return Error(absl::StatusCode::kUnavailable, "DRAINING", "this rollouter is draining; lease the prompt elsewhere");
  }
  if (asleep_) {
    return Error(absl::StatusCode::kUnavailable, "ASLEEP", "this rollouter sleeps; lease the prompt elsewhere");
  }
  Held held{.samples = lease.samples,
            .made = std::move(made),
            .reports = std::move(reports),
            .open_calls = std::move(open_calls)};
  if (!generating_.emplace(lease.id, std::move(held)).second) {
    return Error(absl::StatusCode::kAlreadyExists, reason::kLeaseHeld,
                 absl::StrCat("attempt ", lease.id.attempt, " of group ", lease.id.group.ToString(),
                              " is being generated already"));
  }
  samples_ += lease.samples;
  return absl::OkStatus();
}

bool LeaseBook::OnScoring(int64_t stream, const LeaseId& lease) {
  auto held = generating_.find(lease);
  if (stream != stream_ || held == generating_.end()) return false;
  held->second.scoring = true;
  return true;
}

LeaseBook::Ended LeaseBook::OnEnded(int64_t stream, const LeaseId& lease, bool submitted) {
  if (auto ending = ending_.extract({stream, lease})) {
    samples_ -= ending.mapped().samples;
    return ending.mapped().revoked && stream == stream_ ? Ended::kRevoked : Ended::kGivenUp;
  }
  auto held = generating_.find(lease);
  if (stream != stream_ || held == generating_.end()) return Ended::kGivenUp;
  samples_ -= held->second.samples;
  generating_.erase(held);
  if (submitted) unacknowledged_.insert(lease);
  return Ended::kHeld;
}

bool LeaseBook::OnRevoke(const LeaseId& lease) {
  unacknowledged_.erase(lease);  // revoked while its answer was in transit: no acknowledgement will come
  auto held = generating_.extract(lease);
  if (!held) return false;
  ending_[{stream_, lease}] = {.samples = held.mapped().samples, .revoked = true};
  return true;
}

std::vector<LeaseId> LeaseBook::TakeProgress(int64_t engine_tokens) {
  const bool works = engine_tokens > std::exchange(engine_tokens_, engine_tokens);
  std::vector<LeaseId> further;
  for (auto& [lease, held] : generating_) {
    const int64_t made = held.made->load(std::memory_order_relaxed);
    const bool waits = made == 0;
    const bool plays = held.open_calls != nullptr && held.open_calls->load(std::memory_order_relaxed) > 0;
    if (held.scoring || plays || (waits ? works : made > held.reported)) further.push_back(lease);
    held.reported = made;
  }
  return further;
}

std::vector<std::pair<LeaseId, AnswerPart>> LeaseBook::TakeParts(int64_t least) {
  std::vector<std::pair<LeaseId, AnswerPart>> parts;
  for (auto& [lease, held] : generating_) {
    if (held.reports == nullptr) continue;
    for (AnswerPart& part : held.reports->Take(least)) parts.emplace_back(lease, std::move(part));
  }
  return parts;
}

int32_t LeaseBook::Credits() const {
  if (draining_ || paused_ || asleep_ || yielded_ || scorer_away_) return 0;
  // The unit is samples, not groups: an evaluation lease has one sample, and the engine's slots are the scarce
  // resource.
  const int64_t busy = samples_ - std::min({parked_, options_.max_parked, samples_});
  int64_t room = (options_.max_groups * options_.samples_per_group - busy) / options_.samples_per_group;
  return static_cast<int32_t>(std::clamp<int64_t>(room, 0, std::numeric_limits<int32_t>::max()));
}

}  // namespace syncopate::rollouter
