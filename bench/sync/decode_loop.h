#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate::bench {

// Runs a step over and over, as an engine decodes, and knows when each one ran: so one can say what a weight sync costs
// whoever generates. Thread-safe.
class DecodeLoop {
 public:
  // `step` blocks until the step is done. A loop without a step stands still.
  explicit DecodeLoop(std::function<absl::Status()> step);
  ~DecodeLoop();
  DecodeLoop(const DecodeLoop&) = delete;
  DecodeLoop& operator=(const DecodeLoop&) = delete;

  // Returns between two steps, and none begins until Release; holds nest. DEADLINE_EXCEEDED reason DEADLINE if the step
  // under way does not end; then nothing is held.
  absl::Status Hold(absl::Duration deadline);
  // For how long no step ran because of the hold.
  absl::Duration Release();

  // Runs `action` between two steps, and returns for how long no step could run. What `action` says, or Hold.
  absl::StatusOr<double> Between(const std::function<absl::Status()>& action, absl::Duration deadline);

  using Window = std::pair<absl::Time, absl::Time>;
  // Steps within the windows, those at the edges in part. Steps older than the last Forget, or than the last million,
  // are not known any more.
  double StepsWithin(const std::vector<Window>& windows) const;
  // The longest time between the ends of two steps.
  absl::Duration LongestGap() const;
  void Forget();
  // Why it does not run any more.
  absl::Status status() const;

 private:
  static constexpr size_t kKept = 1 << 20;
  void Run();

  const std::function<absl::Status()> step_;
  mutable Mutex mutex_;
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time idle_since_ ABSL_GUARDED_BY(mutex_);  // the end of the last step, or the begin of the hold
  std::deque<Window> steps_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the rest
};

}  // namespace syncopate::bench
