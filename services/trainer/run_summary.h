#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "services/auth/transport_security.h"
#include "synchronizer/loop/sync_tally.h"
#include "syncopate/v1/rollout.pb.h"
#include "syncopate/v1/synchronizer.pb.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/flow_sums.h"

namespace syncopate::trainerd {

// What the other daemons know of the run at its end.
struct RunWitnesses {
  synchronizer::SyncTally syncs = {};                                // of the whole run
  std::vector<v1::RolloutServiceGetStatusResponse> rollouters = {};  // those that answered
};

// Asks the synchronizer for its count of syncs and its members, then all live rollouters at once for their status. Who
// does not answer within a second is left out and said in the log: a summary must not hang on a dead peer. Blocks for
// at most three seconds; not from a gRPC callback.
RunWitnesses AskWitnesses(const std::string& synchronizer_address,
                          const std::shared_ptr<const auth::TransportSecurity>& security);

// summary.json, of the whole run. What rollouters did that are gone, or do not answer, is taken from what they said
// last.
struct SummaryInput {
  std::string status;  // "completed", "stopped" or "failed"
  trainer::TrainingData::Status data = {};
  trainer::FlowSums flow = {};
};
nlohmann::json MakeSummary(const SummaryInput& input, const RunWitnesses& witnesses);

}  // namespace syncopate::trainerd
