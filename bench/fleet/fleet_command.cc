#include "bench/fleet/fleet_command.h"

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "bench/fleet/fleet_world.h"
#include "bench/process/bench_report.h"
#include "bench/sync/bench_model.h"
#include "model/presets.h"
#include "synchronizer/nccl/group_plan.h"

namespace syncopate::bench {
namespace {

constexpr char kFleetFooter[] =
    "The real plan and the real decisions of the synchronizer, among members that do at once what they are told. No "
    "byte of weights moves, no process starts and no member waits, so that any number of replicas fits on one core. "
    "Exit "
    "codes: 0 measured, and every replica serves the version; 1 something failed; 2 there is no such case.";

struct FleetArguments {
  std::string model = "qwen2.5-7b";
  std::vector<int32_t> replicas = {64};
  FleetCase fleet;
  bool json = false;
};

nlohmann::json ToJson(const FleetArguments& arguments, const FleetCase& fleet, const FleetFigures& figures) {
  nlohmann::json line = {{"model", arguments.model},
                         {"trainer_ranks", fleet.trainer_ranks},
                         {"replicas", fleet.replicas},
                         {"tensor_parallel", fleet.tensor_parallel},
                         {"transport", fleet.transport},
                         {"source_layout", fleet.source_layout},
                         {"layout_ms", figures.layout_seconds * 1e3},
                         {"plan_ms", figures.plan_seconds * 1e3},
                         {"plan_copies", figures.plan_copies},
                         {"plan_buckets", figures.plan_buckets},
                         {"join_ms", figures.join_seconds * 1e3},
                         {"sync_ms", figures.publish_seconds * 1e3},
                         {"commands", figures.commands},
                         {"command_bytes", figures.command_bytes},
                         {"largest_command_bytes", figures.largest_command_bytes},
                         {"queued_bytes", figures.queued_bytes},
                         {"reports", figures.reports},
                         {"report_bytes", figures.report_bytes},
                         {"heap_bytes", figures.heap_bytes},
                         {"served", figures.served}};
  if (fleet.transport == "nccl") {
    const synchronizer::nccl::GroupShape shape{fleet.trainer_ranks, fleet.replicas, fleet.tensor_parallel};
    // With broadcasts a communicator has one source and the replicas of a slice; otherwise one has all members.
    line["communicators"] = shape.communicators();
    line["communicator_ranks"] = shape.broadcasts() ? 1 + fleet.replicas : fleet.members();
  } else {
    line["streams_per_source"] = fleet.receivers();
  }
  return line;
}

std::string ToText(const nlohmann::json& line) {
  const auto mib = [&line](const char* key) { return line[key].get<double>() / (1 << 20); };
  std::string text = absl::StrFormat(
      "%d ranks, %d replicas of %d, %s: layouts %.1f ms, plan %.1f ms (%d copies, %d buckets); joins %.1f ms; a sync "
      "%.1f "
      "ms of decisions, %d commands of %.2f MiB (largest %.1f KiB, %.2f MiB at once), %d reports of %.2f MiB; heap "
      "%.1f "
      "MiB",
      line["trainer_ranks"].get<int>(), line["replicas"].get<int>(), line["tensor_parallel"].get<int>(),
      line["transport"].get<std::string>(), line["layout_ms"].get<double>(), line["plan_ms"].get<double>(),
      line["plan_copies"].get<int64_t>(), line["plan_buckets"].get<int64_t>(), line["join_ms"].get<double>(),
      line["sync_ms"].get<double>(), line["commands"].get<int64_t>(), mib("command_bytes"),
      line["largest_command_bytes"].get<double>() / 1024, mib("queued_bytes"), line["reports"].get<int64_t>(),
      mib("report_bytes"), mib("heap_bytes"));
  if (line.contains("communicators")) {
    absl::StrAppendFormat(&text, "; %d communicators of %d ranks", line["communicators"].get<int>(),
                          line["communicator_ranks"].get<int>());
  } else {
    absl::StrAppendFormat(&text, "; %d streams at each source", line["streams_per_source"].get<int>());
  }
  return text;
}

int RunFleet(const FleetArguments& arguments) {
  if (absl::Status log = InitLogging({.role = "bench", .minimum = Severity::kError}); !log.ok()) {
    return ReportBenchError(log, arguments.json);
  }
  absl::StatusOr<Manifest> manifest = BenchManifest(arguments.model);
  if (!manifest.ok()) return ReportBenchError(manifest.status(), arguments.json);
  bool all_serve = true;
  for (const int32_t replicas : arguments.replicas) {
    FleetCase fleet = arguments.fleet;
    fleet.manifest = *manifest;
    fleet.replicas = replicas;
    const absl::StatusOr<FleetFigures> figures = FleetWorld::Measure(fleet);
    if (!figures.ok()) return ReportBenchError(figures.status(), arguments.json);
    const nlohmann::json line = ToJson(arguments, fleet, *figures);
    std::cout << (arguments.json ? line.dump() : ToText(line)) << std::endl;
    all_serve &= figures->served == replicas;  // figures of an incomplete sync would look too good
  }
  return all_serve ? 0 : kBenchFailed;
}

}  // namespace

void AddFleetBenchCommand(CLI::App* bench, std::function<int()>* chosen) {
  auto arguments = std::make_shared<FleetArguments>();
  FleetCase& fleet = arguments->fleet;
  CLI::App* app = bench->add_subcommand("fleet", "Plan and decisions of a weight sync of many replicas, without bytes");
  app->footer(kFleetFooter);
  app->add_option("--model", arguments->model, "Whose shapes")
      ->capture_default_str()
      ->check(CLI::IsMember(model::PresetNames()));
  app->add_option("--ranks", fleet.trainer_ranks, "Trainer ranks that send")->capture_default_str();
  app->add_option("--replicas", arguments->replicas, "Replicas that receive; several numbers: one after the other")
      ->capture_default_str()
      ->delimiter(',');
  app->add_option("--tp", fleet.tensor_parallel, "Tensor-parallel ranks of each")->capture_default_str();
  app->add_option("--transport", fleet.transport, "How weights would travel")
      ->capture_default_str()
      ->check(CLI::IsMember({"grpc", "nccl"}));
  app->add_option(
         "--source-layout", fleet.source_layout,
         "How the sources share them: units (as a trainer does), flat, layers, fsdp2, replicated; then :fp32 or "
         ":bf16")
      ->capture_default_str();
  app->add_flag("--json", arguments->json, "Print one JSON object a line");
  app->callback([=] { *chosen = [=] { return RunFleet(*arguments); }; });
}

}  // namespace syncopate::bench
