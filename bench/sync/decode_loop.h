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

// Repeats a step, as an engine decodes, and records when each step ran, so that the cost of a weight sync for
// generation can be computed. Thread-safe.
class DecodeLoop {
 public:
  // `step` blocks until the step is done. Null: the loop never runs.
  explicit DecodeLoop(std::function<absl::Status()> step);
  ~DecodeLoop();
  DecodeLoop(const DecodeLoop&) = delete;
  DecodeLoop& operator=(const DecodeLoop&) = delete;

  // Returns between two steps; no step begins until Release. Holds nest. DEADLINE_EXCEEDED reason DEADLINE if the
  // running step does not end; then the hold is not taken.
  absl::Status Hold(absl::Duration deadline);
  // Returns for how long no step ran because of the hold.
  absl::Duration Release();

  // Runs `action` between two steps, and returns for how many seconds no step could run. Errors of `action` and of
  // Hold.
  absl::StatusOr<double> Between(const std::function<absl::Status()>& action, absl::Duration deadline);

  using Window = std::pair<absl::Time, absl::Time>;
  // The number of steps within the windows; a step at an edge counts in part. Steps before the last Forget, and all but
  // the last million, are forgotten.
  double StepsWithin(const std::vector<Window>& windows) const;
  // The longest time between the ends of two steps.
  absl::Duration LongestGap() const;
  void Forget();
  // Why the loop has ended; OK while it runs.
  absl::Status status() const;

 private:
  static constexpr size_t kKept = 1 << 20;
  void Run();

  const std::function<absl::Status()> step_;
  mutable Mutex mutex_;
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time idle_since_ ABSL_GUARDED_BY(mutex_);  // the end of the last step, or the beginning of the hold
  std::deque<Window> steps_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the other members
};

}  // namespace syncopate::bench
