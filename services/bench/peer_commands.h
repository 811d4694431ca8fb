#pragma once

#include "services/bench/command_lines.h"
#include "services/bench/event_sink.h"
#include "services/bench/peer_device.h"
#include "services/bench/watched_participant.h"

namespace syncopate::services {

// Those that sources and receivers have in common. All are borrowed.
PeerCommands CommonCommands(PeerDevice* device, WatchedParticipant* watched, EventSink* sink);

}  // namespace syncopate::services
