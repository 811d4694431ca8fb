#include "bench/control/control_command.h"

#include <signal.h>

#include <iostream>
#include <memory>
#include <string>

#include "base/log.h"
#include "bench/control/control_bench.h"
#include "bench/process/bench_report.h"

namespace syncopate::bench {
namespace {

constexpr char kControlFooter[] =
    "Parts, in the order in which they are given: unary, overload, stream, ack, members, restart. Starts a "
    "synchronizer and a trainer's data service as processes and loads them from this one, all on the same cores, and "
    "leaves none "
    "behind. Exit codes: 0 measured, whether or not the aims are met, unless --check; 1 something failed, or with "
    "--check an aim is not met; 2 there is no such case.";

struct ControlArguments {
  ControlCase control_case;
  double round_seconds = 4;
  double warmup_seconds = 1;
  double steady_seconds = 60;
  bool check = false;
  bool json = false;
};

int RunControl(const ControlArguments& arguments) {
  ControlCase control_case = arguments.control_case;
  control_case.round = absl::Seconds(arguments.round_seconds);
  control_case.warmup = absl::Seconds(arguments.warmup_seconds);
  control_case.steady = absl::Seconds(arguments.steady_seconds);
  ::signal(SIGPIPE, SIG_IGN);  // writing to a dead child is an error, and must not end this process
  // The load generator is a client of a thousand streams: log lines about each would be noise, and take CPU time from
  // the measured processes.
  if (absl::Status log = InitLogging({.role = "bench", .minimum = Severity::kError}); !log.ok()) {
    return ReportBenchError(log, arguments.json);
  }
  absl::StatusOr<ControlResult> result = RunControlBench(control_case, {OwnBinaryDir(), &PrintProgress});
  if (!result.ok()) return ReportBenchError(result.status(), arguments.json);
  if (arguments.json) {
    // It contains error messages with any bytes; dump() would throw on invalid UTF-8.
    std::cout << ToJson(*result).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << std::endl;
  } else {
    std::cout << ToText(*result) << std::flush;
  }
  // Aims depend on the machine, so a missed aim is an error only with the option `check`, which CI uses.
  return arguments.check && !result->AllMet() ? kBenchFailed : 0;
}

}  // namespace

void AddControlBenchCommand(CLI::App* bench, std::function<int()>* chosen) {
  // Shared with the callback, which runs after this function has returned.
  auto arguments = std::make_shared<ControlArguments>();
  ControlCase& control_case = arguments->control_case;
  // Positional words replace the default, which is all parts in their fixed order: `restart` is last, because it kills
  // the synchronizer.
  control_case.parts = ControlParts();
  CLI::App* control = bench->add_subcommand("control", "Calls, streams, members: what the daemons bear");
  control->footer(kControlFooter);
  control->add_option("parts", control_case.parts, "What to measure; nothing: all")
      ->check(CLI::IsMember(ControlParts()));
  control->add_option("--rounds", control_case.rounds, "Of each rate; the median counts")->capture_default_str();
  control->add_option("--round-seconds", arguments->round_seconds, "Of each")->capture_default_str();
  control->add_option("--warmup-seconds", arguments->warmup_seconds, "Before the first")->capture_default_str();
  control->add_option("--steady-seconds", arguments->steady_seconds, "Of overload, and of members at rest")
      ->capture_default_str();
  control->add_option("--callers", control_case.callers, "Unary calls in flight")->capture_default_str();
  control->add_option("--connections", control_case.connections, "That the callers share")->capture_default_str();
  control->add_option("--overload", control_case.overload, "Times as many callers")->capture_default_str();
  control->add_option("--streams", control_case.streams, "Rollouters that send answers")->capture_default_str();
  control->add_option("--window", control_case.window, "Answers of each that are not acknowledged")
      ->capture_default_str();
  control->add_option("--message-bytes", control_case.message_bytes, "Of an answer")->capture_default_str();
  control->add_option("--members", control_case.members, "Rollouters that join")->capture_default_str();
  control->add_option("--tls-cert", control_case.tls.cert,
                      "Certificate of each process, {role} standing for its role; without these three, plaintext");
  control->add_option("--tls-key", control_case.tls.key, "Its key, in the same way");
  control->add_option("--tls-ca", control_case.tls.ca, "The authorities");
  control->add_flag("--check", arguments->check, "Fail if an aim is not met");
  control->add_flag("--json", arguments->json, "Print one JSON object");
  control->callback([=] { *chosen = [=] { return RunControl(*arguments); }; });
}

}  // namespace syncopate::bench
