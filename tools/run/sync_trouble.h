#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "synchronizer/sync_outcome.h"

namespace syncopate::run {

// Finds rollouters whose weight syncs keep failing, say because they share a GPU that NCCL wants for one: the run waits
// for them until the trainer gives up. One failure is nothing: the next version is tried a step later. Pure; not thread-safe.
class SyncTrouble {
 public:
  // One sync to `replica` has ended so at `at`. `why` is a sentence, for one that failed.
  void Note(const std::string& replica, synchronizer::SyncOutcome outcome, const std::string& why, absl::Time at);
  // Forgets all others: they have ended, and whoever takes their place begins anew.
  void KeepOnly(const std::set<std::string>& replicas);
  // A sentence, "" while no rollouter has had 3 failures in a row over 10 s or longer.
  std::string Alarm() const;

 private:
  struct Failing {
    int64_t in_a_row = 0;
    absl::Time first, last;
    std::string why;  // the last
  };
  std::map<std::string, Failing> failing_;  // by replica
};

}  // namespace syncopate::run
