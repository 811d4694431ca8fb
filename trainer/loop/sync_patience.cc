#include "trainer/loop/sync_patience.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::trainer {

absl::Status SyncPatience::Observe(const Tally& tally, absl::Time now) {
  // Attempts that ended before the first call are not counted, nor those that a restarted synchronizer has forgotten.
  Tally before = std::exchange(last_, tally).value_or(tally);
  if (tally.ok < before.ok || tally.failed < before.failed) before = {};
  if (tally.ok > before.ok || tally.receivers == 0) {
    failing_since_ = absl::InfiniteFuture();
    failures_ = 0;
    return absl::OkStatus();
  }
  if (tally.failed == before.failed) return absl::OkStatus();
  failures_ += tally.failed - before.failed;
  if (failing_since_ == absl::InfiniteFuture()) failing_since_ = now;
  if (now - failing_since_ < give_up_after_) return absl::OkStatus();
  return Error(absl::StatusCode::kUnavailable, "SYNC_FAILING",
               absl::StrCat("no weight sync has succeeded for ",
                            absl::FormatDuration(absl::Trunc(now - failing_since_, absl::Seconds(1))), ", in which ",
                            failures_, " failed (sync.give_up_after)"));
}

}  // namespace syncopate::trainer
