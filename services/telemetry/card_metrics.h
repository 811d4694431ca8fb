#pragma once

#include <prometheus/collectable.h>

#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/daemon/card_account.h"
#include "base/mutex.h"

namespace syncopate::telemetry {

// syncopate_card_memory_bytes{owner}: the memory of the GPU on which this process computes, by owner, in this process's
// view: its own parts by name, its context and libraries, and all other processes as `others`. Of one scrape the samples
// add up exactly to what the driver counted in use at the moment of Update(). Absent before the first Update(), and so
// on the CPU, and while the driver does not answer.
class CardCollector final : public prometheus::Collectable {
 public:
  // Reads the driver and shows the owners from now on; `own` is what this process has now. Call it about once a second.
  // The first of several errors is logged. Thread-safe.
  void Update(const daemon::CardAccount& account, daemon::CardOwners own);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  mutable Mutex mutex_;
  daemon::CardOwners owners_ ABSL_GUARDED_BY(mutex_);
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::telemetry
