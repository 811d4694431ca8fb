#pragma once

#include "absl/status/status.h"
#include "bench/control/data_peer_options.h"
#include "bench/process/event_sink.h"

namespace syncopate::bench {

// The trainer's data service without a policy: the daemon's own TrajectoryService, ledger and log on disk, with a step
// that takes each batch, durably, and drops it. Writes the event "ready" with its "address", and serves until it is
// told to quit or standard input ends. Blocks.
absl::Status RunDataPeer(const DataPeerOptions& options, EventSink* sink);

}  // namespace syncopate::bench
