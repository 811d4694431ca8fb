#pragma once

#include "bench/process/command_lines.h"
#include "bench/process/event_sink.h"
#include "bench/sync/peer_device.h"
#include "bench/sync/watched_participant.h"

namespace syncopate::bench {

// Those that sources and receivers have in common. All are borrowed.
PeerCommands CommonCommands(PeerDevice* device, WatchedParticipant* watched, EventSink* sink);

}  // namespace syncopate::bench
