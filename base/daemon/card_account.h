#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/status.h"

namespace syncopate::daemon {

// A GPU's memory in bytes, as its driver counts it: that of all processes.
struct CardReading {
  int64_t total = 0;
  int64_t used = 0;
};
// Reads one GPU now. Thread-safe; takes at most milliseconds.
using CardReader = std::function<absl::StatusOr<CardReading>()>;

// Bytes of a GPU's memory by the name of their owner.
using CardOwners = std::vector<std::pair<std::string, int64_t>>;
int64_t SumOwners(const CardOwners& owners);

inline constexpr char kContextOwner[] = "context and libraries";
inline constexpr char kOtherOwners[] = "others";

// Says who owns the memory of a GPU, in the view of one process. A process knows what it allocates ("own" below); what
// its CUDA context and libraries take (kernels, graphs, handles) no call tells, so that it is measured: by what the
// driver counts before and after, less what the process has allocated meanwhile. Memory that another process takes or
// frees during a measurement would be counted too, so that a measurement is made while others are still.
//
// No CUDA here: the driver is behind CardReader. Thread-safe.
class CardAccount {
 public:
  explicit CardAccount(CardReader read) : read_(std::move(read)) {}

  // Begins a measurement; the process has allocated `own` bytes. `exclusive` is kept until the measurement ends: a lock
  // that keeps other processes still, or null. The reader's errors; no measurement has begun then.
  absl::Status Begin(int64_t own, std::shared_ptr<const void> exclusive = nullptr);
  // Ends the measurement that has begun; without one it does nothing. The first measurement, which begins before the
  // process uses the GPU, gives what context and libraries take. Of later ones the largest growth is added, once: a
  // step loads what it needs when it is made first, and rounding must not add up over many. The reader's errors; the
  // measurement has no effect then.
  absl::Status End(int64_t own);
  int64_t context_bytes() const;

  // `own`, then kContextOwner, then kOtherOwners: what the driver counts in use now, less all of the former. Their sum
  // is what the driver counts, exactly; so kOtherOwners is below 0 where `own` is not of the moment of the reading, or
  // is more than the process has. The reader's errors.
  absl::StatusOr<CardOwners> List(CardOwners own) const;

 private:
  int64_t ContextBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return first_.value_or(0) + growth_; }

  const CardReader read_;
  mutable Mutex mutex_;
  std::optional<int64_t> begun_ ABSL_GUARDED_BY(mutex_);  // in use that `own` did not explain, at Begin()
  std::shared_ptr<const void> exclusive_ ABSL_GUARDED_BY(mutex_);
  std::optional<int64_t> first_ ABSL_GUARDED_BY(mutex_);
  int64_t growth_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Ends the measurement of `card`, and logs its result, or its error, after which the former result stands.
void EndMeasurement(CardAccount* card, int64_t own);

}  // namespace syncopate::daemon
