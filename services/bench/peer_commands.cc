#include "services/bench/peer_commands.h"

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "services/bench/bench_model.h"
#include "services/bench/json_fields.h"
#include "synchronizer/plan/layout_text.h"

namespace syncopate::services {

using nlohmann::json;

absl::StatusOr<PeerPlan> MakePeerPlan(const PeerOptions& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest, BenchManifest(options.model));
  SYNCOPATE_ASSIGN_OR_RETURN(auto source, synchronizer::BuildLayout(manifest, options.source_layout));
  SYNCOPATE_ASSIGN_OR_RETURN(auto receiver, synchronizer::BuildLayout(manifest, options.receiver_layout));
  SYNCOPATE_ASSIGN_OR_RETURN(auto plan, synchronizer::SyncPlan::Create(manifest, source, receiver));
  return PeerPlan{std::move(manifest), std::move(source), std::move(receiver), std::move(plan)};
}

absl::Status RunCommands(const PeerCommands& commands) {
  for (std::string line; std::getline(std::cin, line);) {
    const json arguments = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string name = arguments.is_object() ? TextIn(arguments, "do") : "";
    if (name == "quit") return absl::OkStatus();
    auto command = commands.find(name);
    if (command == commands.end()) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_COMMAND", absl::StrCat("no such command: ", line));
    }
    SYNCOPATE_RETURN_IF_ERROR(Annotate(command->second(arguments), name));
  }
  return absl::OkStatus();
}

PeerCommands CommonCommands(PeerDevice* device, WatchedParticipant* watched, EventSink* sink) {
  PeerCommands commands;
  commands["strike"] = [watched, sink](const json& arguments) {
    watched->Arm({TextIn(arguments, "stage"), static_cast<int>(IntegerIn(arguments, "signal")),
                  absl::Seconds(NumberIn(arguments, "after_seconds"))});
    sink->Say("answer");
    return absl::OkStatus();
  };
  commands["check"] = [device, sink](const json&) {
    const absl::Status health = device->CheckHealthy();
    sink->Say("answer", {{"healthy", health.ok()}, {"error", std::string(health.message())}});
    return absl::OkStatus();
  };
  return commands;
}

}  // namespace syncopate::services
