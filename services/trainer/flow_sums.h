#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/trainer/rollout_roster.h"
#include "services/trainer/run_reporter.h"
#include "services/trainer/training_data.h"

namespace syncopate::trainerd {

// What passes in a run and is in no log: time, and answers that came to nothing. Of all lives of its trainer, as far as
// they have written it down: each does so once a second.
struct FlowSums {
  double wall_seconds = 0;
  RunReporter::Figures figures = {};
  int64_t reissued = 0;
  int64_t failed = 0;
  int64_t duplicate = 0;
  int64_t expired = 0;
  std::map<std::string, int64_t> invalid = {};  // by reason
  RolloutRoster roster = {};
};

// `before` and what a life has added to it. `roster` went on from that of `before`.
FlowSums AddLife(FlowSums before, double wall_seconds, const RunReporter::Figures& figures,
                 const TrainingData::Status& data, RolloutRoster roster);

// As bytes (FlowSums of proto/syncopate/v1/records.proto). Decoding trusts nothing: DATA_LOSS (reason BAD_FLOW).
std::string EncodeFlowSums(const FlowSums& sums);
absl::StatusOr<FlowSums> DecodeFlowSums(absl::string_view bytes);

}  // namespace syncopate::trainerd
