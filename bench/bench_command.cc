#include "bench/bench_command.h"

#include <signal.h>

#include <iostream>
#include <memory>
#include <string>

#include "bench/control/control_command.h"
#include "bench/fleet/fleet_command.h"
#include "bench/generate/generate_command.h"
#include "bench/process/bench_report.h"
#include "bench/sync/bench_model.h"
#include "bench/sync/sync_bench.h"
#include "bench/train/train_command.h"
#include "synchronizer/transport/transport_traits.h"

namespace syncopate::bench {
namespace {

constexpr char kSyncFooter[] =
    "Starts a synchronizer, the ranks of a trainer and those of each replica, on GPUs in turn (where those are fewer, "
    "nccl connects them by sockets) or, with --cpu, in host memory, and leaves none behind. The weights are random; "
    "the "
    "trainer makes steps and publishes every second one. Exit codes: 0 measured, and every replica serves the newest "
    "version; 1 something failed; 2 there is no such case.";

struct SyncArguments {
  SyncCase sync_case;
  bool no_decode = false;
  bool no_ceiling = false;
  bool plan = false;
  bool json = false;
  std::string kill;
  std::string stop;
  double seconds_limit = 300;
};

// Flags name what is left out (--no-decode), but the case names what is done. The limit comes as a number from CLI11,
// which knows no units.
SyncCase GetCase(const SyncArguments& arguments) {
  SyncCase sync_case = arguments.sync_case;
  sync_case.decode = !arguments.no_decode && !sync_case.calm;
  sync_case.ceiling = !arguments.no_ceiling;
  sync_case.limit = absl::Seconds(arguments.seconds_limit);
  if (!arguments.kill.empty()) sync_case.fault = {BenchFault::Kind::kKill, arguments.kill, sync_case.fault.stage};
  if (!arguments.stop.empty()) sync_case.fault = {BenchFault::Kind::kStop, arguments.stop, sync_case.fault.stage};
  return sync_case;
}

int RunSync(const SyncArguments& arguments) {
  const SyncCase sync_case = GetCase(arguments);
  // A plan is pure arithmetic on the case: it starts no process and looks for no GPU.
  if (arguments.plan) {
    absl::StatusOr<std::string> plan = DescribePlan(sync_case);
    if (!plan.ok()) return ReportBenchError(plan.status(), arguments.json);
    std::cout << *plan << std::flush;
    return 0;
  }
  ::signal(SIGPIPE, SIG_IGN);  // writing to a dead child is an error, and must not end this process
  const SyncBenchOptions options{OwnBinaryDir(), &PrintProgress};
  absl::StatusOr<SyncResult> result = RunSyncBench(sync_case, options);
  if (!result.ok()) return ReportBenchError(result.status(), arguments.json);
  if (arguments.json) {
    // It contains error messages of other programs, which need not be UTF-8: invalid bytes are replaced, as dump()
    // would throw.
    std::cout << ToJson(*result).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << std::endl;
  } else {
    std::cout << ToText(*result) << std::flush;
  }
  // A benchmark that was fast with wrong weights has failed, and so has one that did not recover from its own fault.
  return result->digests_equal && (!result->fault.ran || result->fault.healthy) ? 0 : kBenchFailed;
}

void AddFaultOptions(CLI::App* sync, SyncArguments* arguments) {
  // Both options signal one process at one stage; they exclude each other, so that a result has one cause.
  const CLI::IsMember target({"source", "receiver", "synchronizer"});
  CLI::Option* kill = sync->add_option("--kill", arguments->kill, "SIGKILL one process in the sync after the others");
  kill->check(target);
  sync->add_option("--stop", arguments->stop, "SIGSTOP it instead")->check(target)->excludes(kill);
  sync->add_option("--at", arguments->sync_case.fault.stage, "The stage in which the blow falls")
      ->capture_default_str()
      ->check(CLI::IsMember({"prepare", "transfer", "install"}));
  sync->add_flag("--late-joiner", arguments->sync_case.late_joiner, "Start one more replica after the measured syncs");
}

void AddCaseOptions(CLI::App* sync, SyncArguments* arguments) {
  SyncCase& sync_case = arguments->sync_case;
  sync->add_option("--model", sync_case.model, "Whose shapes")
      ->capture_default_str()
      ->check(CLI::IsMember(model::PresetNames()));
  sync->add_option("--layers", sync_case.layers,
                   "Number of layers of the model; 0: all. A trainer needs 16 bytes a parameter and more")
      ->capture_default_str();
  sync->add_option("--sources", sync_case.sources, "Trainer ranks, which send")->capture_default_str();
  sync->add_option("--replicas", sync_case.replicas, "Replicas that receive")->capture_default_str();
  sync->add_option("--lora", sync_case.lora,
                   "Rank of adapters on all projections, which the syncs bring; 0: all weights")
      ->capture_default_str();
  sync->add_option("--tp", sync_case.tensor_parallel, "Tensor-parallel ranks of each")->capture_default_str();
  sync->add_option("--transport", sync_case.transport, "How weights travel")
      ->capture_default_str()
      ->check(CLI::IsMember(synchronizer::TransportChoices()));
  sync->add_option("--install", sync_case.install, "How a replica takes them into use")
      ->capture_default_str()
      ->check(CLI::IsMember({"remap", "in_place"}));
  sync->add_option("--syncs", sync_case.syncs, "How many are measured")->capture_default_str();
  sync->add_option("--warmup", sync_case.warmup, "How many come before")->capture_default_str();
  sync->add_option("--answers", sync_case.answers, "Answers that one step trains on")->capture_default_str();
  sync->add_option("--answer-tokens", sync_case.answer_tokens, "Tokens of each; 0: 128 on GPUs, 16 on the CPU")
      ->capture_default_str();
  sync->add_option("--seconds-limit", arguments->seconds_limit, "For everything")->capture_default_str();
  sync->add_flag("--cpu", sync_case.cpu, "Host memory instead of GPUs");
  sync->add_flag("--no-decode", arguments->no_decode,
                 "Rollouters stand still during a step, and nobody else asks them");
  sync->add_flag("--calm", sync_case.calm, "Nothing runs during a sync: no decoding and no step");
  sync->add_flag("--no-ceiling", arguments->no_ceiling, "Do not measure what the links give without us");
}

}  // namespace

void AddBenchCommand(CLI::App* app, std::function<int()>* chosen) {
  // CLI11 fills in the arguments while it parses, and runs callbacks afterwards: the callback keeps the arguments alive
  // after this function, and `chosen` runs when the whole command line is valid.
  auto arguments = std::make_shared<SyncArguments>();
  CLI::App* bench = app->add_subcommand("bench", "Measure a part of the system on this machine");
  bench->require_subcommand(1);
  CLI::App* sync = bench->add_subcommand("sync", "Weight syncs of a model's shapes between processes of this machine");
  sync->footer(kSyncFooter);
  AddCaseOptions(sync, arguments.get());
  AddFaultOptions(sync, arguments.get());
  sync->add_flag("--plan", arguments->plan, "Print which bytes go where, and start nothing");
  sync->add_flag("--json", arguments->json, "Print one JSON object");
  sync->callback([=] { *chosen = [=] { return RunSync(*arguments); }; });
  AddControlBenchCommand(bench, chosen);
  AddFleetBenchCommand(bench, chosen);
  AddTrainBenchCommand(bench, chosen);
  AddGenerateBenchCommand(bench, OwnBinaryDir(), chosen);
}

}  // namespace syncopate::bench
