#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace syncopate::synchronizer {

// When a synchronizer that ends with its run may go: once every member has gone, but not before those whose streams
// were broken have had the time to come back and hear of it, and at the latest when they had the time to stop. One that
// was started on a run that is complete already waits longer, for a trainer that continues it. Sans-IO, not
// thread-safe.
class CompletionLinger {
 public:
  struct Options {
    absl::Duration shortest = absl::Seconds(5);       // members rejoin within this
    absl::Duration longest = absl::Seconds(10);       // from completion to the end, whoever is still there
    absl::Duration after_restart = absl::Minutes(2);  // instead of both, if it was complete when this began
  };

  CompletionLinger(const Options& options, bool completed_at_start)
      : options_(options), completed_at_start_(completed_at_start) {}

  // Tell it what is so, again and again; true: the process may end.
  bool MayEnd(bool completed, int64_t members, absl::Time now) {
    if (!completed) {
      completed_at_start_ = false;  // a trainer has taken it up again
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
  absl::Time since_ = absl::InfiniteFuture();  // it is complete; infinite: it is not
};

}  // namespace syncopate::synchronizer
