#include "tools/run/sync_trouble.h"

#include "absl/strings/str_cat.h"

namespace syncopate::run {
namespace {

using synchronizer::SyncOutcome;

// A rollouter that has died fails a sync or two before it counts as dead.
constexpr int64_t kInARow = 3;
constexpr absl::Duration kFor = absl::Seconds(10);

}  // namespace

void SyncTrouble::Note(const std::string& replica, SyncOutcome outcome, const std::string& why, absl::Time at) {
  if (outcome == SyncOutcome::kDone || outcome == SyncOutcome::kRelabelled) failing_.erase(replica);
  if (outcome != SyncOutcome::kFailed) return;
  Failing& failing = failing_[replica];
  if (failing.in_a_row++ == 0) failing.first = at;
  failing.last = at;
  failing.why = why;
}

void SyncTrouble::KeepOnly(const std::set<std::string>& replicas) {
  std::erase_if(failing_, [&](const auto& entry) { return !replicas.contains(entry.first); });
}

std::string SyncTrouble::Alarm() const {
  for (const auto& [replica, failing] : failing_) {
    if (failing.in_a_row < kInARow || failing.last - failing.first < kFor) continue;
    return absl::StrCat(replica, " gets no new weights: ", failing.in_a_row,
                        " weight syncs in a row have failed, the last with ", failing.why);
  }
  return "";
}

}  // namespace syncopate::run
