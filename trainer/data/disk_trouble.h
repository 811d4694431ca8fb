#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "trainer/data/explanation.h"

namespace syncopate::trainer {

// Whether the disk of the trainer's log refuses what is to be written down. Plain state: the owner's lock.
class DiskTrouble {
 public:
  // What the log answered to the latest record. CANCELLED is no trouble: it is stopping.
  void Record(const absl::Status& written, absl::Time now);
  bool stands() const { return trouble_.has_value(); }
  // So shortly after a refusal the next answer would meet the same fate: no prompt is leased.
  bool IsFresh(absl::Time now) const;
  // What people are told while it stands.
  void Explain(absl::Time now, Explanation* explanation) const;

 private:
  struct Trouble {
    absl::Status why;
    absl::Time since, last;
  };
  std::optional<Trouble> trouble_;
};

}  // namespace syncopate::trainer
