#include "rollouter/trajectory/lease_book.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {

absl::Status LeaseBook::Options::Validate() const {
  if (max_groups > 0 && samples_per_group > 0) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTION",
               absl::StrCat("LeaseBook: max_groups is ", max_groups, " and samples_per_group ", samples_per_group,
                            "; both must be positive"));
}

int64_t LeaseBook::OnConnecting() {
  welcomed_ = false;
  return ++stream_;
}

std::vector<LeaseId> LeaseBook::OnDisconnected() {
  std::vector<LeaseId> lost = GiveUp();
  unacknowledged_.clear();
  welcomed_ = false;
  return lost;
}

std::vector<LeaseId> LeaseBook::GiveUp() {
  std::vector<LeaseId> given_up;
  for (const auto& [lease, samples] : generating_) given_up.push_back(lease);
  generating_.clear();
  samples_ = 0;
  return given_up;
}

absl::Status LeaseBook::OnLease(const Lease& lease) {
  if (draining_) {
    return Error(absl::StatusCode::kUnavailable, "DRAINING", "this rollouter is draining; lease the prompt elsewhere");
  }
  if (!generating_.emplace(lease.id, lease.samples).second) {
    return Error(absl::StatusCode::kAlreadyExists, "LEASE_HELD",
                 absl::StrCat("attempt ", lease.id.attempt, " of group ", lease.id.group.ToString(),
                              " is being generated already"));
  }
  samples_ += lease.samples;
  return absl::OkStatus();
}

bool LeaseBook::OnGenerated(int64_t stream, const LeaseId& lease, bool submitted) {
  if (stream != stream_) return false;
  auto held = generating_.find(lease);
  if (held == generating_.end()) return false;
  samples_ -= held->second;
  generating_.erase(held);
  if (submitted) unacknowledged_.insert(lease);
  return true;
}

bool LeaseBook::OnRevoke(const LeaseId& lease) {
  unacknowledged_.erase(lease);
  auto held = generating_.find(lease);
  if (held == generating_.end()) return false;
  samples_ -= held->second;
  generating_.erase(held);
  return true;
}

int32_t LeaseBook::Credits() const {
  if (draining_) return 0;
  int64_t room = (options_.max_groups * options_.samples_per_group - samples_) / options_.samples_per_group;
  return static_cast<int32_t>(std::clamp<int64_t>(room, 0, std::numeric_limits<int32_t>::max()));
}

}  // namespace syncopate::rollouter
