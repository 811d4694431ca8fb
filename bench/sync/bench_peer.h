#pragma once

#include <memory>

#include "absl/status/status.h"
#include "bench/process/event_sink.h"
#include "bench/sync/peer_device.h"
#include "bench/sync/peer_options.h"

namespace syncopate::bench {

// One process of a benchmark, from its join to its leave: blocks until it is told to quit or standard input ends.
// Writes the event "ready" when it has its weights and has been welcomed. Commands, one JSON object a line, "do" names
// the command:
//   fill {step}          source: makes the weights of that step       answered
//   stage {step}         source: stages them; says "staged" with its digests
//   publish {step, digests, stage_seconds}   source of rank 0: publishes them for all sources
//   strike {stage, signal, after_seconds}   answered; signals itself at that stage of the next sync, saying "struck"
//   reset                forgets what was measured             answered
//   report               what was measured, memory, what it serves   answered
//   verify {step}        receiver: compares samples of what it serves with the weights of that step   answered
//   check                whether its device still computes     answered
//   quit                 leaves
// Errors of the device, the layouts and MemberClient end the process.
absl::Status RunSourcePeer(const PeerOptions& options, PeerDevice* device, EventSink* sink);
absl::Status RunReceiverPeer(const PeerOptions& options, PeerDevice* device, EventSink* sink);

}  // namespace syncopate::bench
