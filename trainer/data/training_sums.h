#pragma once

#include <cstdint>

#include "trainer/data/staleness_tally.h"

namespace syncopate::trainer {

// What a run has done with its groups since it began, over all incarnations of its trainer: part of a checkpoint, and
// what the log says after it is added, so that a resumed run has the sums of one that was never killed.
struct TrainingSums {
  int64_t accepted = 0;           // groups made durable, those that were filtered included
  int64_t filtered = 0;           // no signal, replaced
  int64_t dropped_stale = 0;      // restored, and too old to be trained in time
  int64_t rolled_back = 0;        // made by versions that a restore undid
  int64_t trained = 0;            // in durable takes
  int64_t trained_samples = 0;    // answers in those groups; a run that an older build began counts them from then on
  int64_t supervised_tokens = 0;  // of answers of the data, which have no staleness
  int64_t skipped = 0;            // rows that were no prompts
  int64_t failed = 0;             // groups given up, as too many attempts at them had failed
  int64_t past_deadline = 0;      // groups dropped, as they kept a full batch from being taken
  StalenessTally staleness = {};  // of their tokens
  uint64_t counted_to = 0;  // number of the newest log record that the counts of drops and accepted groups include

  // Tokens of all answers that were trained on, supervised ones included.
  int64_t trained_tokens() const { return staleness.total_tokens() + supervised_tokens; }
  friend bool operator==(const TrainingSums&, const TrainingSums&) = default;
};

}  // namespace syncopate::trainer
