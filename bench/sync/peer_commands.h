#pragma once

#include "bench/process/command_lines.h"
#include "bench/process/event_sink.h"
#include "bench/sync/peer_device.h"
#include "bench/sync/watched_participant.h"

namespace syncopate::bench {

// The commands that sources and receivers share. All arguments are borrowed.
PeerCommands CommonCommands(PeerDevice* device, WatchedParticipant* watched, EventSink* sink);

}  // namespace syncopate::bench
