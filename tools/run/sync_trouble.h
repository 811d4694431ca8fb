#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "synchronizer/sync_outcome.h"

namespace syncopate::run {

// Finds rollouters whose weight syncs keep failing, for example because they share a GPU and NCCL needs one each: the
// run waits for them until the trainer gives up. A single failure is ignored: the next version is tried a step later.
// Pure; not thread-safe.
class SyncTrouble {
 public:
  // Records the end of one sync to `replica` at time `at`. `why` is a sentence, for a failed sync.
  void Note(const std::string& replica, synchronizer::SyncOutcome outcome, const std::string& why, absl::Time at);
  // Forgets all other replicas: they have ended, and their successors begin anew.
  void KeepOnly(const std::set<std::string>& replicas);
  // The problem as a sentence; "" while no rollouter has had 3 failures in a row over at least 10 s.
  std::string Alarm() const;

 private:
  struct Failing {
    int64_t in_a_row = 0;
    absl::Time first, last;
    std::string why;  // of the last failure
  };
  std::map<std::string, Failing> failing_;  // keyed by replica
};

}  // namespace syncopate::run
