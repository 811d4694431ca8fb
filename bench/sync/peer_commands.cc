#include "bench/sync/peer_commands.h"

#include <utility>

#include "base/status.h"
#include "bench/process/json_fields.h"
#include "bench/sync/bench_model.h"
#include "synchronizer/plan/layout_text.h"

namespace syncopate::bench {

using nlohmann::json;

absl::StatusOr<PeerPlan> MakePeerPlan(const PeerOptions& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest, BenchManifest(options.model));
  SYNCOPATE_ASSIGN_OR_RETURN(auto source, synchronizer::BuildLayout(manifest, options.source_layout));
  SYNCOPATE_ASSIGN_OR_RETURN(auto receiver, synchronizer::BuildLayout(manifest, options.receiver_layout));
  SYNCOPATE_ASSIGN_OR_RETURN(auto plan, synchronizer::SyncPlan::Create(manifest, source, receiver));
  return PeerPlan{std::move(manifest), std::move(source), std::move(receiver), std::move(plan)};
}

PeerCommands CommonCommands(PeerDevice* device, WatchedParticipant* watched, EventSink* sink) {
  PeerCommands commands;
  commands["strike"] = [watched, sink](const json& arguments) {
    watched->Arm({TextIn(arguments, "stage"), static_cast<int>(IntegerIn(arguments, "signal")),
                  absl::Seconds(NumberIn(arguments, "after_seconds"))});
    sink->Write("answer");
    return absl::OkStatus();
  };
  commands["check"] = [device, sink](const json&) {
    const absl::Status health = device->CheckHealthy();
    sink->Write("answer", {{"healthy", health.ok()}, {"error", std::string(health.message())}});
    return absl::OkStatus();
  };
  return commands;
}

}  // namespace syncopate::bench
