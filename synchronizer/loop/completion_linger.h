#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace syncopate::synchronizer {

// Decides when a synchronizer that ends with its run may end: once every member has gone, but not before members with
// broken streams have had the time to reconnect and learn of the completion; in any case after `longest`. A
// synchronizer that was started on a completed run waits longer, for a trainer that continues the run. Sans-IO, not
// thread-safe.
class CompletionLinger {
 public:
  struct Options {
    absl::Duration shortest = absl::Seconds(5);       // members rejoin within this time
    absl::Duration longest = absl::Seconds(10);       // from completion to the end, even if members remain
    absl::Duration after_restart = absl::Minutes(2);  // replaces both if the run was complete at the start
  };

  CompletionLinger(const Options& options, bool completed_at_start)
      : options_(options), completed_at_start_(completed_at_start) {}

  // Call again and again with the present state. True: the process may end.
  bool MayEnd(bool completed, int64_t members, absl::Time now) {
    if (!completed) {
      completed_at_start_ = false;  // a trainer continues the run
      since_ = absl::InfiniteFuture();
      return false;
    }
    if (since_ == absl::InfiniteFuture()) since_ = now;
    const absl::Duration waited = now - since_;
    if (completed_at_start_) return waited >= options_.after_restart;
    return waited >= (members == 0 ? options_.shortest : options_.longest);
  }

 private:
  const Options options_;
  bool completed_at_start_;
  absl::Time since_ = absl::InfiniteFuture();  // when the run became complete; infinite: it is not
};

}  // namespace syncopate::synchronizer
