#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncopate::trainer {

// Whether weight syncs have failed for so long that nothing can be expected of going on. Sans-IO, not thread-safe.
//
// What counts is a time in which attempts end and none of them succeeds. It begins with the first that fails, and is
// over when one succeeds or when there are no receivers: no receivers is no failure, and neither is a time in which
// nothing is sent.
class SyncPatience {
 public:
  // Counts that the synchronizer reports.
  struct Tally {
    int64_t ok = 0;  // since it started
    int64_t failed = 0;
    int64_t receivers = 0;  // that are there now
  };

  explicit SyncPatience(absl::Duration give_up_after) : give_up_after_(give_up_after) {}

  // Tell it what is so, again and again. UNAVAILABLE (reason SYNC_FAILING): an attempt has failed, and so have all for
  // `give_up_after`.
  absl::Status Observe(const Tally& tally, absl::Time now);

  // Since when attempts have failed; infinite: the last one did not, or there was none.
  absl::Time failing_since() const { return failing_since_; }

 private:
  const absl::Duration give_up_after_;
  std::optional<Tally> last_;  // none: nothing was said yet
  absl::Time failing_since_ = absl::InfiniteFuture();
  int64_t failures_ = 0;  // since then
};

}  // namespace syncopate::trainer
