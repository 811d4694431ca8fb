#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "trainer/data/explanation.h"

namespace syncopate::trainer {

// Remembers whether the disk of the trainer's log refuses writes. Plain state: the owner's lock guards it.
class DiskTrouble {
 public:
  // Records the log's result for the latest record. OK ends the trouble; CANCELLED changes nothing: the log is
  // stopping.
  void Record(const absl::Status& written, absl::Time now);
  bool stands() const { return trouble_.has_value(); }
  // True for 1 s after a refused write. No prompt is leased meanwhile, because the disk would probably refuse its
  // answer too.
  bool IsFresh(absl::Time now) const;
  // Fills in what the status shows during the trouble. Call only while stands().
  void Explain(absl::Time now, Explanation* explanation) const;

 private:
  struct Trouble {
    absl::Status why;
    absl::Time since, last;
  };
  std::optional<Trouble> trouble_;
};

}  // namespace syncopate::trainer
