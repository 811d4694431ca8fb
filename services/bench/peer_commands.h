#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "services/bench/event_sink.h"
#include "services/bench/peer_device.h"
#include "services/bench/watched_participant.h"

namespace syncopate::services {

// The commands of one process by name: what each does with its arguments.
using PeerCommand = std::function<absl::Status(const nlohmann::json&)>;
using PeerCommands = std::map<std::string, PeerCommand>;

// Carries out the lines of standard input one after the other until "quit", its end, or an error.
absl::Status RunCommands(const PeerCommands& commands);

// Those that sources and receivers have in common. All are borrowed.
PeerCommands CommonCommands(PeerDevice* device, WatchedParticipant* watched, EventSink* sink);

}  // namespace syncopate::services
