#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncopate::trainer {

// Decides when weight syncs have failed for so long that the run should end. Sans-IO, not thread-safe.
//
// It measures the time in which attempts end and none succeeds. That time begins with the first attempt that fails and
// ends when one succeeds or when there are no receivers: neither the absence of receivers nor a time without attempts
// is a failure.
class SyncPatience {
 public:
  // Counts that the synchronizer reports.
  struct Tally {
    int64_t ok = 0;  // since it started
    int64_t failed = 0;
    int64_t receivers = 0;  // that are there now
  };

  explicit SyncPatience(absl::Duration give_up_after) : give_up_after_(give_up_after) {}

  // Call regularly with the present counts. UNAVAILABLE (reason SYNC_FAILING) if all attempts have failed for
  // `give_up_after`.
  absl::Status Observe(const Tally& tally, absl::Time now);

  // The time of the first failure since the last success; InfiniteFuture if there is none.
  absl::Time failing_since() const { return failing_since_; }

 private:
  const absl::Duration give_up_after_;
  std::optional<Tally> last_;  // none: nothing was said yet
  absl::Time failing_since_ = absl::InfiniteFuture();
  int64_t failures_ = 0;  // since then
};

}  // namespace syncopate::trainer
